// Several processes that train and evaluate a discrete VAE, whose layers have a loss of their own: the numbers of one process.
#include <cmath>
#include <string>
#include <vector>

#include "core/random.h"
#include "data/pairs/pairs.h"
#include "data/pairs/synth_pairs.h"
#include "models/dvae/coder.h"
#include "models/dvae/task.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/parameters.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::models;

namespace {

constexpr std::size_t images = 2, dvae_micro_batches = 12;  // a multiple of 1, 2, 3 and 4
constexpr std::uint64_t dvae_steps = 4;

DvaeConfig small() {
  DvaeConfig config = find_dvae("tiny");
  config.side = 8;
  config.codes = 16;
  config.groups = 2;
  return config;
}

DvaeSchedule schedule() {
  DvaeSchedule schedule;
  schedule.kl_steps = 3;
  schedule.temperature_steps = 4;
  schedule.rate = 1e-2;
  return schedule;
}

std::vector<std::uint8_t> pixels(std::uint64_t step, std::uint64_t micro_batch) {
  Random random(3, Stream::test, step, micro_batch);
  std::vector<std::uint8_t> all(images * small().values());
  for (std::uint8_t& pixel : all) pixel = static_cast<std::uint8_t>(random.below(256));
  return all;
}

struct DvaeRun {
  explicit DvaeRun(mpi::Grid* grid)
      : net(small(), schedule().course()),
        task(engine, net, DType::f32, images, -3, &pixels),
        trainer(engine, task, options(), {grid}) {}

  static train::TrainOptions options() {
    train::TrainOptions options;
    options.micro_batches = dvae_micro_batches;
    options.rate.peak = 1e-2;
    options.optimizer.average = 0.9;
    return options;
  }
  // Losses of the steps.
  std::vector<double> train() {
    std::vector<double> losses;
    while (trainer.steps() < dvae_steps) losses.push_back(trainer.step().loss);
    return losses;
  }

  nn::Engine engine;
  Dvae net;
  DvaeTask task;
  train::Trainer trainer;
};

}  // namespace

TEST_CASE("processes that share the images of a discrete VAE train one net", "[dvae]") {
  DvaeRun alone(nullptr);
  const auto grid = test::data_grid(&test::world());
  DvaeRun together(grid.get());
  const std::vector<double> expected = alone.train();
  CHECK(test::compare(together.train(), expected, 1e-6) == "");
  const std::vector<double> values = test::all_of(together.engine, together.trainer.parameters(), &nn::Parameter::value);
  const std::vector<double> of_one = test::all_of(alone.engine, alone.trainer.parameters(), &nn::Parameter::value);
  CHECK(test::compare(values, of_one, 1e-4) == "");
  std::vector<double> of_root = values;
  test::world().broadcast(std::span(of_root));
  CHECK_FALSE(test::world().flag_any(of_root != values));
}

// The divergence is a loss of a layer in the middle, the likelihood that of the end: stages add them up.
TEST_CASE("stages that share the layers of a discrete VAE have the bits of one process", "[dvae]") {
  DvaeRun alone(nullptr);
  mpi::Grid grid(test::world(), {1, test::world().size(), 1});
  DvaeRun together(&grid);
  const std::vector<double> expected = alone.train();
  const std::vector<double> losses = together.train();
  REQUIRE(losses.size() == expected.size());
  for (std::size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] / expected[i] - 1) < 1e-12);
  // Each stage has some of the parameters, under the same names.
  std::size_t compared = 0;
  for (nn::Parameter* own : together.trainer.parameters()) {
    for (nn::Parameter* other : alone.trainer.parameters()) {
      if (other->name != own->name) continue;
      INFO(own->name);
      CHECK(together.engine.to_host<float>(own->value) == alone.engine.to_host<float>(other->value));
      ++compared;
    }
  }
  CHECK(compared == together.trainer.parameters().size());
  CHECK(compared > 0);
}

// A rank that could not read an image, or whose loss was infinite, left the others waiting for its sums.
TEST_CASE("processes that share the evaluation of a discrete VAE count what one counts, and fail together", "[dvae]") {
  mpi::Comm& comm = test::world();
  const test::TempDir folder;  // this rank's own
  data::SynthPairs scenes;
  scenes.count = 22;  // six batches, the last one of two
  data::write_synth_pairs(scenes, folder.path());
  const data::Pairs pairs = data::Pairs::open(folder.path());
  nn::Engine engine;
  Dvae net(small());
  nn::initialise(engine, nn::parameters_of(*net.layers), DType::f32, 3);
  DvaeCoder coder(engine, net, DType::f32);
  const DvaeCoder::Measure measure{0.5, -3};
  mpi::Comm alone;
  const DvaeEvaluation expected = coder.evaluate(alone, pairs, measure);
  const auto check_evaluation = [&] {
    const DvaeEvaluation found = coder.evaluate(comm, pairs, measure);
    CHECK(found.images == pairs.size());
    CHECK(found.relaxed_nll == expected.relaxed_nll);
    CHECK(found.hard_nll == expected.hard_nll);
    CHECK(found.kl == expected.kl);
    CHECK(found.squared_error == expected.squared_error);
    CHECK(found.counts == expected.counts);
  };
  check_evaluation();
  // The first batch of the last rank has an image that is broken there alone.
  const auto last = static_cast<std::size_t>(comm.size() - 1);
  const auto broken = pairs.folder() / pairs[4 * last].image;
  const std::string whole = test::read_file(broken);
  if (comm.rank() == comm.size() - 1) test::write_file(broken, "no image");
  const std::string message = test::message_of(ErrorKind::data, [&] { coder.evaluate(comm, pairs, measure); });
  CHECK(test::has(message, broken.filename().string()));
  if (comm.size() > 1) CHECK(message.starts_with("rank " + std::to_string(last) + ": "));
  CHECK(test::same_everywhere(message));
  // One that is stopped stops all.
  test::write_file(broken, whole);
  const std::string stopped =
      test::message_of(ErrorKind::interrupted, [&] { coder.evaluate(comm, pairs, measure, [&] { return comm.rank() != 0; }); });
  CHECK(test::has(stopped, "the evaluation was stopped"));
  check_evaluation();
}
