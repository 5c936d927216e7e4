// Tensors in files that other programs wrote.
#pragma once

#include <string>
#include <vector>

#include "core/safetensors.h"

namespace bitloom::models {

// Elements of a tensor of type f32, f16 or bf16. Throws Error(data) for another type; `label` stands for the tensor in
// messages.
std::vector<float> to_floats(const Tensor& tensor, const std::string& label);

}  // namespace bitloom::models
