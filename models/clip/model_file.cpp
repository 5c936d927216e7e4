#include "models/clip/model_file.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "models/file_tokenizer.h"
#include "models/model_kind.h"
#include "models/saved_values.h"

namespace bitloom::models {
namespace {

constexpr const char* config_key = "bitloom.config";

}  // namespace

void add_description(TensorFile& file, const ClipConfig& config, const data::Tokenizer& tokenizer) {
  file.metadata[kind_key] = clip_kind;
  file.metadata[config_key] = to_json(config).dump();
  add_tokenizer(file, tokenizer);
}

LoadedClip load_clip(nn::Engine& engine, const std::filesystem::path& path, DType values) {
  const std::string name = path.string();
  const TensorFile file = TensorFile::load(path, Checksum::required);
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
  load_saved(engine, file, *loaded.net, values);
  return loaded;
}

}  // namespace bitloom::models
