#include "models/dalle/model_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "data/pairs/caption_filter.h"
#include "models/file_tokenizer.h"
#include "models/foreign_tensors.h"
#include "models/model_kind.h"
#include "models/saved_values.h"

namespace bitloom::models {
namespace {

constexpr const char* dvae_key = "bitloom.dvae";

// Tables are modules of their own there.
std::string dalle_name(const std::string& ours) {
  const bool is_table = (ours.starts_with("embedding.") || ours.starts_with("head.")) && !ours.ends_with(".weight");
  return is_table ? ours + ".weight" : pytorch_name(ours);
}

// A net with memory for its numbers.
LoadedDalle make_described_dalle(nn::Engine& engine, const TensorFile& file, const std::string& name, DType values) {
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
  return loaded;
}

}  // namespace

void add_description(TensorFile& file, const DalleConfig& config, const data::Tokenizer& tokenizer, const std::string& dvae) {
  file.metadata[kind_key] = dalle_kind;
  file.metadata[config_key] = to_json(config).dump();
  file.metadata[dvae_key] = dvae;
  add_tokenizer(file, tokenizer);
}

LoadedDalle load_dalle(nn::Engine& engine, const std::filesystem::path& path, DType values) {
  const TensorFile file = TensorFile::load(path, Checksum::required);
  LoadedDalle loaded = make_described_dalle(engine, file, path.string(), values);
  load_saved(engine, file, loaded.net->layers(), values);
  return loaded;
}

TensorFile to_pytorch(nn::Engine& engine, const LoadedDalle& loaded) {
  TensorFile file = to_pytorch(engine, loaded.net->layers(), DType::f32, &dalle_name);
  add_description(file, loaded.net->config(), *loaded.tokenizer, loaded.dvae);
  return file;
}

LoadedDalle load_pytorch_dalle(nn::Engine& engine, const TensorFile& file, const std::string& file_name,
                               const TensorFile& described, const std::string& described_name) {
  LoadedDalle loaded = make_described_dalle(engine, described, described_name, DType::f32);
  load_pytorch(engine, file, loaded.net->layers(), DType::f32, &dalle_name, file_name, "the net", {tokenizer_name});
  return loaded;
}

TensorFile save_dalle(nn::Engine& engine, const LoadedDalle& loaded) {
  TensorFile file;
  add_values(engine, file, loaded.net->layers(), DType::f32);
  add_description(file, loaded.net->config(), *loaded.tokenizer, loaded.dvae);
  return file;
}

std::vector<std::int32_t> caption_tokens(const DalleConfig& config, const data::Tokenizer& tokenizer,
                                         const std::string& caption, const data::MergeDropout& dropout) {
  std::vector<std::int32_t> tokens;
  tokenizer.encode(data::lower_cased(caption), tokens, dropout);
  tokens.resize(config.text, -1);
  return tokens;
}

}  // namespace bitloom::models
