// Updates of many workers in one process.
#include "plan/virtual_run.h"

#include "plan/plan.h"

#include <cmath>
#include "tests/layerwise/small_run.h"
#include "tests/support/catch.h"

namespace bitloom::test {
namespace {

plan::VirtualOptions small_options() {
  plan::VirtualOptions options;
  options.net = two_layers();
  options.train.batch = 40;
  options.train.workers = 20;
  options.train.sparse = true;
  options.train.exchange.threshold = 0.5;
  options.train.layer.rule.learning_rate = 0.3;
  options.train.exchange.tree.fan_in = 3;
  options.ranks = 10;
  options.updates = 24;  // the stage has four, in epochs of two
  return options;
}

plan::VirtualResult run(const plan::VirtualOptions& options) {
  Lines lines;
  return plan::run_virtual(simd::kernels(), options, splits().train, nullptr, lines);
}

}  // namespace

TEST_CASE("with staleness gradients are sent from the start too, however rare statistics are", "[plan]") {
  plan::VirtualOptions options = small_options();
  options.train.exchange.statistics_every = 100;
  const plan::VirtualResult prompt = run(options);
  options.train.exchange.staleness = 3;
  const plan::VirtualResult late = run(options);
  CHECK(late.updates[23].worker_bytes > prompt.updates[23].worker_bytes / 2);
  CHECK(late.updates[23].flips > 0);
}

TEST_CASE("a virtual cluster learns, and its messages add up", "[plan]") {
  const plan::VirtualResult result = run(small_options());
  REQUIRE(result.updates.size() == 24);
  CHECK(result.counted >= 20);
  CHECK(result.images == 40);
  CHECK(result.total_updates == 4);
  std::size_t flips = 0;
  for (const plan::VirtualUpdate& update : result.updates) {
    flips += update.flips;
    REQUIRE(update.level_bytes.size() == 3);
    CHECK(update.level_bytes[1] < update.worker_bytes);
    CHECK(update.reply_bytes > 0);
  }
  CHECK(flips > 0);
  double parts = 0;
  for (const auto& [name, bytes] : result.by_part) parts += bytes;
  CHECK(parts > 0.5 * result.up.measured);
  CHECK(parts < 1.5 * result.up.measured);
  // 1 + 3 + 6 of 10 ranks.
  REQUIRE(result.levels.size() == 3);
  CHECK(result.levels[0].ranks == 1);
  CHECK(result.levels[0].bytes == 0);
  CHECK(result.levels[1].ranks == 3);
  CHECK(result.levels[2].ranks == 6);
  CHECK(result.levels[2].bytes > 0);
  REQUIRE(result.merging.size() == 4);  // for 1, 2, 4, 8 ranks
  CHECK(result.merging[3].workers == 16);
  CHECK(result.merging[3].bytes > result.merging[0].bytes);
  CHECK(result.merging[3].bytes < 8 * result.merging[0].bytes);
  CHECK(result.error_feedback_bytes > 0);
  REQUIRE(result.weights.contains("a"));
  CHECK(result.dense_bytes > 4 * result.weights.at("a"));
}

TEST_CASE("the tree of a virtual cluster changes what is sent, not what is learned", "[plan]") {
  plan::VirtualOptions options = small_options();
  const plan::VirtualResult tree = run(options);
  options.ranks = 1;
  const plan::VirtualResult alone = run(options);
  for (std::size_t n = 0; n < 24; ++n) {
    CHECK(tree.updates[n].loss == alone.updates[n].loss);
    CHECK(tree.updates[n].flips == alone.updates[n].flips);
    CHECK(tree.updates[n].worker_bytes == alone.updates[n].worker_bytes);
    CHECK(alone.updates[n].level_bytes.size() == 1);
  }
}

TEST_CASE("more workers than images take images again", "[plan]") {
  plan::VirtualOptions options = small_options();
  options.train.batch = options.train.workers = 300;
  options.train.exchange.error_feedback = mpi::ErrorFeedback::none;
  options.ranks = 300;
  options.updates = 5;  // the stage would have two
  const plan::VirtualResult result = run(options);
  CHECK(result.updates.size() == 5);
  CHECK(result.total_updates == 2);
  CHECK(result.images == 300);
  CHECK(result.error_feedback_bytes == 0);
  CHECK(result.levels.back().ranks > 100);
}

TEST_CASE("a later stage stands on layers that give something", "[plan]") {
  plan::VirtualOptions options = small_options();
  options.stage = "b";
  const plan::VirtualResult result = run(options);
  std::size_t flips = 0;
  for (const plan::VirtualUpdate& update : result.updates) flips += update.flips;
  CHECK(flips > 0);
  CHECK(result.updates.back().loss < result.updates.front().loss + 0.5);
  CHECK(result.by_part.at("weights") > 20);
}

TEST_CASE("what cannot be simulated is refused", "[plan]") {
  plan::VirtualOptions options = small_options();
  options.memory_limit = 1000;
  CHECK(message_of(ErrorKind::usage, [&] { run(options); }).find("more than `memory_limit` allows") != std::string::npos);
  options = small_options();
  options.stage = "c";
  CHECK(message_of(ErrorKind::usage, [&] { run(options); }) == "`stage`: 'c' is not a stage of net 'two'; expected a, b");
  options = small_options();
  options.ranks = 21;
  CHECK(message_of(ErrorKind::usage, [&] { run(options); }) == "`hosts`: 21 hosts for 20 workers; expected 1 to 20");
}

TEST_CASE("a plan finds the link from which on dense sums are faster", "[plan]") {
  const plan::VirtualResult run_here = run(small_options());
  plan::Cluster cluster;
  cluster.hosts = 10;
  cluster.jitter = 0;
  cluster.link = {1e5, 0.001};
  plan::PlanOptions options;
  options.workers = 20;
  options.fan_in = 3;
  options.updates = 100;
  const plan::Plan slow = plan::make_plan(run_here, cluster, options);
  CHECK(slow.timeline.update < slow.dense_seconds);
  REQUIRE(!slow.sparse_ranges.empty());
  // Its ranges of link rates hold on both sides of where they change.
  for (const auto& [from, to] : slow.sparse_ranges) {
    for (const auto& [rate, wins] : {std::pair{from / 1.2, false}, {from * 1.2, true}, {to / 1.2, true}, {to * 1.2, false}}) {
      if (!(rate > 0) || !std::isfinite(rate)) continue;
      cluster.link.bits_per_second = rate;
      const plan::Plan there = plan::make_plan(run_here, cluster, options);
      CAPTURE(rate, wins);
      CHECK((there.timeline.update < there.dense_seconds) == wins);
    }
  }
  REQUIRE(slow.trees.size() == 4);  // 2, 4, 8, 9
  CHECK(slow.trees.back().fan_in == 9);
  CHECK(slow.trees.back().levels == 1);
  CHECK(slow.trees.front().root_bytes < slow.trees.back().root_bytes);
  CHECK(slow.bill.hours == Approx(100 * slow.timeline.update / 3600));
  CHECK(slow.host_memory >= 2 * run_here.error_feedback_bytes);
}

}  // namespace bitloom::test
