#include "models/gpt/model_file.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "train/optimizer.h"

namespace bitloom::models {
namespace {

constexpr const char* config_key = "bitloom.config";
constexpr const char* tokenizer_name = "tokenizer";

}  // namespace

TensorFile save_gpt(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer) {
  TensorFile file;
  file.metadata[kind_key] = gpt_kind;
  file.metadata[config_key] = to_json(net.config()).dump();
  const std::string text = tokenizer.serialize();
  file.put(tokenizer_name, {text.size()}, std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    train::save_tensor(engine, file, parameter->name, parameter->value);
  }
  return file;
}

GptConfig config_of_file(const TensorFile& file, const std::string& name) {
  const auto kind = file.metadata.find(kind_key);
  if (kind == file.metadata.end() || kind->second != gpt_kind) {
    fail(ErrorKind::data, "{}: not a model of kind '{}'{}", name, gpt_kind,
         kind == file.metadata.end() ? std::string() : fmt::format(" but of kind '{}'", kind->second));
  }
  return parse_gpt_config(file.get_metadata(config_key), name);
}

std::unique_ptr<data::Tokenizer> tokenizer_of_file(const TensorFile& file, const std::string& name) {
  const auto text = file.get(tokenizer_name).as<std::uint8_t>();
  return data::parse_tokenizer({reinterpret_cast<const char*>(text.data()), text.size()}, name + ": tokenizer");
}

void load_parameters(nn::Engine& engine, const TensorFile& file, std::span<nn::Parameter* const> parameters) {
  for (nn::Parameter* parameter : parameters) train::load_tensor(engine, file, parameter->name, parameter->value);
  nn::refresh_copies(engine, parameters);
}

LoadedGpt load_gpt(nn::Engine& engine, const std::filesystem::path& path, DType values, std::size_t tokens) {
  const TensorFile file = TensorFile::load(path, Checksum::required);
  LoadedGpt loaded;
  loaded.net = std::make_unique<Gpt>(config_of_file(file, path.string()), tokens);
  loaded.tokenizer = tokenizer_of_file(file, path.string());
  if (loaded.tokenizer->size() != loaded.net->config().vocabulary) {
    fail(ErrorKind::data, "{}: a net of {} tokens with a tokenizer of {}", path.string(), loaded.net->config().vocabulary,
         loaded.tokenizer->size());
  }
  loaded.parameters = nn::parameters_of(*loaded.net);
  nn::make_parameters(engine, loaded.parameters, values);
  load_parameters(engine, file, loaded.parameters);
  return loaded;
}

}  // namespace bitloom::models
