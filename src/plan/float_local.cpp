#include "plan/float_local.h"

#include <algorithm>
#include <cmath>

namespace bitloom::plan {
namespace {

double bytes_of(std::uint64_t parameters, double share, double value_bits) {
  return static_cast<double>(parameters) * share * (std::log2(1 / share) + 1.5 + value_bits) / 8;
}

}  // namespace

std::vector<LocalPlan> plan_local_steps(std::uint64_t parameters, const FloatPlan& dense, const FloatCluster& cluster,
                                        const LocalMessages& messages) {
  const double ranks = dense.grid.data;
  const double compute = dense.computing * dense.seconds;
  // Share of elements in any message, where chance alone makes them the largest; values of sums have some more bits.
  const double any = 1 - std::pow(1 - messages.sent_share, ranks);
  const double reply_share = std::min(any, messages.reply_messages * messages.sent_share);
  const double reply_bits = messages.value_bits + (ranks > 1 ? 1 : 0);
  std::vector<LocalPlan> plans;
  for (const std::uint64_t steps : {10U, 30U, 100U, 300U}) {
    LocalPlan plan;
    plan.inner_steps = steps;
    plan.message_bytes = bytes_of(parameters, messages.sent_share, messages.value_bits);
    plan.reply_bytes = bytes_of(parameters, reply_share, reply_bits);
    const double wire = ranks * (on_wire(plan.message_bytes) + on_wire(plan.reply_bytes)) * 8 / cluster.link.bits_per_second;
    plan.seconds = compute + (wire + 2 * cluster.link.latency) / static_cast<double>(steps);
    plan.computing = compute / plan.seconds;
    plan.memory = dense.memory().total();
    plan.kept = train::local_bytes({}, parameters);
    plan.fits = dense.fits;
    plans.push_back(plan);
  }
  return plans;
}

}  // namespace bitloom::plan
