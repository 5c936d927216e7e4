// Plans of local steps: bytes as messages have them, and that more steps between them cost links less time.
#include "plan/float_local.h"

#include <cmath>
#include <utility>
#include <vector>

#include "core/random.h"
#include "mpi/top_filter.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::plan;

namespace {

constexpr std::size_t elements = std::size_t{1} << 18U;

mpi::SparseVector message(std::uint64_t seed, std::size_t count, unsigned bits) {
  Random random(seed, Stream::test);
  std::vector<std::int32_t> fresh(elements), kept(elements);
  for (std::int32_t& each : fresh) each = static_cast<std::int32_t>(std::lrint(1e5 * random.normal()));
  return mpi::add_and_take_largest(fresh, kept, {4096, count, bits});
}

double bytes_of(const mpi::SparseVector& vector) {
  std::vector<std::byte> bytes;
  return static_cast<double>(encode(vector, bytes));
}

FloatPlan dense_plan(int ranks) {
  FloatPlan plan;
  plan.grid.data = ranks;
  plan.seconds = 2;
  plan.computing = 0.25;
  plan.stages.emplace_back().memory.stash = 1000;
  return plan;
}

}  // namespace

TEST_CASE("planned messages and replies of local steps are as long as real ones", "[float_plan][local]") {
  // Bits of values, and messages of a reply.
  const auto [bits, messages_of_reply] = GENERATE(std::pair(2U, std::size_t{4}), std::pair(1U, std::size_t{1}));
  for (const std::size_t count : {64U, 256U}) {
    for (const int ranks : {1, 2, 8}) {
      INFO(count << " of 4096 in " << bits << " bits, " << ranks << " ranks");
      std::vector<mpi::SparseVector> all;
      for (int r = 0; r < ranks; ++r) all.push_back(message(static_cast<std::uint64_t>(r), count, bits));
      const double sent = bytes_of(all.front());
      const double replied = bytes_of(mpi::largest_of(mpi::merge(all), 4096, messages_of_reply * count));
      const LocalMessages messages{static_cast<double>(count) / 4096, static_cast<double>(bits),
                                   static_cast<double>(messages_of_reply)};
      const LocalPlan plan = plan_local_steps(elements, dense_plan(ranks), {}, messages).front();
      CHECK(plan.memory == 1000);
      CHECK(plan.fits);
      CHECK(plan.kept == train::local_bytes({}, elements));
      CHECK(plan.message_bytes == Approx(sent).epsilon(0.15));
      CHECK(plan.reply_bytes == Approx(replied).epsilon(0.15));
    }
  }
}

TEST_CASE("a worker of local steps has to fit into the memory of a rank", "[float_plan][local]") {
  FloatPlan dense = dense_plan(2);
  CHECK(plan_local_steps(elements, dense, {}).front().fits);
  dense.fits = false;
  CHECK_FALSE(plan_local_steps(elements, dense, {}).front().fits);
}

TEST_CASE("more steps between messages leave less time to links", "[float_plan][local]") {
  FloatCluster cluster;
  cluster.link = {1e7, 0.1};
  double before = 1e9;
  for (const LocalPlan& plan : plan_local_steps(elements, dense_plan(8), cluster)) {
    CHECK(plan.seconds < before);
    CHECK(plan.seconds > 0.5);
    CHECK(plan.computing == Approx(0.5 / plan.seconds));
    // Every rank's message and reply go over one link.
    const double wire = 8 * (on_wire(plan.message_bytes) + on_wire(plan.reply_bytes)) * 8 / 1e7 + 0.2;
    CHECK(plan.seconds == Approx(0.5 + wire / static_cast<double>(plan.inner_steps)));
    before = plan.seconds;
  }
}
