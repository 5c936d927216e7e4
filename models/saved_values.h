// Numbers of a trained net in a file, under the names that its layers give them.
#pragma once

#include <string>

#include "core/safetensors.h"
#include "nn/layer.h"
#include "train/optimizer.h"

namespace bitloom::models {

train::Buffers buffers_of(nn::Engine& engine, nn::Layer& net, DType values);

// Name of the tensor that stands for a parameter or buffer: in a checkpoint its moving average or its slow weights, where there
// are some.
std::string saved_name(const TensorFile& file, const std::string& name);

// Writes a file's numbers to the parameters and buffers of a net that has memory for them. values: V. Throws Error(data) that
// names what is missing or of another shape.
void load_saved(nn::Engine& engine, const TensorFile& file, nn::Layer& net, DType values);
// Adds those of a net, in f32.
void add_values(nn::Engine& engine, TensorFile& file, nn::Layer& net, DType values);

}  // namespace bitloom::models
