// Tensors of any type V from and to floats in this machine's memory.
#pragma once

#include <span>
#include <vector>

#include "nn/engine.h"

namespace bitloom::nn {

// A tensor of type `values`, rounded to the nearest where it has fewer digits.
Tensor from_floats(Engine& engine, std::span<const float> numbers, const Shape& shape, DType values, Use use);
// The same into an existing tensor.
void write_floats(Engine& engine, Tensor& tensor, std::span<const float> numbers);
// Elements as f32.
std::vector<float> to_floats(Engine& engine, const Tensor& tensor);
// Elements as f64, which f64 tensors lose nothing by.
std::vector<double> to_doubles(Engine& engine, const Tensor& tensor);

}  // namespace bitloom::nn
