// Bytes that a rank hands to its groups in a step, as mpi::Comm counts them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/float_shards.h"

namespace bitloom::plan {

// Calls of the tensor group in the passes of a micro-batch through a part, by the bytes of each.
struct TensorCalls {
  std::vector<std::uint64_t> forward, backward;       // sums of activations and of their gradients
  std::vector<std::uint64_t> head_maxima, head_sums;  // in the backward pass
};
TensorCalls tensor_calls(const FloatLayout& layout, std::size_t part);

// Sets `data`, `pipeline`, `tensor` and `layer_sums` of a stage's plan. shards, needs: the stage's.
void set_traffic(const FloatLayout& layout, std::size_t stage, const StageShards& shards, const ShardNeeds& needs,
                 StagePlan& plan);

}  // namespace bitloom::plan
