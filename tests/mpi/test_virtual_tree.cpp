// What a tree of ranks that are not there sends is what real ones send, to the byte.
#include "plan/virtual_tree.h"

#include <memory>
#include <vector>

#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"

namespace bitloom::test {

TEST_CASE("a virtual tree sends what real ranks send, and gives the same net", "[plan]") {
  const auto ranks = static_cast<std::size_t>(world().size());
  StageCase c = stage_cases()[1];
  c.options.workers = 6;
  c.options.sparse = true;
  c.options.exchange.threshold = 1.5;
  c.options.exchange.statistics_every = 3;
  for (const int fan_in : {1, 2, 8}) {
    c.options.exchange.tree.fan_in = fan_in;
    SmallStage real(c, simd::kernels(), world());
    std::vector<std::int64_t> sent(ranks);
    std::uint64_t answers = 0;
    for (int step = 0; step < 8; ++step) {
      const layerwise::StepResult& result = real.stage().step();
      sent[static_cast<std::size_t>(world().rank())] += static_cast<std::int64_t>(result.exchange.tree.sent_up);
      answers += result.exchange.answer_bytes;
    }
    world().sum(std::span(sent));
    TensorFile expected;
    real.stage().save(expected);

    mpi::Comm alone;
    SmallStage simulated(c, simd::kernels(), alone);
    auto owned = std::make_unique<plan::VirtualTree>(6, ranks, fan_in);
    plan::VirtualTree& tree = *owned;
    simulated.stage().exchange()->set_merger(std::move(owned));
    std::uint64_t simulated_answers = 0;
    for (int step = 0; step < 8; ++step) simulated_answers += simulated.stage().step().exchange.answer_bytes;
    const std::vector<std::uint64_t> virtually = tree.take_sent_up();
    REQUIRE(virtually.size() == ranks);
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      CAPTURE(fan_in, rank);
      CHECK(static_cast<std::int64_t>(virtually[rank]) == sent[rank]);
      CHECK((virtually[rank] > 0) == (rank > 0));
    }
    std::uint64_t by_level = 0;
    for (const plan::LevelTraffic& level : tree.take_levels()) by_level += level.bytes;
    std::uint64_t by_rank = 0;
    for (const std::uint64_t bytes : virtually) by_rank += bytes;
    CHECK(by_level == by_rank);
    if (!world().is_root()) continue;
    CHECK(simulated_answers == answers);
    TensorFile given;
    simulated.stage().save(given);
    CHECK(difference(expected, given) == "");
  }
}

}  // namespace bitloom::test
