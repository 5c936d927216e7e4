#include "nn/floats.h"

#include "nn/ops.h"

namespace bitloom::nn {

Tensor from_floats(Engine& engine, std::span<const float> numbers, const Shape& shape, DType values, Use use) {
  Tensor tensor = engine.empty(shape, values, use);
  write_floats(engine, tensor, numbers);
  return tensor;
}

void write_floats(Engine& engine, Tensor& tensor, std::span<const float> numbers) {
  if (tensor.dtype() == DType::f32) return engine.write(tensor, std::as_bytes(numbers));
  if (tensor.dtype() == DType::f64) {
    const std::vector<double> wide(numbers.begin(), numbers.end());
    return engine.write(tensor, std::as_bytes(std::span(wide)));
  }
  convert(engine, engine.from(numbers, tensor.shape(), Use::workspace), tensor);
}

std::vector<float> to_floats(Engine& engine, const Tensor& tensor) {
  if (tensor.dtype() == DType::f32) return engine.to_host<float>(tensor);
  if (tensor.dtype() == DType::f64) {
    const std::vector<double> wide = engine.to_host<double>(tensor);
    return {wide.begin(), wide.end()};
  }
  Tensor converted = engine.empty(tensor.shape(), DType::f32, Use::workspace);
  convert(engine, tensor, converted);
  return engine.to_host<float>(converted);
}

std::vector<double> to_doubles(Engine& engine, const Tensor& tensor) {
  if (tensor.dtype() == DType::f64) return engine.to_host<double>(tensor);
  const std::vector<float> floats = to_floats(engine, tensor);
  return {floats.begin(), floats.end()};
}

}  // namespace bitloom::nn
