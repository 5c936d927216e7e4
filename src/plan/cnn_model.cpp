#include "plan/cnn_model.h"

#include <algorithm>

#include "models/cnn/cnn.h"

namespace bitloom::plan {

namespace {

// Elements that the layer sums over a step, which it has once it has its moving statistics: a few numbers for every channel.
std::uint64_t step_sums_of(nn::Layer& layer, DType values) {
  nn::Engine engine;
  std::vector<std::pair<std::string, nn::Tensor*>> statistics;
  layer.add_buffers(engine, values, statistics);
  std::vector<nn::Tensor*> sums;
  layer.add_step_sums(sums);
  std::uint64_t elements = 0;
  for (const nn::Tensor* sum : sums) elements += sum->size();
  return elements;
}

}  // namespace

FloatModel describe_cnn(const models::CnnConfig& config, DType values) {
  models::Cnn net(config);
  FloatModel model;
  model.name = config.name;
  model.example = "image";
  nn::Shape shape = net.input(1);
  model.input = shape.size() * dtype_size(values);
  for (std::size_t i = 0; i < net.layers->size(); ++i) {
    nn::Layer& layer = (*net.layers)[i];
    FloatLayer described;
    described.name = fmt::format("layers.{}", i);
    for (const nn::Parameter* parameter : nn::parameters_of(layer)) {
      described.parameters.push_back({{parameter->shape.size()}, parameter->reads_values});
      described.parameters.back().is_frozen = parameter->is_frozen;
    }
    described.step_sums = step_sums_of(layer, values);
    described.whole_operations = layer.cost(shape);
    described.values.whole = (layer.stash_bytes(shape, values) + dtype_size(values) - 1) / dtype_size(values);
    described.keeps_input = layer.keeps_input();
    const nn::Shape output = layer.output(shape);
    // Input, output, and a gradient or a map within a block.
    described.working.whole = 3 * std::max(shape.size(), output.size());
    described.output = output.size();
    model.layers.push_back(std::move(described));
    shape = output;
  }
  return model;
}

}  // namespace bitloom::plan
