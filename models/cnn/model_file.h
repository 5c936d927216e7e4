// A trained convolutional net as a file: safetensors with parameters and moving averages under their names, the architecture,
// the classes' names and the scale of pixels in the metadata.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "models/cnn/cnn.h"
#include "models/cnn/image_batches.h"
#include "models/model_kind.h"

namespace bitloom::models {

// A net besides its numbers.
struct CnnDescription {
  CnnConfig config;
  PixelScale scale;
  std::vector<std::string> class_names;
};
void add_description(TensorFile& file, const CnnDescription& description);
// Throws Error(data) that names `name` and what is missing or wrong.
CnnDescription cnn_description_of(const TensorFile& file, const std::string& name);

// Parameters and moving averages as they are on the engine's device, in f32.
TensorFile save_cnn(nn::Engine& engine, Cnn& net, DType values, const CnnDescription& description);

// A net with its numbers, ready for forward passes.
struct LoadedCnn {
  CnnDescription description;
  std::unique_ptr<Cnn> net;
};
// values: V. Of a checkpoint it takes the moving averages of parameters, or the slow weights, where it has some. Throws
// Error(data) that names the file and what is missing, of another kind or of another size.
LoadedCnn load_cnn(nn::Engine& engine, const std::filesystem::path& path, DType values = DType::f32);
// Writes a file's parameters and moving averages to those of a net that has memory for them. Throws Error(data).
void load_values(nn::Engine& engine, const TensorFile& file, Cnn& net, DType values);

// The tensors of a model file under the names that PyTorch's layers give them: weight and bias, running_mean and running_var.
// From a checkpoint it takes what load_cnn() does.
TensorFile to_pytorch_names(const TensorFile& file);
// The way back: writes the tensors of such a file, in f32, f16 or bf16, to a net that has memory for them. Throws Error(data)
// that names `name` and the tensor that is missing, of another shape or not of this net; PyTorch's counts of batches are not
// looked at.
void load_pytorch_values(nn::Engine& engine, const TensorFile& file, Cnn& net, const std::string& name);

}  // namespace bitloom::models
