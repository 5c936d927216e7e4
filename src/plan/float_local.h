// Time of local steps: workers that train by themselves and exchange what they learn through a folder (train/local/).
#pragma once

#include <cstdint>
#include <vector>

#include "plan/float_plan.h"

namespace bitloom::plan {

// How much of a difference a message has.
struct LocalMessages {
  double sent_share = 1.0 / 16;  // of the elements
  double value_bits = 2;
  double reply_messages = 4;  // most elements of a reply, in those of a message
};

struct LocalPlan {
  std::uint64_t inner_steps = 1;
  double message_bytes = 0, reply_bytes = 0;  // expected
  double seconds = 0;                         // of a step, its share of the exchange included
  double computing = 0;                       // share of them in which ranks compute
};

// Ranks of `dense`, the plan of the same ranks that are all data-parallel, each alone in steps of its share of the batch. The
// folder lies on a host with the cluster's link, over which the messages of all ranks go in, and a reply for each out. Places
// take log2(1 / share) + 1.5 bits each.
std::vector<LocalPlan> plan_local_steps(std::uint64_t parameters, const FloatPlan& dense, const FloatCluster& cluster,
                                        const LocalMessages& messages = {});

}  // namespace bitloom::plan
