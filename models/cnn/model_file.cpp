#include "models/cnn/model_file.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "models/foreign_tensors.h"
#include "models/model_kind.h"
#include "models/saved_values.h"
#include "train/optimizer.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

constexpr const char* pixels_key = "bitloom.pixels";
constexpr const char* classes_key = "bitloom.classes";

std::vector<float> floats_of(const Json& json, const char* key, std::size_t count, const std::string& name) {
  const Json found = json.value(key, Json());
  std::vector<float> numbers;
  if (found.is_array()) {
    for (const Json& each : found) {
      if (each.is_number()) numbers.push_back(each.get<float>());
    }
  }
  if (numbers.size() != count) fail(ErrorKind::data, "{}: '{}': {}; expected {} numbers", name, key, found.dump(), count);
  return numbers;
}

}  // namespace

void add_description(TensorFile& file, const CnnDescription& description) {
  file.metadata[kind_key] = cnn_kind;
  file.metadata[config_key] = architecture_of(description.config).dump();
  file.metadata[pixels_key] = Json{{"mean", description.scale.mean}, {"deviation", description.scale.deviation}}.dump();
  file.metadata[classes_key] = Json(description.class_names).dump();
}

CnnDescription cnn_description_of(const TensorFile& file, const std::string& name) {
  require_kind(file.metadata, cnn_kind, name);
  CnnDescription description;
  description.config = parse_cnn_model(file.get_metadata(config_key), name);
  const Json pixels = Json::parse(file.get_metadata(pixels_key), nullptr, false);
  const Json classes = Json::parse(file.get_metadata(classes_key), nullptr, false);
  if (!pixels.is_object()) fail(ErrorKind::data, "{}: '{}' is not a JSON object", name, pixels_key);
  description.scale.mean = floats_of(pixels, "mean", description.config.image.channels, name);
  description.scale.deviation = floats_of(pixels, "deviation", description.config.image.channels, name);
  for (const float deviation : description.scale.deviation) {
    if (!(deviation > 0)) fail(ErrorKind::data, "{}: a deviation of pixels of {}; expected more than 0", name, deviation);
  }
  if (classes.is_array()) {
    for (const Json& each : classes) description.class_names.push_back(each.is_string() ? each.get<std::string>() : "");
  }
  if (description.class_names.size() != description.config.classes) {
    fail(ErrorKind::data, "{}: {} names of classes; expected {}", name, description.class_names.size(),
         description.config.classes);
  }
  return description;
}

TensorFile save_cnn(nn::Engine& engine, Cnn& net, DType values, const CnnDescription& description) {
  TensorFile file;
  add_description(file, description);
  add_values(engine, file, *net.layers, values);
  return file;
}

void load_values(nn::Engine& engine, const TensorFile& file, Cnn& net, DType values) {
  load_saved(engine, file, *net.layers, values);
}

LoadedCnn load_cnn(nn::Engine& engine, const std::filesystem::path& path, DType values) {
  const TensorFile file = TensorFile::load(path, Checksum::required);
  LoadedCnn loaded{cnn_description_of(file, path.string()), nullptr};
  try {
    loaded.net = std::make_unique<Cnn>(loaded.description.config);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    fail(ErrorKind::data, "{}: {}", path.string(), error.what());
  }
  nn::make_parameters(engine, nn::parameters_of(*loaded.net->layers), values);
  load_values(engine, file, *loaded.net, values);
  return loaded;
}

TensorFile to_pytorch_names(const TensorFile& file) {
  TensorFile renamed;
  renamed.metadata = file.metadata;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with("optimizer.") || name.starts_with("trainer.")) continue;
    renamed.tensors.emplace(pytorch_name(name), file.tensors.at(saved_name(file, name)));
  }
  return renamed;
}

void load_pytorch_values(nn::Engine& engine, const TensorFile& file, Cnn& net, const std::string& name) {
  load_pytorch(engine, file, *net.layers, DType::f32, &pytorch_name, name, fmt::format("the net '{}'", net.config.name));
}

}  // namespace bitloom::models
