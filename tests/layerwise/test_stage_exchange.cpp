// The table of ways to exchange what ranks computed, and which updates by sparse messages carry statistics.
#include "layerwise/stage_exchange.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "layerwise/update_schedule.h"
#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// The setup of a stage with some options, without layers.
struct BareSetup {
  explicit BareSetup(TrainOptions options)
      : setup{simd::kernels(), comm, spec(), layers, train, options, 7, std::min(options.batch, train.size())} {}

  static StageSpec spec() {
    StageSpec result;
    result.epochs = 20;
    return result;
  }

  mpi::Comm comm;
  std::vector<BinaryLayer> layers;
  data::Dataset train = small_data(150);
  StageSetup setup;
};

TrainOptions sparse_options() {
  TrainOptions options = stage_cases()[0].options;
  options.sparse = true;
  options.workers = 5;
  options.exchange.threshold = 2;
  return options;
}

}  // namespace

TEST_CASE("options choose how a stage exchanges", "[stage_exchange]") {
  TrainOptions options = sparse_options();
  CHECK(stage_exchange(options).name == std::string("sparse"));
  CHECK(stage_exchange(options).limits(options, 48, 3).summed == 10);
  CHECK(stage_exchange(options).limits(options, 48, 3).held == 10);
  CHECK(message_of(ErrorKind::usage, [&] { stage_exchange(options).check(options, 6); }) ==
        "`workers`: 5 logical workers on 6 ranks; expected at least one each");
  options.sparse = false;
  CHECK(stage_exchange(options).name == std::string("dense"));
  CHECK(stage_exchange(options).limits(options, 49, 3).summed == 49);
  CHECK(stage_exchange(options).limits(options, 49, 3).held == 17);
  stage_exchange(options).check(options, 6);
}

TEST_CASE("one rank has all places of a minibatch, together or worker by worker", "[stage_exchange]") {
  for (const bool sparse : {false, true}) {
    CAPTURE(sparse);
    TrainOptions options = sparse_options();
    options.sparse = sparse;
    BareSetup bare(options);
    const Workers workers(options.workers, bare.train.size(), bare.setup.batch, options.seed);
    const StageShare share = stage_exchange(options).share(bare.setup, workers);
    CHECK(share.places.first == 0);
    CHECK(share.places.count == 48);
    CHECK(share.at_once == (sparse ? 10 : 48));
    CHECK(share.workers == std::pair<std::size_t, std::size_t>(0, 5));
  }
}

TEST_CASE("a dense stage leaves nothing open between steps, and has no messages", "[stage_exchange]") {
  mpi::Comm comm;
  SmallStage small(stage_cases()[0], simd::kernels(), comm);
  Stage& stage = small.stage();
  const StepResult step = stage.step();
  CHECK(stage.exchange() == nullptr);
  CHECK(stage.is_saved());
  CHECK(stage.statistics_due(3));
  CHECK(stage.steps_observed(3) == 1);
  CHECK(stage.bytes_by_part(step.exchange).empty());
}

TEST_CASE("every step's statistics are sent in one update, and a change is unseen until its reply is there",
          "[stage_exchange]") {
  for (const std::size_t staleness : {0U, 1U, 3U}) {
    CAPTURE(staleness);
    TrainOptions options = sparse_options();
    options.exchange.staleness = staleness;
    options.exchange.statistics_every = 8;
    options.warmup_steps = 0;
    BareSetup bare(options);
    const UpdateSchedule schedule(bare.setup, options.exchange.statistics_every);
    std::size_t observed = 0;
    for (std::size_t step = 0; step < 60; ++step) {
      CAPTURE(step);
      const bool begins = step < 4 + 4 * staleness;
      CHECK(schedule.statistics_due(step) == (begins || step % 8 == 7));
      if (schedule.statistics_due(step)) {
        observed += schedule.steps_observed(step);
        CHECK(observed == step + 1);
      }
      // Those since the last statistics, and those until the reply.
      const std::size_t before = schedule.statistics_due(step) ? 0 : step + 1 - observed;
      CHECK(schedule.steps_unseen(step) >= before);
      CHECK(schedule.steps_unseen(step) <= before + staleness);
    }
    CHECK(schedule.message_length(0) == 0.3 + 2 * 0.7);
    CHECK(schedule.message_length(bare.setup.total_steps()) == 0.3);
  }
}

// In the steps before the first reply all ranks find the same flips worth making. They were made, undone and made again.
TEST_CASE("loss changes that are late do not flip weights back that have flipped since", "[stage_exchange]") {
  StageCase c = stage_cases()[4];
  c.stage.head = {"linear", 2, 0, 3};
  c.stage.epochs = 200;                     // of one step each
  c.options.batch = stage_images().size();  // the same images in every step
  c.options.augment = data::Augment{};
  c.options.warmup_steps = 20;  // so that heads know something
  c.options.head_warmup_steps = 1;
  c.options.layer.rule.momentum = 0;
  c.options.workers = 5;
  c.options.sparse = true;
  c.options.exchange.staleness = 2;
  mpi::Comm comm;
  SmallStage small(c, simd::kernels(), comm);
  Stage& stage = small.stage();
  REQUIRE(stage.steps_per_epoch() == 1);
  const BinaryLayer& layer = stage.trainers()[0]->layer();
  const std::vector<std::uint64_t> drawn(layer.rows().begin(), layer.rows().end());
  // The replies to steps 20, 21 and 22 are there after step 24.
  std::size_t flips = 0;
  while (stage.step_number() < 25) flips += stage.step().flips[0];
  std::size_t differing = 0;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    differing += static_cast<std::size_t>(std::popcount(drawn[i] ^ layer.rows()[i]));
  }
  CHECK(flips > 500);  // about 1% of 23,040 weights, three times
  CHECK(differing > flips * 9 / 10);
}
