#include "plan/float_shards.h"

#include <algorithm>

#include "train/parallel/sharding.h"

namespace bitloom::plan {
namespace {

// Shards of every parameter of a block, by parameter and rank.
std::vector<std::vector<std::size_t>> divide(const FloatLayout& layout, const ParameterBlock& block) {
  std::vector<std::size_t> sizes;
  for (const FloatParameter& each : block.parameters) sizes.push_back(each.elements.of(layout.tensor));
  const std::span<const std::size_t> all(sizes);
  if (!block.is_apart) return train::divide_block(all, layout.data);
  std::vector<std::vector<std::size_t>> shards = train::divide_block(all.first(1), layout.data);
  for (auto& each : train::divide_block(all.subspan(1), layout.data)) shards.push_back(std::move(each));
  return shards;
}

void add_block(const FloatLayout& layout, const ParameterBlock& block, bool is_read_by_head, StageShards& stage) {
  const std::vector<std::vector<std::size_t>> shards = divide(layout, block);
  stage.whole += layout.count(block);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const FloatParameter& parameter = block.parameters[i];
    const std::uint64_t bytes = parameter.is_matrix ? layout.value_bytes : layout.parameter_bytes;
    const std::size_t gathers = block.gathers + (i == 0 && is_read_by_head ? 1 : 0);
    for (std::size_t rank = 0; rank < layout.data; ++rank) {
      stage.of_rank[rank].add(parameter, shards[i][rank]);
      stage.gathered[rank] += gathers * shards[i][rank] * bytes;
      stage.published[rank] += shards[i][rank] * bytes;
    }
  }
}

}  // namespace

const RankParameters& StageShards::largest() const { return *std::ranges::max_element(of_rank, {}, &RankParameters::all); }

StageShards shards_of(const FloatLayout& layout, std::size_t stage) {
  StageShards shards{{},
                     std::vector<RankParameters>(layout.data),
                     std::vector<std::uint64_t>(layout.data),
                     std::vector<std::uint64_t>(layout.data)};
  for (std::size_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    const std::size_t part = layout.shape.part(stage, chunk);
    bool is_first = part == 0;  // of the net
    for (const ParameterBlock& block : layout.blocks_of(part)) {
      if (layout.is_own(block)) add_block(layout, block, is_first && layout.reads_first_table(), shards);
      is_first = false;
    }
  }
  return shards;
}

std::uint64_t shared_elements(const FloatLayout& layout) {
  const std::size_t table = layout.table();
  return std::ranges::max(train::divide_block({&table, 1}, layout.divided.optimizer ? layout.data : 1).front());
}

}  // namespace bitloom::plan
