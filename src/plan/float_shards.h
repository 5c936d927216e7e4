// Shards of a stage's parameters, as train::Sharding cuts them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/float_layout.h"

namespace bitloom::plan {

struct StageShards {
  RankParameters whole;                 // of the stage
  std::vector<RankParameters> of_rank;  // by rank of the data group
  // Bytes of its shards that a rank gives when parameters are made whole, in a micro-batch where they are divided, and once.
  std::vector<std::uint64_t> gathered, published;

  // The shards of the rank that has the most.
  const RankParameters& largest() const;
};
StageShards shards_of(const FloatLayout& layout, std::size_t stage);

// Elements of the table that another stage has, too, of which a rank gives the gradients to that one, at most.
std::uint64_t shared_elements(const FloatLayout& layout);

}  // namespace bitloom::plan
