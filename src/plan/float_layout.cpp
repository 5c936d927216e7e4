#include "plan/float_layout.h"

#include "nn/ops.h"

namespace bitloom::plan {
namespace {

// By train::ShardLevel.
constexpr Divided divisions[] = {
    {},                                                          // none
    {.optimizer = true},                                         // optimizer
    {.optimizer = true, .gradients = true},                      // gradients
    {.optimizer = true, .gradients = true, .parameters = true},  // parameters
};

}  // namespace

std::uint64_t FloatLayout::input_bytes(std::size_t i) const {
  return options.micro_batch * (i == 0 ? model.input : model.layers[i - 1].output * value_bytes);
}

std::uint64_t FloatLayout::output_bytes(std::size_t part) const {
  return options.micro_batch * model.layers[parts[part].last - 1].output * value_bytes;
}

bool FloatLayout::shares_table(std::size_t part) const {
  return stages > 1 && model.has_tied_head() && (part == 0 || part + 1 == shape.parts());
}

std::vector<ParameterBlock> FloatLayout::blocks_of(std::size_t part) const {
  const bool is_tied = model.has_tied_head();
  std::vector<ParameterBlock> all;
  for (std::size_t i = parts[part].first; i < parts[part].last; ++i) {
    const FloatLayer& layer = model.layers[i];
    ParameterBlock block{layer.parameters, i, false, i == 0 && is_tied};
    std::erase_if(block.parameters, &FloatParameter::is_frozen);
    if (block.parameters.empty()) continue;
    for (FloatParameter& each : block.parameters) each.is_in_block = layer.is_block;
    all.push_back(std::move(block));
  }
  if (has_head(part)) all.push_back({model.head_parameters(), model.layers.size(), true, is_tied});
  return all;
}

RankParameters FloatLayout::count(const ParameterBlock& block) const {
  RankParameters sum;
  for (const FloatParameter& each : block.parameters) sum.add(each, each.elements.of(tensor));
  return sum;
}

RankParameters FloatLayout::all_of(std::size_t part) const {
  RankParameters sum;
  for (const ParameterBlock& block : blocks_of(part)) {
    if (is_own(block)) sum += count(block);
  }
  return sum;
}

RankParameters FloatLayout::frozen_of(std::size_t part) const {
  RankParameters sum;
  for (std::size_t i = parts[part].first; i < parts[part].last; ++i) {
    for (const FloatParameter& each : model.layers[i].parameters) {
      if (each.is_frozen) sum.add(each, each.elements.of(tensor));
    }
  }
  return sum;
}

FloatLayout layout_of(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options) {
  const std::size_t data = to_size(grid.data);
  const std::size_t stages = to_size(grid.pipeline);
  const Divided divided = divisions[static_cast<std::size_t>(options.shard)];
  const std::size_t shards = !divided.optimizer ? 1 : options.shard_ranks == 0 ? data : options.shard_ranks;
  CompressionNeeds compression;
  if (options.compress_rank > 0) {
    compression = compression_of(model, options.compress_rank, options.compress_format, shards, options.compress_warm,
                                 options.compress_errors);
  }
  FloatLayout layout{model,
                     options,
                     grid,
                     data,
                     stages,
                     to_size(grid.tensor),
                     shards,
                     dtype_size(options.train.values),
                     dtype_size(nn::parameter_type(options.train.values)),
                     divided,
                     {stages, options.batch / data / options.micro_batch, stages == 1 ? 1 : options.chunks},
                     options.partition,
                     compression};
  if (!layout.parts.empty()) return layout;
  std::vector<double> costs;
  const auto micro_batch = static_cast<double>(options.micro_batch);
  for (const FloatLayer& layer : model.layers) costs.push_back(micro_batch * layer.operations_of(layout.tensor));
  costs.back() += micro_batch * model.head_operations_of(layout.tensor);
  layout.parts = train::partition(costs, layout.shape.parts());
  return layout;
}

}  // namespace bitloom::plan
