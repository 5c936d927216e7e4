// Needs of data-parallel ranks whose gradients go by low-rank factors (train/parallel/power_sgd.h): to send, keep and compute.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/float_model.h"
#include "train/parallel/power_sgd.h"

namespace bitloom::plan {

// Factors with a larger share of the bytes of whole gradients are not worth their time.
inline constexpr double largest_share = 0.75;

struct CompressionNeeds {
  train::PowerSgdBytes sent;      // to the sums of a step
  std::uint64_t error_bytes = 0;  // error buffers, and a copy of the largest in f32 where they are narrower
  std::uint64_t query_bytes = 0;  // the matrices Q by which factors are formed
  std::uint64_t saved_bytes = 0;  // of these, in checkpoints, for which they are copied
  std::uint64_t work_bytes = 0;   // of messages, and P beside them, at the end of a step's passes
  double operations = 0;          // of products of gradients and factors, in a step
};

// Needs of ranks that each have the whole model, or one of several shards of it: then of the shard that has the most. rank: at
// least 1. format: of factors in messages; errors: of error buffers. A matrix whose factors would have no fewer numbers goes as
// it is. warm_start: train::PowerSgdOptions::warm_start.
CompressionNeeds compression_of(const FloatModel& model, std::size_t rank, train::FloatFormat format, std::size_t shards = 1,
                                bool warm_start = false, train::FloatFormat errors = train::FloatFormat::f32);

}  // namespace bitloom::plan
