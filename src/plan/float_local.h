// Time and memory of local steps: workers that train by themselves and exchange what they learn through a folder
// (train/local/).
#pragma once

#include <cstdint>
#include <vector>

#include "mpi/top_filter.h"
#include "plan/float_plan.h"
#include "train/local/local_steps.h"

namespace bitloom::plan {

// How much of a difference a message has.
struct LocalMessages {
  double sent_share = mpi::TopFilter().share();  // of the elements
  double value_bits = mpi::TopFilter().value_bits;
  double reply_messages = train::messages_of_reply;  // most elements of a reply, in those of a message
};

struct LocalPlan {
  std::uint64_t inner_steps = 1;
  double message_bytes = 0, reply_bytes = 0;  // expected
  double seconds = 0;                         // of a step, its share of the exchange included
  double computing = 0;                       // share of them in which ranks compute
  std::uint64_t memory = 0, kept = 0;         // bytes of a rank; of its host besides, for what is shared and what is kept
  bool fits = true;                           // the memory of a rank, without what its host keeps
};

// Ranks of `dense`, the plan of the same ranks that are all data-parallel, each alone in steps of its share of the batch. The
// folder lies on a host with the cluster's link, over which the messages of all ranks go in, and a reply for each out. Places
// take log2(1 / share) + 1.5 bits each.
std::vector<LocalPlan> plan_local_steps(std::uint64_t parameters, const FloatPlan& dense, const FloatCluster& cluster,
                                        const LocalMessages& messages = {});

}  // namespace bitloom::plan
