#include "models/cnn/config.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/suggest.h"
#include "data/augment.h"
#include "models/cnn/image_batches.h"
#include "models/net_texts.h"
#include "nn/activation.h"
#include "optim/schedule.h"
#include "train/update_rule.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;
using Kind = CnnLayer::Kind;

struct NamedKind {
  const char* name;
  Kind kind;
  std::vector<std::string> keys;  // besides "kind"
};

const std::vector<NamedKind>& kinds() {
  static const std::vector<NamedKind> table{{"whitening", Kind::whitening, {"kernel"}},
                                            {"conv", Kind::conv, {"channels", "kernel", "stride"}},
                                            {"norm", Kind::norm, {}},
                                            {"activation", Kind::activation, {}},
                                            {"max_pool", Kind::max_pool, {"kernel"}},
                                            {"global_max_pool", Kind::global_max_pool, {}},
                                            {"global_mean_pool", Kind::global_mean_pool, {}},
                                            {"conv_group", Kind::conv_group, {"channels", "convolutions"}},
                                            {"basic_block", Kind::basic_block, {"channels", "stride"}},
                                            {"linear", Kind::linear, {"bias", "scale"}}};
  return table;
}

// Reads the keys of an object, each of which is known; `where` stands for the object in messages.
class Reader {
 public:
  Reader(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail(ErrorKind::usage, "{}: expected a JSON object", where_);
  }
  void only(const std::vector<std::string>& keys) const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) {
        fail(ErrorKind::usage, "{}: unknown key '{}'{}; expected {}", where_, key, did_you_mean(key, keys),
             fmt::join(keys, ", "));
      }
    }
  }
  bool has(const char* key) const { return json_.contains(key); }
  void count(const char* key, std::size_t& value, std::size_t low, std::size_t high) const {
    if (!has(key)) return;
    const Json& found = json_[key];
    if (!found.is_number_unsigned() || found.get<std::uint64_t>() < low || found.get<std::uint64_t>() > high) {
      refuse(key, fmt::format("a whole number from {} to {}", low, high));
    }
    value = found.get<std::size_t>();
  }
  void number(const char* key, double& value) const {
    if (!has(key)) return;
    if (!json_[key].is_number()) refuse(key, "a number");
    value = json_[key].get<double>();
  }
  void flag(const char* key, bool& value) const {
    if (!has(key)) return;
    if (!json_[key].is_boolean()) refuse(key, "true or false");
    value = json_[key].get<bool>();
  }
  void text(const char* key, std::string& value) const {
    if (!has(key)) return;
    if (!json_[key].is_string()) refuse(key, "a text");
    value = json_[key].get<std::string>();
  }
  [[noreturn]] void refuse(const char* key, const std::string& expected) const {
    fail(ErrorKind::usage, "{}: \"{}\": {}; expected {}", where_, key, json_.value(key, Json()).dump(), expected);
  }

 private:
  const Json& json_;
  std::string where_;
};

CnnLayer read_layer(const Json& json, const std::string& where) {
  const Reader reader(json, where);
  std::string name;
  reader.text("kind", name);
  std::vector<std::string> names;
  for (const NamedKind& kind : kinds()) {
    names.emplace_back(kind.name);
    if (name != kind.name) continue;
    std::vector<std::string> keys = kind.keys;
    keys.insert(keys.begin(), "kind");
    reader.only(keys);
    CnnLayer layer;
    layer.kind = kind.kind;
    if (kind.kind == Kind::max_pool || kind.kind == Kind::whitening) layer.kernel = 2;
    const bool has_channels = std::find(keys.begin(), keys.end(), "channels") != keys.end();
    if (has_channels && !reader.has("channels")) reader.refuse("channels", "a whole number from 1 to 8192");
    reader.count("channels", layer.channels, 1, 8192);
    reader.count("kernel", layer.kernel, 1, 15);
    reader.count("stride", layer.stride, 1, 15);
    reader.count("convolutions", layer.convolutions, 1, 3);
    reader.flag("bias", layer.bias);
    reader.number("scale", layer.scale);
    if (!std::isfinite(layer.scale) || layer.scale == 0) reader.refuse("scale", "a number other than 0");
    return layer;
  }
  fail(ErrorKind::usage, "{}: \"kind\": '{}'{}; expected {}", where, name, did_you_mean(name, names), fmt::join(names, ", "));
}

Json to_json(const CnnLayer& layer) {
  const NamedKind& kind = *std::ranges::find(kinds(), layer.kind, &NamedKind::kind);
  const std::map<std::string, Json> values{{"channels", layer.channels}, {"kernel", layer.kernel},
                                           {"stride", layer.stride},     {"convolutions", layer.convolutions},
                                           {"bias", layer.bias},         {"scale", layer.scale}};
  Json json = {{"kind", kind.name}};
  for (const std::string& key : kind.keys) json[key] = values.at(key);
  return json;
}

void read_norm(const Json& json, const std::string& where, CnnNorm& norm) {
  const Reader reader(json, where);
  reader.only({"momentum", "epsilon", "gain", "bias_rate"});
  reader.number("momentum", norm.momentum);
  reader.number("epsilon", norm.epsilon);
  reader.flag("gain", norm.gain);
  reader.number("bias_rate", norm.bias_rate);
  if (!(norm.momentum > 0 && norm.momentum <= 1)) reader.refuse("momentum", "more than 0, up to 1");
  if (!(norm.epsilon > 0)) reader.refuse("epsilon", "more than 0");
  if (!(norm.bias_rate > 0)) reader.refuse("bias_rate", "more than 0");
}

void read_training(const Json& json, const std::string& where, CnnTraining& training) {
  const Reader reader(json, where);
  reader.only({"epochs", "batch", "optimizer", "learning_rate", "momentum", "weight_decay", "schedule", "label_smoothing",
               "lookahead", "augment", "flip"});
  reader.number("epochs", training.epochs);
  reader.count("batch", training.batch, 1, 1000000);
  reader.text("optimizer", training.optimizer);
  reader.number("learning_rate", training.learning_rate);
  reader.number("momentum", training.momentum);
  reader.number("weight_decay", training.weight_decay);
  reader.text("schedule", training.schedule);
  reader.number("label_smoothing", training.label_smoothing);
  reader.count("lookahead", training.lookahead, 0, 1000000);
  reader.text("augment", training.augment);
  reader.text("flip", training.flip);
  try {
    check(training);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "{}: {}", where, error.what());
  }
}

CnnConfig read_config(const Json& json, const std::string& source, bool is_model) {
  const Reader reader(json, source);
  std::vector<std::string> keys{"name", "layers", "activation", "norm", "identity_start", "decays_vectors", "training"};
  if (is_model) keys.insert(keys.end(), {"image", "classes"});
  reader.only(keys);
  CnnConfig config;
  reader.text("name", config.name);
  reader.text("activation", config.activation);
  reader.flag("identity_start", config.identity_start);
  reader.flag("decays_vectors", config.decays_vectors);
  config.activation = nn::find_activation(config.activation, source + ": \"activation\"").name;
  if (!json.contains("layers") || !json["layers"].is_array() || json["layers"].empty()) {
    reader.refuse("layers", "a list of layers");
  }
  for (const Json& layer : json["layers"]) {
    config.layers.push_back(read_layer(layer, fmt::format("{}: layer {}", source, config.layers.size())));
  }
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const bool is_last = i + 1 == config.layers.size();
    if ((config.layers[i].kind == Kind::linear) != is_last) {
      fail(ErrorKind::usage, "{}: layer {}: expected a layer of kind linear at the end, and only there", source, i);
    }
    if (config.layers[i].kind == Kind::whitening && i != 0) {
      fail(ErrorKind::usage, "{}: layer {}: whitening; expected it as layer 0 only", source, i);
    }
  }
  if (json.contains("norm")) read_norm(json["norm"], source + ": \"norm\"", config.norm);
  if (json.contains("training")) read_training(json["training"], source + ": \"training\"", config.training);
  if (!is_model) return config;
  if (!json.contains("image") || !json.contains("classes")) fail(ErrorKind::usage, "{}: no 'image' or 'classes'", source);
  const Reader image(json["image"], source + ": \"image\"");
  for (const char* key : {"height", "width", "channels"}) {
    if (!image.has(key)) image.refuse(key, "a whole number");
  }
  image.count("height", config.image.height, 1, 4096);
  image.count("width", config.image.width, 1, 4096);
  image.count("channels", config.image.channels, 1, 4);
  reader.count("classes", config.classes, 1, 65535);
  return config;
}

}  // namespace

const char* kind_name(CnnLayer::Kind kind) { return std::ranges::find(kinds(), kind, &NamedKind::kind)->name; }

std::vector<std::string> cnn_names() {
  std::vector<std::string> names;
  for (const NetText& net : cnn_texts()) names.emplace_back(net.name);
  return names;
}

CnnConfig find_cnn(const std::string& name_or_file) {
  const NetSource found = find_net_text(name_or_file, cnn_texts());
  return parse_cnn(found.text, found.name);
}

CnnConfig parse_cnn(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false, true);
  if (json.is_discarded()) fail(ErrorKind::usage, "{}: not JSON", source);
  return read_config(json, source, false);
}

Json architecture_of(const CnnConfig& config) {
  Json layers = Json::array();
  for (const CnnLayer& layer : config.layers) layers.push_back(to_json(layer));
  return {{"name", config.name},
          {"layers", layers},
          {"activation", config.activation},
          {"norm",
           {{"momentum", config.norm.momentum},
            {"epsilon", config.norm.epsilon},
            {"gain", config.norm.gain},
            {"bias_rate", config.norm.bias_rate}}},
          {"image", {{"height", config.image.height}, {"width", config.image.width}, {"channels", config.image.channels}}},
          {"classes", config.classes}};
}

CnnConfig parse_cnn_model(const std::string& text, const std::string& source) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) fail(ErrorKind::data, "{}: the net's description is not JSON", source);
  try {
    return read_config(json, source, true);
  } catch (const Error& error) {
    fail(ErrorKind::data, "{}", error.what());
  }
}

void check(const CnnTraining& training) {
  const auto in_unit = [](const char* field, double value) {
    if (!(value >= 0 && value < 1)) fail_field(ErrorKind::usage, field, "{}; expected 0 up to 1, without 1", value);
  };
  const auto positive = [](const char* field, double value) {
    if (!(value > 0) || !std::isfinite(value)) fail_field(ErrorKind::usage, field, "{}; expected more than 0", value);
  };
  positive("epochs", training.epochs);
  positive("learning_rate", training.learning_rate);
  in_unit("momentum", training.momentum);
  in_unit("label_smoothing", training.label_smoothing);
  if (!(training.weight_decay >= 0) || !std::isfinite(training.weight_decay)) {
    fail_field(ErrorKind::usage, "weight_decay", "{}; expected 0 or more", training.weight_decay);
  }
  if (training.batch == 0) fail_field(ErrorKind::usage, "batch", "0; expected at least 1");
  train::find_update_rule(training.optimizer);
  if (training.optimizer == "muon") {
    fail_field(ErrorKind::usage, "optimizer", "muon, which moves matrices of transformers; expected adamw, rmsprop or sgd");
  }
  find_rate_course(training.schedule);
  parse_flip(training.flip);
  const data::Augment augment = data::parse_augment(training.augment);
  if (augment.flip || augment.alternating) {
    fail_field(ErrorKind::usage, "augment", "'{}'; expected no flip or alternating in it; `flip` says that", training.augment);
  }
}

}  // namespace bitloom::models
