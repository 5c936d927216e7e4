// Shards of a stage's parameters and gradients, as train::Sharding cuts, gathers and sums them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/float_layout.h"
#include "train/parallel/schedule.h"

namespace bitloom::plan {

// Parameters that are gathered and reduced together.
struct ShardUnit {
  RankParameters whole;
  std::vector<RankParameters> of_rank;  // by rank of the shards' group
  std::size_t first_layer = 0;          // whose backward pass is the last that adds to its gradient
  bool is_by_columns = false;           // a matrix
};

struct StageShards {
  std::vector<ShardUnit> units;
  std::vector<std::vector<std::size_t>> of_layer;  // units of each layer of the net, then the head's

  // All of the stage; the shards of every rank of their group; those of the rank that has the most elements.
  RankParameters whole() const;
  std::vector<RankParameters> by_rank() const;
  RankParameters largest() const;
  // Parts of matrices that are cut into columns: those of the rank that has the most.
  RankParameters largest_columns() const;
};
StageShards shards_of(const FloatLayout& layout, std::size_t stage);

// Elements of the table that another stage has, too, of which a rank gives the gradients to that one, at most.
std::uint64_t shared_elements(const FloatLayout& layout);

// Costs of shards of gradients and parameters in a step's passes.
struct ShardNeeds {
  std::uint64_t gathered_bytes = 0;  // that the rank gives that gives the most
  std::uint64_t whole_bytes = 0;     // of what is whole at once, at most
};
// actions: the stage's, in the order of its schedule.
ShardNeeds needs_of(const FloatLayout& layout, const StageShards& shards, std::size_t stage,
                    std::span<const train::Action> actions);

}  // namespace bitloom::plan
