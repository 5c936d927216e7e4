#include "models/cnn/model_file.h"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "models/foreign_tensors.h"
#include "models/saved_values.h"
#include "train/optimizer.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

constexpr const char* config_key = "bitloom.config";
constexpr const char* pixels_key = "bitloom.pixels";
constexpr const char* classes_key = "bitloom.classes";

// Endings of names, ours and those of PyTorch's layers, where they differ.
std::string pytorch_name(const std::string& name) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> endings{
      {{".gain", ".weight"}, {".moving_mean", ".running_mean"}, {".moving_variance", ".running_var"}}};
  for (const auto& [ours, theirs] : endings) {
    if (name.ends_with(ours)) return name.substr(0, name.size() - ours.size()) + std::string(theirs);
  }
  return name;
}

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
  TensorFile renamed;
  std::set<std::string> known;
  const auto take = [&](const std::string& ours, const nn::Shape& shape) {
    const std::string& theirs = *known.insert(pytorch_name(ours)).first;
    const std::string label = fmt::format("{}: the tensor '{}'", name, theirs);
    const std::vector<std::size_t> wanted(shape.lengths().begin(), shape.lengths().end());
    if (!file.contains(theirs)) fail(ErrorKind::data, "{} is missing; expected one of shape {}", label, nn::to_text(shape));
    const bitloom::Tensor& tensor = file.get(theirs);
    if (tensor.shape != wanted) {
      fail(ErrorKind::data, "{} has the shape ({}); expected {}", label, fmt::join(tensor.shape, ", "), nn::to_text(shape));
    }
    renamed.put(ours, wanted, to_floats(tensor, label));
  };
  for (const nn::Parameter* parameter : nn::parameters_of(*net.layers)) take(parameter->name, parameter->shape);
  for (const auto& [ours, tensor] : buffers_of(engine, *net.layers, DType::f32)) take(ours, tensor->shape());
  for (const auto& [theirs, tensor] : file.tensors) {
    if (known.contains(theirs) || theirs.ends_with(".num_batches_tracked")) continue;
    fail(ErrorKind::data, "{}: the tensor '{}' has no place in the net '{}'", name, theirs, net.config.name);
  }
  load_values(engine, renamed, net, DType::f32);
}

}  // namespace bitloom::models
