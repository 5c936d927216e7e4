// Memory of a rank, by what is in it.
#pragma once

#include <span>

#include "plan/float_shards.h"

namespace bitloom::plan {

// actions: the stage's, in the order of its schedule; shards, needs: the stage's.
FloatMemory memory_of(const FloatLayout& layout, std::size_t stage, std::span<const train::Action> actions,
                      const StageShards& shards, const ShardNeeds& needs);

}  // namespace bitloom::plan
