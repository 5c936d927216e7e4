#include "plan/float_shards.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "train/parallel/sharding.h"
#include "train/parallel/stages.h"

namespace bitloom::plan {
namespace {

ShardUnit unit_of(const FloatLayout& layout, std::span<const FloatParameter> parameters, std::size_t layer) {
  ShardUnit unit{{}, std::vector<RankParameters>(layout.shards), layer};
  std::vector<std::size_t> sizes;
  for (const FloatParameter& each : parameters) sizes.push_back(each.elements.of(layout.tensor));
  std::vector<std::vector<std::size_t>> shards;
  if (layout.cuts_matrices() && parameters.front().is_block_matrix()) {
    const std::size_t rows = parameters.front().rows;
    unit.is_by_columns = layout.shards > 1 && train::is_cut_by_columns(rows, sizes.front() / rows);
    shards.push_back(train::divide_matrix(rows, sizes.front() / rows, layout.shards));
  } else {
    shards = train::divide_parameters(sizes, layout.shards);
  }
  for (std::size_t i = 0; i < shards.size(); ++i) {
    unit.whole.add(parameters[i], sizes[i]);
    for (std::size_t rank = 0; rank < layout.shards; ++rank) unit.of_rank[rank].add(parameters[i], shards[i][rank]);
  }
  return unit;
}

// The table that layers share is by itself; of the others, those that ops read in one type are together, apart from those that
// tensor ranks have parts of.
std::vector<ShardUnit> units_of(const FloatLayout& layout, const ParameterBlock& block) {
  std::vector<ShardUnit> units;
  std::span<const FloatParameter> rest(block.parameters);
  if (block.has_table) {
    units.push_back(unit_of(layout, rest.first(1), block.layer));
    rest = rest.subspan(1);
  }
  std::map<std::pair<std::uint64_t, bool>, std::vector<FloatParameter>> kinds;
  for (const FloatParameter& each : rest) {
    if (layout.cuts_matrices() && each.is_block_matrix()) {
      units.push_back(unit_of(layout, {&each, 1}, block.layer));
      continue;
    }
    const std::uint64_t bytes = each.is_matrix ? layout.value_bytes : layout.parameter_bytes;
    kinds[{bytes, layout.tensor > 1 && each.elements.split > 0}].push_back(each);
  }
  for (const auto& [kind, together] : kinds) units.push_back(unit_of(layout, together, block.layer));
  return units;
}

}  // namespace

RankParameters StageShards::whole() const {
  RankParameters sum;
  for (const ShardUnit& unit : units) sum += unit.whole;
  return sum;
}

std::vector<RankParameters> StageShards::by_rank() const {
  std::vector<RankParameters> sums(units.empty() ? 1 : units.front().of_rank.size());
  for (const ShardUnit& unit : units) {
    for (std::size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += unit.of_rank[rank];
  }
  return sums;
}

RankParameters StageShards::largest_columns() const {
  StageShards columns;
  std::ranges::copy_if(units, std::back_inserter(columns.units), &ShardUnit::is_by_columns);
  return columns.largest();
}

RankParameters StageShards::largest() const { return std::ranges::max(by_rank(), {}, &RankParameters::all); }

StageShards shards_of(const FloatLayout& layout, std::size_t stage) {
  StageShards shards{{}, std::vector<std::vector<std::size_t>>(layout.model.layers.size() + 1)};
  for (std::size_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    for (const ParameterBlock& block : layout.blocks_of(layout.shape.part(stage, chunk))) {
      std::vector<std::size_t>& of_layer = shards.of_layer[block.layer];
      if (!layout.is_own(block)) {
        of_layer.push_back(shards.of_layer.front().front());  // layer 0's table
        continue;
      }
      for (ShardUnit& unit : units_of(layout, block)) {
        of_layer.push_back(shards.units.size());
        shards.units.push_back(std::move(unit));
      }
    }
  }
  return shards;
}

std::uint64_t shared_elements(const FloatLayout& layout) {
  const std::size_t table = layout.table();
  return std::ranges::max(train::divide_parameters({&table, 1}, layout.shards).front());
}

ShardNeeds needs_of(const FloatLayout& layout, const StageShards& shards, std::size_t stage,
                    std::span<const train::Action> actions) {
  ShardNeeds needs;
  if (layout.data == 1 || !layout.divided.gradients) return needs;
  std::vector<train::LayerPass> passes =
      train::layer_passes(layout.shape, stage, layout.parts, layout.recomputes_stages(), actions, true);
  std::erase_if(passes, [&](const train::LayerPass& pass) { return shards.of_layer[pass.layer].empty(); });
  const auto gradients_of = [&](std::size_t u) { return layout.bytes_of_gradients(shards.units[u].whole); };
  std::vector<std::uint64_t> gathers(shards.units.size());
  std::set<std::size_t> whole, added;  // units whose parameters are whole, and to whose gradients layers add
  std::uint64_t reduced = 0;           // bytes of gradients that are being summed
  const auto gather = [&](const train::LayerPass& pass) {
    if (!layout.divided.parameters) return;
    for (const std::size_t u : shards.of_layer[pass.layer]) gathers[u] += whole.insert(u).second ? 1 : 0;
  };
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const std::vector<std::size_t>& here = shards.of_layer[passes[i].layer];
    const std::vector<std::size_t> next =
        i + 1 < passes.size() ? shards.of_layer[passes[i + 1].layer] : std::vector<std::size_t>();
    gather(passes[i]);
    if (i + 1 < passes.size()) gather(passes[i + 1]);
    if (passes[i].backward) added.insert(here.begin(), here.end());
    std::uint64_t bytes = reduced;
    for (const std::size_t u : whole) bytes += layout.bytes_of_values(shards.units[u].whole);
    for (const std::size_t u : added) bytes += gradients_of(u);
    needs.whole_bytes = std::max(needs.whole_bytes, bytes);
    std::uint64_t left = 0;
    for (const std::size_t u : here) {
      if (std::ranges::count(next, u) == 0) whole.erase(u);
      if (!passes[i].backward || shards.units[u].first_layer != passes[i].layer) continue;
      left += gradients_of(u);
      added.erase(u);
    }
    if (left > 0) reduced = left;
  }
  for (std::size_t rank = 0; layout.shards > 1 && rank < layout.shards; ++rank) {
    std::uint64_t bytes = 0;
    for (std::size_t u = 0; u < gathers.size(); ++u)
      bytes += gathers[u] * layout.bytes_of_values(shards.units[u].of_rank[rank]);
    needs.gathered_bytes = std::max(needs.gathered_bytes, bytes);
  }
  return needs;
}

}  // namespace bitloom::plan
