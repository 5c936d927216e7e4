#include "models/gpt/model_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/half.h"
#include "nn/floats.h"
#include "train/optimizer.h"

namespace bitloom::models {
namespace {

constexpr const char* config_key = "bitloom.config";
constexpr const char* tokenizer_name = "tokenizer";

// In f32, whatever the engine has; so are models in files.
void save_values(nn::Engine& engine, TensorFile& file, const nn::Parameter& parameter) {
  if (parameter.value.dtype() != DType::bf16) return train::save_tensor(engine, file, parameter.name, parameter.value);
  const auto lengths = parameter.shape.lengths();
  file.put(parameter.name, {lengths.begin(), lengths.end()}, nn::to_floats(engine, parameter.value));
}

// In f32, as models have them; checkpoints of runs without f32 master weights have bf16.
std::vector<float> values_of(const TensorFile& file, const std::string& name, const nn::Parameter& parameter) {
  const auto lengths = parameter.shape.lengths();
  const std::vector<std::size_t> shape(lengths.begin(), lengths.end());
  if (!file.contains(name) || file.get(name).dtype != DType::bf16) {
    const auto values = file.get(name, DType::f32, shape).as<float>();
    return {values.begin(), values.end()};
  }
  const auto halves = file.get(name, DType::bf16, shape).as<bf16>();
  std::vector<float> values(halves.size());
  std::ranges::transform(halves, values.begin(), [](bf16 x) { return to_float(x); });
  return values;
}

// The moving average, where the file has one.
std::string source_of(const TensorFile& file, const std::string& parameter) {
  const std::string average = train::average_name(parameter);
  return file.contains(average) ? average : parameter;
}

// Rounded to the nearest where the engine has bf16 alone.
void load_values(nn::Engine& engine, const TensorFile& file, nn::Parameter& parameter) {
  const std::string name = source_of(file, parameter.name);
  if (file.contains(name) && file.get(name).dtype == parameter.value.dtype()) {
    return train::load_tensor(engine, file, name, parameter.value);
  }
  nn::write_floats(engine, parameter.value, values_of(file, name, parameter));
}

}  // namespace

void add_description(TensorFile& file, const GptConfig& config, const data::Tokenizer& tokenizer) {
  file.metadata[kind_key] = gpt_kind;
  file.metadata[config_key] = to_json(config).dump();
  const std::string text = tokenizer.serialize();
  file.put(tokenizer_name, {text.size()}, std::span(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
}

TensorFile save_gpt(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer) {
  TensorFile file;
  add_description(file, net.config(), tokenizer);
  for (const nn::Parameter* parameter : nn::parameters_of(net)) save_values(engine, file, *parameter);
  return file;
}

GptConfig config_of_file(const TensorFile& file, const std::string& name) {
  require_kind(file, gpt_kind, name);
  return parse_gpt_config(file.get_metadata(config_key), name);
}

std::unique_ptr<data::Tokenizer> tokenizer_of_file(const TensorFile& file, const std::string& name) {
  const auto text = file.get(tokenizer_name).as<std::uint8_t>();
  return data::parse_tokenizer({reinterpret_cast<const char*>(text.data()), text.size()}, name + ": tokenizer");
}

void load_parameters(nn::Engine& engine, const TensorFile& file, std::span<nn::Parameter* const> parameters) {
  for (nn::Parameter* parameter : parameters) load_values(engine, file, *parameter);
  nn::refresh_copies(engine, parameters);
}

TensorFile parameters_of_file(const TensorFile& file, const GptConfig& config) {
  TensorFile parameters;
  Gpt net(config);
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    const auto lengths = parameter->shape.lengths();
    parameters.put(parameter->name, {lengths.begin(), lengths.end()},
                   values_of(file, source_of(file, parameter->name), *parameter));
  }
  return parameters;
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
