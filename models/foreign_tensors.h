// Tensors in files that other programs wrote, and a net's tensors as PyTorch's modules have them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "nn/layer.h"

namespace bitloom::models {

// (rows,columns) -> (columns,rows).
std::vector<float> transposed(const std::vector<float>& matrix, std::size_t rows, std::size_t columns);

// Elements of a tensor of type f32, f16 or bf16. Throws Error(data) for another type; `label` stands for the tensor in
// messages.
std::vector<float> to_floats(const bitloom::Tensor& tensor, const std::string& label);

// The name that a module of PyTorch has for a parameter or moving average called `ours`.
using Renaming = std::function<std::string(const std::string& ours)>;
// With the names that PyTorch's own layers give theirs: weight and bias, running_mean and running_var.
std::string pytorch_name(const std::string& ours);

// Parameters and moving averages of a net with values of type V, in f32. Matrices of linear layers are (outputs, inputs), as
// torch.nn.Linear has them.
TensorFile to_pytorch(nn::Engine& engine, nn::Layer& net, DType values, const Renaming& renaming);
// The way back: writes the tensors of such a file, in f32, f16 or bf16, to a net that has memory for them. Throws Error(data)
// that names `file_name` and the tensor that is missing, of another shape or not of this net, which `net_name` stands for;
// PyTorch's counts of batches, and tensors called as one of `others`, are not looked at.
void load_pytorch(nn::Engine& engine, const TensorFile& file, nn::Layer& net, DType values, const Renaming& renaming,
                  const std::string& file_name, const std::string& net_name, const std::vector<std::string>& others = {});

}  // namespace bitloom::models
