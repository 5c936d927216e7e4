// Several processes that train one float net: all come to the same parameters, which are those of one process but for the
// rounding of sums.
#include <algorithm>
#include <iterator>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/parameters.h"
#include "tests/train/spirals.h"
#include "train/muon.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

constexpr std::size_t per_step = 12;  // a multiple of 1, 2, 3 and 4

struct SpiralRun {
  // comm: none for a process alone.
  SpiralRun(DType values, mpi::Comm* comm, std::uint64_t seed = 1)
      : grid(test::data_grid(comm)),
        task(test::spiral_net(spirals()), {spirals().examples, 2}, test::spirals<float>(engine, spirals(), values)),
        trainer(engine, task, options(values, seed), {grid.get()}) {}

  static test::SpiralOptions spirals() {
    test::SpiralOptions spirals;
    spirals.per_step = per_step;
    spirals.dropout = 0.2;
    return spirals;
  }
  static TrainOptions options(DType values, std::uint64_t seed) {
    TrainOptions options;
    options.values = values;
    options.rate.peak = 0.01;
    options.micro_batches = per_step;
    options.optimizer.clip = 0.5;
    options.seed = seed;
    return options;
  }
  std::vector<double> parameters() { return test::all_of(engine, trainer.parameters(), &nn::Parameter::value); }

  std::unique_ptr<mpi::Grid> grid;
  nn::Engine engine;
  Classification task;
  Trainer trainer;
};

}  // namespace

TEST_CASE("processes that share the micro-batches of a step train one net", "[data_parallel]") {
  for (const DType values : {DType::f32, DType::bf16}) {
    SpiralRun alone(values, nullptr);
    SpiralRun together(values, &test::world());
    for (int i = 0; i < 5; ++i) {
      const StepReport expected = alone.trainer.step();
      const StepReport report = together.trainer.step();
      CHECK(report.targets == expected.targets);
      CHECK(std::abs(report.loss - expected.loss) < (values == DType::f32 ? 1e-5 : 1e-2));
      CHECK(test::same_everywhere(together.parameters()));
    }
    const double limit = values == DType::f32 ? 1e-4 : 3e-2;
    CHECK(test::compare(together.parameters(), alone.parameters(), limit) == "");
    CHECK(alone.trainer.step().sent_bytes == 0);
    const auto sent = [&] { return test::world().traffic().bytes_sent + together.grid->data().traffic().bytes_sent; };
    const std::uint64_t before = sent();
    const std::uint64_t of_step = together.trainer.step().sent_bytes;
    CHECK(of_step == sent() - before);
    CHECK((of_step > 0) == (test::world().size() > 1));
    const Loss expected = alone.trainer.evaluate(3, 0, 5);  // 5: ranks have unequal shares
    const Loss loss = together.trainer.evaluate(3, 0, 5);
    CHECK(loss.count == expected.count);
    CHECK(std::abs(loss.sum - expected.sum) < 1e-2 * expected.sum);
  }
}

TEST_CASE("all processes take over the state of the first", "[data_parallel]") {
  mpi::Comm& world = test::world();
  SpiralRun run(DType::bf16, &world, static_cast<std::uint64_t>(world.rank()) + 1);  // other initial values on every rank
  CHECK(test::same_everywhere(run.parameters()) == (world.size() == 1));
  run.trainer.share();
  CHECK(test::same_everywhere(run.parameters()));
  run.trainer.step();
  // Dropout still follows each rank's own seed here, yet all have the same sums.
  CHECK(test::same_everywhere(run.parameters()));
}

TEST_CASE("processes whose products differ in the last bits take over one another's steps of Muon", "[data_parallel]") {
  // As on machines with other processors.
  const bool is_odd = test::world().rank() % 2 == 1;
  nn::Engine engine(nn::Device{}, is_odd ? "ref" : "cpu");
  Classification task(test::spiral_net(SpiralRun::spirals()), {SpiralRun::spirals().examples, 2},
                      test::spirals<float>(engine, SpiralRun::spirals(), DType::f32));
  TrainOptions options = SpiralRun::options(DType::f32, 1);
  options.optimizer.rule = "muon";
  const auto grid = test::data_grid(&test::world());
  Trainer trainer(engine, task, options, {grid.get()});
  trainer.share();
  CHECK(orthogonalise_alike(engine, grid->data(), trainer.parameters()) == (test::world().size() == 1));
  // All else moves by AdamW, whose bits are those of the backend.
  std::vector<nn::Parameter*> matrices;
  std::ranges::copy_if(trainer.parameters(), std::back_inserter(matrices), &nn::Parameter::is_block_matrix);
  REQUIRE(matrices.size() == 1);
  const std::vector<double> before = test::all_of(engine, matrices, &nn::Parameter::value);
  for (int i = 0; i < 3; ++i) {
    trainer.step();
    CHECK(test::same_everywhere(test::all_of(engine, matrices, &nn::Parameter::value)));
  }
  CHECK(test::all_of(engine, matrices, &nn::Parameter::value) != before);
  nn::Engine same;
  CHECK(orthogonalise_alike(same, grid->data(), trainer.parameters()));
}

TEST_CASE("micro-batches that cannot be shared out are refused", "[data_parallel]") {
  mpi::Comm& world = test::world();
  if (world.size() == 1) return;
  SpiralRun run(DType::f32, nullptr);
  TrainOptions options = SpiralRun::options(DType::f32, 1);
  options.micro_batches = static_cast<std::size_t>(world.size()) + 1;
  const std::string message = test::message_of(
      ErrorKind::usage, [&] { Trainer(run.engine, run.task, options, {test::data_grid(&test::world()).get()}); });
  CHECK(test::has(message, "micro-batches per step for"));
}

}  // namespace bitloom::train
