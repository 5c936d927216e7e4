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

}  // namespace bitloom::models
