// A tree of virtual ranks sends what real ones send, to the byte.
#include "plan/virtual_tree.h"

#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "plan/virtual_run.h"
#include "tests/layerwise/small_run.h"
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
    std::uint64_t replies = 0;
    for (int step = 0; step < 8; ++step) {
      const layerwise::StepResult& result = real.stage().step();
      sent[static_cast<std::size_t>(world().rank())] += static_cast<std::int64_t>(result.exchange.tree.sent_up);
      replies += result.exchange.reply_bytes;
    }
    world().sum(std::span(sent));
    TensorFile expected;
    real.stage().save(expected);

    mpi::Comm alone;
    SmallStage simulated(c, simd::kernels(), alone);
    auto owned = std::make_unique<plan::VirtualTree>(6, ranks, fan_in);
    plan::VirtualTree& tree = *owned;
    simulated.stage().exchange()->set_merger(std::move(owned));
    std::uint64_t simulated_replies = 0;
    for (int step = 0; step < 8; ++step) simulated_replies += simulated.stage().step().exchange.reply_bytes;
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
    CHECK(simulated_replies == replies);
    TensorFile given;
    simulated.stage().save(given);
    CHECK(difference(expected, given) == "");
  }
}

// A plan said that a worker sends 3,224 bytes, and in its summary 1,024; a run that kept to the second was refused for not
// sending the first.
TEST_CASE("a plan with a number of bytes names those that cross the network once thresholds have settled", "[plan]") {
  mpi::Comm& comm = world();
  const auto ranks = static_cast<std::size_t>(comm.size());
  StageCase c;
  c.net = std::string(R"({"name": "one", )") + thermometer + R"(, "head": {"grid": 2, "hidden": 16},
      "layers": [{"name": "a", "width": 40}], "stages": [{"train": ["a"], "epochs": 400}]})";
  const layerwise::NetSpec net = layerwise::parse_net(c.net, "net.json");
  c.stage = net.stages.front();
  c.options.batch = 48;
  c.options.warmup_steps = 2;
  c.options.workers = ranks;
  c.options.sparse = true;
  Lines lines;
  // The second leaves no room for statistics: what a worker sends is more than asked for, and a plan says so.
  for (const auto& [wanted, every, reachable] : {std::tuple{400, 16, true}, std::tuple{64, 1, false}}) {
    c.options.exchange.bytes_per_update = static_cast<std::uint64_t>(wanted);
    c.options.exchange.statistics_every = static_cast<std::size_t>(every);
    plan::VirtualOptions options;
    options.net = net;
    options.train = c.options;
    options.ranks = ranks;
    const plan::VirtualResult planned = plan::run_virtual(simd::kernels(), options, stage_images(), nullptr, lines);
    CHECK(planned.up.follows_budget == reachable);
    CHECK((planned.up.expected == wanted) == reachable);

    SmallStage real(c, simd::kernels(), comm);
    for (int step = 0; step < 400; ++step) real.stage().step();
    real.stage().settle();
    constexpr int measured = 160;
    mpi::ExchangeCounts counts;
    const std::uint64_t before = comm.traffic(mpi::Collective::message).bytes_sent;
    for (int step = 0; step < measured; ++step) counts += real.stage().step().exchange;
    real.stage().settle();
    std::vector<std::int64_t> sent(ranks);
    sent[static_cast<std::size_t>(comm.rank())] =
        static_cast<std::int64_t>(comm.traffic(mpi::Collective::message).bytes_sent - before);
    comm.sum(std::span(sent));
    CAPTURE(wanted, every, planned.up.measured, planned.down.measured, planned.down.expected);
    // One worker per rank, all of them below the root.
    for (std::size_t rank = 1; rank < ranks; ++rank) {
      CHECK(static_cast<double>(sent[rank]) / measured == Approx(planned.up.expected).epsilon(0.15));
    }
    const double replies = static_cast<double>(sent[0]) / measured;
    if (planned.down.follows_budget) {
      CHECK(replies == Approx(planned.down.expected * static_cast<double>(ranks - 1)).epsilon(0.15));
    }
    if (!comm.is_root()) continue;
    CHECK(static_cast<double>(counts.worker_bytes) / measured / static_cast<double>(ranks) ==
          Approx(planned.up.expected).epsilon(0.15));
    // The bytes counted are those that cross the network.
    std::uint64_t others = 0;
    for (std::size_t rank = 1; rank < ranks; ++rank) others += static_cast<std::uint64_t>(sent[rank]);
    CHECK(others == Approx(static_cast<double>(counts.worker_bytes) * static_cast<double>(ranks - 1) / ranks).epsilon(0.05));
    CHECK(static_cast<std::uint64_t>(sent[0]) == counts.reply_bytes * (ranks - 1));
  }
}

}  // namespace bitloom::test
