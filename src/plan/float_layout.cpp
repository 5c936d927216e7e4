#include "plan/float_layout.h"

#include "nn/ops.h"

namespace bitloom::plan {
namespace {

std::size_t size(int count) { return static_cast<std::size_t>(count); }

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

std::uint64_t FloatLayout::table() const {
  const FloatHead& head = *model.head;
  return Elements{0, std::uint64_t{head.vocabulary} * head.width, head.width}.of(tensor);
}

bool FloatLayout::shares_table(std::size_t part) const {
  return stages > 1 && model.head && model.head->is_tied && (part == 0 || part + 1 == shape.parts());
}

double FloatLayout::operations_of(const FloatLayer& layer) const {
  return layer.whole_operations + layer.split_operations / static_cast<double>(tensor) +
         (tensor > 1 ? layer.sum_operations : 0);
}

std::vector<RankParameters> FloatLayout::parameters_of(std::size_t part) const {
  std::vector<RankParameters> all;
  for (std::size_t i = parts[part].first; i < parts[part].last; ++i) {
    const RankParameters each{model.layers[i].matrices.of(tensor), model.layers[i].vectors.of(tensor)};
    if (each.all() > 0) all.push_back(each);
  }
  if (has_head(part) && (!model.head->is_tied || stages > 1)) {
    const Elements biases{0, model.head->has_bias ? model.head->vocabulary : 0};
    all.push_back({table(), biases.of(tensor)});
  }
  return all;
}

RankParameters FloatLayout::all_of(std::size_t part) const {
  RankParameters sum;
  for (const RankParameters& each : parameters_of(part)) sum += each;
  return sum;
}

FloatLayout layout_of(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options) {
  const std::size_t data = size(grid.data);
  const std::size_t stages = size(grid.pipeline);
  FloatLayout layout{model,
                     options,
                     grid,
                     data,
                     stages,
                     size(grid.tensor),
                     dtype_size(options.train.values),
                     dtype_size(nn::parameter_type(options.train.values)),
                     divisions[static_cast<std::size_t>(options.shard)],
                     {stages, options.batch / data / options.micro_batch, stages == 1 ? 1 : options.chunks},
                     options.partition};
  if (!layout.parts.empty()) return layout;
  std::vector<double> costs;
  const auto micro_batch = static_cast<double>(options.micro_batch);
  for (const FloatLayer& layer : model.layers) costs.push_back(micro_batch * layout.operations_of(layer));
  if (model.head) costs.back() += micro_batch * layout.head_operations();
  layout.parts = train::partition(costs, layout.shape.parts());
  return layout;
}

}  // namespace bitloom::plan
