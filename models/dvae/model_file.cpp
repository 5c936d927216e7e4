#include "models/dvae/model_file.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/hash.h"
#include "models/model_kind.h"
#include "train/optimizer.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

constexpr const char* likelihood_key = "bitloom.likelihood";
constexpr const char* tokens_key = "bitloom.tokens";
constexpr const char* tokens_name = "tokens";

// A file's name of a parameter: in a checkpoint its moving average, where there is one.
std::string source_of(const TensorFile& file, const std::string& name) {
  const std::string average = train::average_name(name);
  return file.contains(average) ? average : name;
}

std::string hash_of(nn::Engine& engine, Dvae& net, const DvaeDescription& description) {
  Json sizes = architecture_of(description.config);
  sizes.erase("name");
  Hasher hash;
  hash.update(sizes.dump());
  for (const nn::Parameter* parameter : nn::parameters_of(*net.layers)) {
    std::vector<std::byte> bytes(parameter->value.bytes());
    engine.read(parameter->value, parameter->value.dtype(), bytes);
    hash.update(bytes);
  }
  return hash.finish().hex();
}

}  // namespace

void add_description(TensorFile& file, const DvaeDescription& description) {
  file.metadata[kind_key] = dvae_kind;
  file.metadata[config_key] = architecture_of(description.config).dump();
  file.metadata[likelihood_key] = Json{{"least_log_b", description.least_log_b}}.dump();
}

DvaeDescription dvae_description_of(const TensorFile& file, const std::string& name) {
  require_kind(file.metadata, dvae_kind, name);
  DvaeDescription description;
  description.config = parse_dvae_model(file.get_metadata(config_key), name);
  const Json likelihood = Json::parse(file.get_metadata(likelihood_key), nullptr, false);
  if (!likelihood.is_object() || !likelihood.value("least_log_b", Json()).is_number()) {
    fail(ErrorKind::data, "{}: '{}': {}; expected an object with the number least_log_b", name, likelihood_key,
         file.get_metadata(likelihood_key));
  }
  description.least_log_b = likelihood["least_log_b"].get<double>();
  return description;
}

TensorFile save_dvae(nn::Engine& engine, Dvae& net, const DvaeDescription& description) {
  TensorFile file;
  add_description(file, description);
  for (const nn::Parameter* parameter : nn::parameters_of(*net.layers)) {
    train::save_tensor(engine, file, parameter->name, parameter->value);
  }
  return file;
}

void load_values(nn::Engine& engine, const TensorFile& file, Dvae& net) {
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(*net.layers);
  for (nn::Parameter* parameter : parameters) {
    nn::Tensor value = parameter->value;
    train::load_tensor(engine, file, source_of(file, parameter->name), value);
  }
  nn::refresh_copies(engine, parameters);
}

LoadedDvae load_dvae(nn::Engine& engine, const std::filesystem::path& path, DType values) {
  const TensorFile file = TensorFile::load(path, Checksum::required);
  LoadedDvae loaded{dvae_description_of(file, path.string()), nullptr, {}};
  loaded.net = std::make_unique<Dvae>(loaded.description.config);
  nn::make_parameters(engine, nn::parameters_of(*loaded.net->layers), values);
  load_values(engine, file, *loaded.net);
  loaded.hash = hash_of(engine, *loaded.net, loaded.description);
  return loaded;
}

TensorFile to_file(const ImageTokens& tokens) {
  TensorFile file;
  file.metadata[kind_key] = image_tokens_kind;
  file.metadata[tokens_key] = Json{{"codes", tokens.codes}, {"model", tokens.model}, {"data", tokens.data}}.dump();
  file.put(tokens_name, {tokens.images(), tokens.grid, tokens.grid}, tokens.tokens);
  return file;
}

ImageTokens load_image_tokens(const std::filesystem::path& path) {
  const std::string name = path.string();
  const TensorFile file = TensorFile::load(path, Checksum::required);
  require_kind(file.metadata, image_tokens_kind, name);
  const Json json = Json::parse(file.get_metadata(tokens_key), nullptr, false);
  ImageTokens tokens;
  try {
    tokens.codes = json.at("codes").get<std::size_t>();
    tokens.model = json.at("model").get<std::string>();
    tokens.data = json.at("data").get<std::string>();
  } catch (const Json::exception&) {
    fail(ErrorKind::data, "{}: '{}': {}; expected an object with codes, model and data", name, tokens_key,
         file.get_metadata(tokens_key));
  }
  const bitloom::Tensor& tensor = file.get(tokens_name);
  if (tensor.shape.size() != 3 || tensor.shape[1] != tensor.shape[2] || tensor.shape[1] == 0) {
    fail(ErrorKind::data, "{}: '{}' has the shape ({}); expected images, rows and as many columns", name, tokens_name,
         fmt::join(tensor.shape, ", "));
  }
  tokens.grid = tensor.shape[1];
  const std::span<const std::int32_t> codes = tensor.as<std::int32_t>();
  for (std::size_t i = 0; i < codes.size(); ++i) {
    if (codes[i] < 0 || static_cast<std::size_t>(codes[i]) >= tokens.codes) {
      fail(ErrorKind::data, "{}: token {} is {}; expected 0 to {}", name, i, codes[i],
           static_cast<std::int64_t>(tokens.codes) - 1);
    }
  }
  tokens.tokens.assign(codes.begin(), codes.end());
  return tokens;
}

}  // namespace bitloom::models
