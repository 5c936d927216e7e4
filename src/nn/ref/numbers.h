// Tensors of any floating type as numbers in double precision.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "nn/tensor.h"

namespace bitloom::nn::ref {

// All elements.
std::vector<double> load(const Tensor& tensor);
// Rounds every number once, to the nearest, ties to even. There are as many as the tensor has elements.
void store(const Tensor& tensor, std::span<const double> numbers);
// One element.
void store(const Tensor& tensor, std::size_t element, double number);

}  // namespace bitloom::nn::ref
