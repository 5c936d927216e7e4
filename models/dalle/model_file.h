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

// Tokens of a caption (config.text), lower-cased, cut where there are more, -1 behind its end.
std::vector<std::int32_t> caption_tokens(const DalleConfig& config, const data::Tokenizer& tokenizer,
                                         const std::string& caption, const data::MergeDropout& dropout = {});

}  // namespace bitloom::models
