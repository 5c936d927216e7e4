// A trained contrastive model as a file: safetensors with the parameters and moving averages under their names, the
// architecture in the metadata, the tokenizer beside them.
#pragma once

#include <filesystem>
#include <memory>

#include "core/safetensors.h"
#include "data/text/tokenizer.h"
#include "models/clip/clip.h"

namespace bitloom::models {

void add_description(TensorFile& file, const ClipConfig& config, const data::Tokenizer& tokenizer);

struct LoadedClip {
  std::unique_ptr<ClipTowers> net;
  std::unique_ptr<data::Tokenizer> tokenizer;
};
// With the numbers of a model file, or the averaged ones of a checkpoint. values: V. Throws Error(data) that names the file and
// what is missing, of another kind or of another size.
LoadedClip load_clip(nn::Engine& engine, const std::filesystem::path& path, DType values = DType::f32);

// As PyTorch's modules have the numbers of a trained net (models/foreign_tensors.h; scripts/torch_text_to_image.py has such
// modules), with the description, in f32.
TensorFile to_pytorch(nn::Engine& engine, const LoadedClip& loaded);
// The way back: a net with the numbers of `file` that `described`, the same file or a model, describes. Throws Error(data) that
// names the file and the tensor that is missing, of another shape or not of this net.
LoadedClip load_pytorch_clip(nn::Engine& engine, const TensorFile& file, const std::string& file_name,
                             const TensorFile& described, const std::string& described_name);
// Parameters, moving averages and description.
TensorFile save_clip(nn::Engine& engine, const LoadedClip& loaded);

}  // namespace bitloom::models
