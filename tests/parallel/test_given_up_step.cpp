// Several processes that give a step up together between their micro-batches, since one of them is asked to stop.
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "tests/parallel/grid_gpt.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

using test::world;

constexpr std::size_t passes_of_step = 12;  // a multiple of 1, 2, 3 and 4

models::GptConfig net_of_four_heads() {
  models::GptConfig config = test::small_gpt();
  config.heads = 4;
  config.vocabulary_multiple = 1;
  config.dropout = 0.1;
  return config;
}

struct BrokenOffRun : test::GridGpt {
  BrokenOffRun(const mpi::GridShape& shape, std::size_t compress_rank, double asking_seconds)
      : GridGpt(shape, net_of_four_heads(), options(), layout(compress_rank, asking_seconds)) {
    trainer.share();
  }
  static TrainOptions options() {
    TrainOptions options;
    options.micro_batches = passes_of_step;
    options.rate.peak = 0.01;
    options.optimizer.average = 0.5;
    return options;
  }
  static Layout layout(std::size_t compress_rank, double asking_seconds) {
    Layout layout;
    layout.compress_rank = compress_rank;
    layout.compression.warm_start = true;
    layout.asking_seconds = asking_seconds;
    return layout;
  }
  // At rank 0.
  std::vector<std::byte> state() { return test::saved(trainer).serialize(); }
};

}  // namespace

TEST_CASE("processes give a step up together where one of them is asked to, and it leaves no trace", "[given_up]") {
  const int size = world().size();
  std::vector<std::pair<mpi::GridShape, std::size_t>> cases{{{size, 1, 1}, 0}, {{size, 1, 1}, 4}};
  if (size % 2 == 0) cases.push_back({{size / 2, 1, 2}, 0});
  for (const auto& [shape, compress_rank] : cases) {
    CAPTURE(shape.data, shape.tensor, compress_rank);
    BrokenOffRun whole(shape, compress_rank, 0), broken(shape, compress_rank, 0);
    for (BrokenOffRun* each : {&whole, &broken}) {
      for (int i = 0; i < 2; ++i) each->trainer.step();
    }
    const std::vector<std::byte> before = broken.state();
    int asked = 0;
    const auto ask = [&] { return ++asked == 2 && world().rank() == size - 1; };
    CHECK_FALSE(broken.trainer.step_unless(ask).has_value());
    CHECK(asked == 2);
    CHECK(broken.trainer.steps() == 2);
    CHECK_FALSE(world().flag_any(broken.state() != before));
    const std::optional<StepReport> report = broken.trainer.step_unless([] { return false; });
    REQUIRE(report.has_value());
    CHECK(report->loss == whole.trainer.step().loss);
    CHECK_FALSE(world().flag_any(broken.state() != whole.state()));
  }
}

TEST_CASE("processes do not ask each other in steps that are soon over", "[given_up]") {
  BrokenOffRun run({world().size(), 1, 1}, 0, 1000);
  run.trainer.step();
  int asked = 0;
  const std::optional<StepReport> report = run.trainer.step_unless([&] { return ++asked > 0; });
  CHECK(report.has_value() == (world().size() > 1));
  CHECK(asked == (world().size() > 1 ? 0 : 1));
}

}  // namespace bitloom::train
