#include "models/clip/model_file.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "models/file_tokenizer.h"
#include "models/foreign_tensors.h"
#include "models/model_kind.h"
#include "models/saved_values.h"

namespace bitloom::models {
namespace {

// Tables are modules of their own there.
std::string clip_name(const std::string& ours) {
  return ours.starts_with("embedding.") ? ours + ".weight" : pytorch_name(ours);
}

// A net with memory for its numbers.
LoadedClip make_described_clip(nn::Engine& engine, const TensorFile& file, const std::string& name, DType values) {
  require_kind(file.metadata, clip_kind, name);
  LoadedClip loaded;
  loaded.tokenizer = parse_file_tokenizer(tokenizer_text(file, name), name);
  const ClipConfig config = parse_clip_config(file.get_metadata(config_key), name);
  if (loaded.tokenizer->size() != config.text_vocabulary) {
    fail(ErrorKind::data, "{}: a net of {} text tokens with a tokenizer of {}", name, config.text_vocabulary,
         loaded.tokenizer->size());
  }
  loaded.net = std::make_unique<ClipTowers>(config);
  nn::make_parameters(engine, nn::parameters_of(*loaded.net), values);
  return loaded;
}

}  // namespace

void add_description(TensorFile& file, const ClipConfig& config, const data::Tokenizer& tokenizer) {
  file.metadata[kind_key] = clip_kind;
  file.metadata[config_key] = to_json(config).dump();
  add_tokenizer(file, tokenizer);
}

LoadedClip load_clip(nn::Engine& engine, const std::filesystem::path& path, DType values) {
  const TensorFile file = TensorFile::load(path, Checksum::required);
  LoadedClip loaded = make_described_clip(engine, file, path.string(), values);
  load_saved(engine, file, *loaded.net, values);
  return loaded;
}

TensorFile to_pytorch(nn::Engine& engine, const LoadedClip& loaded) {
  TensorFile file = to_pytorch(engine, *loaded.net, DType::f32, &clip_name);
  add_description(file, loaded.net->config(), *loaded.tokenizer);
  return file;
}

LoadedClip load_pytorch_clip(nn::Engine& engine, const TensorFile& file, const std::string& file_name,
                             const TensorFile& described, const std::string& described_name) {
  LoadedClip loaded = make_described_clip(engine, described, described_name, DType::f32);
  load_pytorch(engine, file, *loaded.net, DType::f32, &clip_name, file_name, "the net", {tokenizer_name});
  return loaded;
}

TensorFile save_clip(nn::Engine& engine, const LoadedClip& loaded) {
  TensorFile file;
  add_values(engine, file, *loaded.net, DType::f32);
  add_description(file, loaded.net->config(), *loaded.tokenizer);
  return file;
}

}  // namespace bitloom::models
