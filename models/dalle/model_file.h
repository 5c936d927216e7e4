// A trained text-to-image transformer as a file: safetensors with the parameters under their names, the architecture in the
// metadata, the tokenizer beside them, and which discrete VAE its codes are of.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "core/safetensors.h"
#include "data/text/tokenizer.h"
#include "models/dalle/dalle.h"

namespace bitloom::models {

// dvae: hash of the discrete VAE's numbers.
void add_description(TensorFile& file, const DalleConfig& config, const data::Tokenizer& tokenizer, const std::string& dvae);

struct LoadedDalle {
  std::unique_ptr<Dalle> net;
  std::unique_ptr<data::Tokenizer> tokenizer;
  std::string dvae;
};
// With the parameters of a model file, or the averaged ones of a checkpoint. values: V. Throws Error(data) that names the file
// and what is missing, of another kind or of another size.
LoadedDalle load_dalle(nn::Engine& engine, const std::filesystem::path& path, DType values = DType::f32);

// As PyTorch's modules have the numbers of a trained net (models/foreign_tensors.h; scripts/torch_text_to_image.py has such
// modules), with the description, in f32.
TensorFile to_pytorch(nn::Engine& engine, const LoadedDalle& loaded);
// The way back: a net with the numbers of `file` that `described`, the same file or a model, describes. Throws Error(data) that
// names the file and the tensor that is missing, of another shape or not of this net.
LoadedDalle load_pytorch_dalle(nn::Engine& engine, const TensorFile& file, const std::string& file_name,
                               const TensorFile& described, const std::string& described_name);
// Parameters and description.
TensorFile save_dalle(nn::Engine& engine, const LoadedDalle& loaded);

// Tokens of a caption (config.text), lower-cased, cut where there are more, -1 after its end.
std::vector<std::int32_t> caption_tokens(const DalleConfig& config, const data::Tokenizer& tokenizer,
                                         const std::string& caption, const data::MergeDropout& dropout = {});

}  // namespace bitloom::models
