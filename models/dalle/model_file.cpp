#include "models/dalle/model_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "data/pairs/caption_filter.h"
#include "models/file_tokenizer.h"
#include "models/model_kind.h"
#include "models/saved_values.h"

namespace bitloom::models {
namespace {

constexpr const char* config_key = "bitloom.config";
constexpr const char* dvae_key = "bitloom.dvae";

}  // namespace

void add_description(TensorFile& file, const DalleConfig& config, const data::Tokenizer& tokenizer, const std::string& dvae) {
  file.metadata[kind_key] = dalle_kind;
  file.metadata[config_key] = to_json(config).dump();
  file.metadata[dvae_key] = dvae;
  add_tokenizer(file, tokenizer);
}

LoadedDalle load_dalle(nn::Engine& engine, const std::filesystem::path& path, DType values) {
  const std::string name = path.string();
  const TensorFile file = TensorFile::load(path, Checksum::required);
  require_kind(file.metadata, dalle_kind, name);
  LoadedDalle loaded;
  loaded.tokenizer = parse_file_tokenizer(tokenizer_text(file, name), name);
  loaded.dvae = file.get_metadata(dvae_key);
  const DalleConfig config = parse_dalle_config(file.get_metadata(config_key), name);
  if (loaded.tokenizer->size() != config.text_vocabulary) {
    fail(ErrorKind::data, "{}: a net of {} text tokens with a tokenizer of {}", name, config.text_vocabulary,
         loaded.tokenizer->size());
  }
  loaded.net = std::make_unique<Dalle>(config);
  nn::make_parameters(engine, nn::parameters_of(loaded.net->layers()), values);
  load_saved(engine, file, loaded.net->layers(), values);
  return loaded;
}

std::vector<std::int32_t> caption_tokens(const DalleConfig& config, const data::Tokenizer& tokenizer,
                                         const std::string& caption, const data::MergeDropout& dropout) {
  std::vector<std::int32_t> tokens;
  tokenizer.encode(data::lower_cased(caption), tokens, dropout);
  tokens.resize(config.text, -1);
  return tokens;
}

}  // namespace bitloom::models
