#include "models/saved_values.h"

#include <algorithm>

#include "models/foreign_tensors.h"
#include "nn/floats.h"

namespace bitloom::models {

train::Buffers buffers_of(nn::Engine& engine, nn::Layer& net, DType values) {
  train::Buffers buffers;
  net.add_buffers(engine, values, buffers);
  return buffers;
}

std::string saved_name(const TensorFile& file, const std::string& name) {
  for (const std::string& other : {train::average_name(name), train::slow_name(name)}) {
    if (file.contains(other)) return other;
  }
  return name;
}

void load_saved(nn::Engine& engine, const TensorFile& file, nn::Layer& net, DType values) {
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(net);
  for (nn::Parameter* parameter : parameters) {
    nn::Tensor read = parameter->value;
    const std::string name = saved_name(file, parameter->name);
    const bitloom::Tensor& stored = file.get(name);
    // Without masters checkpoints have parameters in 16 bits alone.
    if (stored.dtype == DType::bf16 && read.dtype() == DType::f32 && std::ranges::equal(stored.shape, read.shape().lengths())) {
      nn::write_floats(engine, read, to_floats(stored, name));
    } else {
      train::load_tensor(engine, file, name, read);
    }
  }
  for (const auto& [name, tensor] : buffers_of(engine, net, values)) {
    train::load_tensor(engine, file, saved_name(file, name), *tensor);
  }
  nn::refresh_copies(engine, parameters);
}

void add_values(nn::Engine& engine, TensorFile& file, nn::Layer& net, DType values) {
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    train::save_tensor(engine, file, parameter->name, parameter->value);
  }
  for (const auto& [name, tensor] : buffers_of(engine, net, values)) train::save_tensor(engine, file, name, *tensor);
}

}  // namespace bitloom::models
