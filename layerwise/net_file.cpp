// Net files: from JSON, with every key checked, and back.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "core/error.h"
#include "core/suggest.h"
#include "core/text.h"
#include "data/augment.h"
#include "layerwise/net.h"
#include "layerwise/train_options.h"

namespace bitloom::layerwise {
namespace {

using Json = nlohmann::json;

// Reads the keys of one JSON object, with types checked, and complains about those nobody asked for.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail(ErrorKind::usage, "{}: expected an object {{...}}, found {}", where_, object.dump());
  }

  template <typename T>
  void read(const char* key, T& value) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    if (found == object_.end()) return;
    try {
      if constexpr (std::is_same_v<T, std::size_t>) {
        if (!found->is_number_unsigned()) throw std::invalid_argument("");
      }
      value = found->template get<T>();
    } catch (const std::exception&) {
      fail(ErrorKind::usage, "{}.{}: {} has the wrong type; expected {}", where_, key, found->dump(), expected<T>());
    }
  }

  const Json* child(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() ? nullptr : &*found;
  }

  void finish() const {
    for (const auto& [key, value] : object_.items()) {
      if (!contains(known_, key)) {
        fail(ErrorKind::usage, "{}: unknown key '{}'{}", where_, key, did_you_mean(key, known_));
      }
    }
  }

 private:
  template <typename T>
  static const char* expected() {
    if constexpr (std::is_same_v<T, std::size_t>) return "a whole number, 0 or more";
    if constexpr (std::is_same_v<T, double>) return "a number";
    if constexpr (std::is_same_v<T, bool>) return "true or false";
    if constexpr (std::is_same_v<T, std::string>) return "a string";
    if constexpr (std::is_same_v<T, std::map<std::string, double>>) return "an object of numbers";
    return "a list of strings";
  }

  const Json& object_;
  std::string where_;
  std::vector<std::string> known_;
};

void check_range(const std::string& where, std::size_t value, std::size_t low, std::size_t high) {
  if (value < low || value > high) fail(ErrorKind::usage, "{}: {} is out of range; expected {} to {}", where, value, low, high);
}

void check_name(const std::string& where, const std::string& name, std::span<const std::string> known) {
  if (!contains(known, name)) {
    fail(ErrorKind::usage, "{}: unknown name '{}'{}", where, name, did_you_mean(name, known));
  }
}

EncoderSpec read_encoder(const Json& json, const std::string& where) {
  EncoderSpec spec;
  Reader reader(json, where);
  reader.read("kind", spec.kind);
  reader.read("patch", spec.patch);
  reader.read("filters", spec.filters);
  reader.read("levels", spec.levels);
  reader.read("epsilon", spec.epsilon);
  reader.read("contrast", spec.contrast);
  reader.finish();
  const std::array<std::string, 2> kinds = {"whitened", "thermometer"};
  check_name(where + ".kind", spec.kind, kinds);
  check_range(where + ".patch", spec.patch, 1, 15);
  if (spec.patch % 2 == 0) fail(ErrorKind::usage, "{}.patch: {} is even; expected an odd size", where, spec.patch);
  check_range(where + ".filters", spec.filters, 1, 4096);
  check_range(where + ".levels", spec.levels, 1, 255);
  if (!(spec.epsilon > 0)) fail(ErrorKind::usage, "{}.epsilon: {} is not above 0", where, spec.epsilon);
  if (!(spec.contrast >= 0 && spec.contrast <= 255)) {
    fail(ErrorKind::usage, "{}.contrast: {} is out of range; expected 0 to 255", where, spec.contrast);
  }
  return spec;
}

HeadSpec read_head(const Json& json, HeadSpec spec, const std::string& where) {
  Reader reader(json, where);
  reader.read("kind", spec.kind);
  reader.read("grid", spec.grid);
  reader.read("hidden", spec.hidden);
  reader.read("kernel", spec.kernel);
  reader.finish();
  const std::array<std::string, 3> kinds = {"class_conv", "linear", "hidden"};
  check_name(where + ".kind", spec.kind, kinds);
  check_range(where + ".grid", spec.grid, 1, 32);
  check_range(where + ".hidden", spec.hidden, 1, 4096);
  check_range(where + ".kernel", spec.kernel, 1, 15);
  return spec;
}

LayerSpec read_layer(const Json& json, std::span<const std::string> earlier, const std::string& where) {
  LayerSpec spec;
  std::string pool = "none";
  std::string weights = "binary";
  std::size_t padding = ~std::size_t{0};
  Reader reader(json, where);
  reader.read("name", spec.name);
  reader.read("inputs", spec.inputs);
  reader.read("pool", pool);
  reader.read("width", spec.width);
  reader.read("thresholds", spec.thresholds);
  reader.read("kernel", spec.kernel);
  reader.read("stride", spec.stride);
  reader.read("padding", padding);
  reader.read("weights", weights);
  bool passes_gradient = false;
  reader.read("passes_gradient", passes_gradient);
  if (json.contains("passes_gradient")) spec.passes_gradient = passes_gradient;
  reader.finish();
  if (spec.name.empty() || spec.name == "input" || spec.name.find_first_of(". /=,") != std::string::npos) {
    fail(ErrorKind::usage,
         "{}.name: '{}' cannot be a layer's name; expected a word other than 'input' without . / = , or space", where,
         spec.name);
  }
  if (contains(earlier, spec.name)) {
    fail(ErrorKind::usage, "{}.name: there are two layers '{}'", where, spec.name);
  }
  if (spec.inputs.empty()) spec.inputs = {earlier.back()};
  for (const std::string& input : spec.inputs) check_name(where + ".inputs", input, earlier);
  spec.pool = parse_downsample(pool);
  spec.pool_factor = spec.pool == Downsample::none ? 1 : 2;
  check_range(where + ".width", spec.width, 1, 65536);
  check_range(where + ".thresholds", spec.thresholds, 1, 4);
  check_range(where + ".kernel", spec.kernel, 1, 15);
  check_range(where + ".stride", spec.stride, 1, 16);
  spec.padding = padding == ~std::size_t{0} ? (spec.kernel - 1) / 2 : padding;
  check_range(where + ".padding", spec.padding, 0, spec.kernel - 1);
  const std::array<std::string, 2> kinds = {"binary", "ternary"};
  check_name(where + ".weights", weights, kinds);
  spec.ternary = weights == "ternary";
  return spec;
}

void check_once(const std::string& where, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (std::ranges::count(names, name) > 1) fail(ErrorKind::usage, "{}: '{}' twice; expected each layer once", where, name);
  }
}

StageSpec read_stage(const Json& json, const HeadSpec& head, std::span<const std::string> layers, const std::string& where) {
  StageSpec spec;
  spec.head = head;
  Reader reader(json, where);
  reader.read("name", spec.name);
  reader.read("train", spec.train);
  reader.read("heads", spec.heads);
  reader.read("discard", spec.discard);
  reader.read("epochs", spec.epochs);
  reader.read("passes_gradient", spec.passes_gradient);
  reader.read("augment", spec.augment);
  reader.read("options", spec.options);
  if (const Json* child = reader.child("head")) spec.head = read_head(*child, head, where + ".head");
  reader.finish();
  if (spec.train.empty()) fail(ErrorKind::usage, "{}.train: expected at least one layer", where);
  for (const std::string& layer : spec.train) check_name(where + ".train", layer, layers);
  // In the order of the net, whatever that of the file: a layer comes after those that it reads.
  std::sort(spec.train.begin(), spec.train.end(), [&](const std::string& a, const std::string& b) {
    return std::find(layers.begin(), layers.end(), a) < std::find(layers.begin(), layers.end(), b);
  });
  // A model whose auxiliary layers are gone may have stages without a head: their lists are there, and empty.
  if (!json.contains("heads")) spec.heads = {spec.train.back()};
  for (const std::string& layer : spec.heads) check_name(where + ".heads", layer, spec.train);
  for (const std::string& layer : spec.discard) check_name(where + ".discard", layer, spec.train);
  check_once(where + ".heads", spec.heads);
  if (spec.name.empty()) spec.name = spec.train.front();
  for (const auto& [name, value] : spec.options) check_stage_option(where + ".options", name, value);
  check_range(where + ".epochs", spec.epochs, 0, 100000);
  try {
    if (!spec.augment.empty()) data::parse_augment(spec.augment);
  } catch (const Error& error) {
    fail(ErrorKind::usage, "{}.augment: {}", where, error.what());
  }
  return spec;
}

// Throws if `stage` changes a layer below one that is already trained and stays as it is.
void check_readers(const NetSpec& net, const StageSpec& stage, const std::set<std::string>& standing,
                   const std::string& source) {
  for (const LayerSpec& above : net.layers) {
    if (!standing.contains(above.name) || contains(stage.train, above.name)) continue;
    for (const std::string& input : above.inputs) {
      if (!contains(stage.train, input)) continue;
      fail(ErrorKind::usage, "{}: stage '{}' trains '{}' again, but not '{}', which was trained on what it gave before", source,
           stage.name, input, above.name);
    }
  }
}

// Throws if a layer is to pass no gradient, and has none to pass: the layer above was meant.
void check_cuts(const NetSpec& net, const std::string& source) {
  for (const LayerSpec& layer : net.layers) {
    if (layer.passes_gradient.value_or(true)) continue;
    const auto has_some = [&](const StageSpec& stage) {
      const auto learns = [&](const std::string& name) { return contains(stage.train, name); };
      return learns(layer.name) && std::ranges::any_of(layer.inputs, learns);
    };
    if (std::ranges::any_of(net.stages, has_some)) continue;
    fail(ErrorKind::usage,
         "{}: layer '{}': passes_gradient: false, but no stage trains it together with a layer that it reads; expected it of a "
         "layer that reads one which learns with it",
         source, layer.name);
  }
}

// Throws unless the stages train every layer after its inputs. Returns the layers that end with a head: only a head can vote.
std::vector<std::string> check_stages(const NetSpec& net, const std::string& source) {
  std::set<std::string> trained;
  std::set<std::string> standing;           // trained ones that no stage has discarded
  std::map<std::string, HeadSpec> heads;    // by layer, as some stage describes it
  std::map<std::string, bool> head_stands;  // whether the last stage that trains the layer has one for it
  std::set<std::string> stage_names;
  for (const StageSpec& stage : net.stages) {
    if (!stage_names.insert(stage.name).second) fail(ErrorKind::usage, "{}: there are two stages '{}'", source, stage.name);
    check_readers(net, stage, standing, source);
    for (const std::string& name : stage.heads) {
      if (!(heads.emplace(name, stage.head).first->second == stage.head)) {
        fail(ErrorKind::usage, "{}: stage '{}' describes another head of layer '{}' than an earlier stage", source, stage.name,
             name);
      }
    }
    for (const std::string& name : stage.train) {
      head_stands[name] = contains(stage.heads, name);
      if (stage.epochs == 0 && !trained.contains(name)) {
        fail(ErrorKind::usage, "{}: stage '{}': epochs: 0, but no earlier stage trains '{}'; expected 1 or more", source,
             stage.name, name);
      }
      if (std::count(stage.train.begin(), stage.train.end(), name) != 1) {
        fail(ErrorKind::usage, "{}: stage '{}' trains layer '{}' twice", source, stage.name, name);
      }
      trained.insert(name);
      for (const std::string& input : net.layer(name).inputs) {
        if (input != "input" && !trained.contains(input)) {
          fail(ErrorKind::usage, "{}: stage '{}' trains '{}', but its input '{}' is trained in no earlier stage", source,
               stage.name, name, input);
        }
        if (input != "input" && !standing.contains(input) && !contains(stage.train, input)) {
          fail(ErrorKind::usage, "{}: stage '{}' trains '{}' on '{}', which an earlier stage discarded", source, stage.name,
               name, input);
        }
      }
    }
    standing.insert(stage.train.begin(), stage.train.end());
    for (const std::string& name : stage.discard) standing.erase(name);
  }
  for (const LayerSpec& layer : net.layers) {
    if (!trained.contains(layer.name)) fail(ErrorKind::usage, "{}: no stage trains layer '{}'", source, layer.name);
  }
  std::vector<std::string> members;
  for (const auto& [name, stands] : head_stands) {
    if (stands) members.push_back(name);
  }
  return members;
}

}  // namespace

NetSpec net_from_json(const Json& json, const std::string& source) {
  NetSpec net;
  HeadSpec head;
  Reader reader(json, source);
  reader.read("name", net.name);
  reader.read("classifier", net.classifier);
  reader.read("mirror", net.views.mirror);
  reader.read("shift", net.views.shift);
  reader.read("sure", net.views.sure);
  if (!(net.views.sure > 0 && net.views.sure <= 1)) {
    fail(ErrorKind::usage, "{}: sure: {} is out of range; expected a probability above 0, at most 1", source, net.views.sure);
  }
  reader.read("head_bits", net.head_bits);
  check_range(source + ": head_bits", net.head_bits, 2, 16);
  if (const Json* child = reader.child("encoder")) net.encoder = read_encoder(*child, source + ": encoder");
  if (const Json* child = reader.child("head")) head = read_head(*child, head, source + ": head");
  const Json* layers = reader.child("layers");
  const Json* stages = reader.child("stages");
  reader.finish();
  if (layers == nullptr || !layers->is_array() || layers->empty()) {
    fail(ErrorKind::usage, "{}: layers: expected a list of at least one layer", source);
  }
  std::vector<std::string> names = {"input"};
  for (const Json& layer : *layers) {
    net.layers.push_back(read_layer(layer, names, fmt::format("{}: layers[{}]", source, net.layers.size())));
    names.push_back(net.layers.back().name);
  }
  names.erase(names.begin());
  if (stages != nullptr) {
    if (!stages->is_array()) fail(ErrorKind::usage, "{}: stages: expected a list", source);
    for (const Json& stage : *stages) {
      net.stages.push_back(read_stage(stage, head, names, fmt::format("{}: stages[{}]", source, net.stages.size())));
    }
  } else {
    for (const std::string& layer : names) {
      StageSpec stage;
      stage.name = layer;
      stage.train = {layer};
      stage.heads = {layer};
      stage.head = head;
      net.stages.push_back(stage);
    }
  }
  if (net.stages.empty()) fail(ErrorKind::usage, "{}: stages: expected at least one", source);
  const std::vector<std::string> members = check_stages(net, source);
  check_cuts(net, source);
  if (net.classifier.empty()) net.classifier = net.stages.back().heads;
  for (const std::string& name : net.classifier) {
    if (contains(names, name) && !contains(members, name)) {
      fail(ErrorKind::usage, "{}: classifier: layer '{}' keeps no head; expected some of {}", source, name,
           fmt::join(members, ", "));
    }
    check_name(source + ": classifier", name, members);
  }
  without_discarded(net);  // throws if it cannot be done
  return net;
}

NetSpec parse_net(const std::string& text, const std::string& source) {
  Json json;
  try {
    json = Json::parse(text, nullptr, true, true);
  } catch (const Json::exception& error) {
    fail(ErrorKind::usage, "{}: not a net description: {}", source, error.what());
  }
  return net_from_json(json, source);
}

Json to_json(const NetSpec& net) {
  Json json = {{"name", net.name}, {"classifier", net.classifier}, {"mirror", net.views.mirror}};
  if (net.views.shift != 0) json["shift"] = net.views.shift;
  if (net.views.sure < 1) json["sure"] = net.views.sure;
  if (net.head_bits != NetSpec{}.head_bits) json["head_bits"] = net.head_bits;
  const EncoderSpec& encoder = net.encoder;
  json["encoder"] = {{"kind", encoder.kind},     {"patch", encoder.patch},     {"filters", encoder.filters},
                     {"levels", encoder.levels}, {"epsilon", encoder.epsilon}, {"contrast", encoder.contrast}};
  for (const LayerSpec& layer : net.layers) {
    json["layers"].push_back({{"name", layer.name},
                              {"inputs", layer.inputs},
                              {"pool", to_string(layer.pool)},
                              {"width", layer.width},
                              {"kernel", layer.kernel},
                              {"stride", layer.stride},
                              {"padding", layer.padding},
                              {"weights", layer.ternary ? "ternary" : "binary"}});
    if (layer.thresholds != 1) json["layers"].back()["thresholds"] = layer.thresholds;
    if (layer.passes_gradient) json["layers"].back()["passes_gradient"] = *layer.passes_gradient;
  }
  for (const StageSpec& stage : net.stages) {
    const HeadSpec& head = stage.head;
    json["stages"].push_back(
        {{"name", stage.name},
         {"train", stage.train},
         {"heads", stage.heads},
         {"discard", stage.discard},
         {"epochs", stage.epochs},
         {"passes_gradient", stage.passes_gradient},
         {"head", {{"kind", head.kind}, {"grid", head.grid}, {"hidden", head.hidden}, {"kernel", head.kernel}}}});
    if (!stage.options.empty()) json["stages"].back()["options"] = stage.options;
    if (!stage.augment.empty()) json["stages"].back()["augment"] = stage.augment;
  }
  return json;
}

NetSpec with_setting(const NetSpec& net, const std::string& key, const std::string& value) {
  Json json = to_json(net);
  const std::size_t dot = key.find('.');
  if (dot == std::string::npos)
    fail(ErrorKind::usage, "'{}': expected LAYER.KEY, STAGE.KEY, encoder.KEY, head.KEY or net.KEY", key);
  const std::string object = key.substr(0, dot);
  const std::string member = key.substr(dot + 1);
  // A value that is not JSON by itself (or, and, binary, ...) is a string.
  Json parsed = Json::parse(value, nullptr, false);
  if (parsed.is_discarded()) parsed = value;
  std::vector<std::string> known = {"encoder", "head", "net"};
  std::vector<Json*> targets;
  if (object == "net") {
    if (!contains(std::vector<std::string>{"mirror", "shift", "sure", "head_bits"}, member)) {
      fail(ErrorKind::usage, "'{}': expected net.mirror, net.shift, net.sure or net.head_bits", key);
    }
    targets.push_back(&json);
  }
  if (object == "encoder") targets.push_back(&json["encoder"]);
  for (Json& stage : json["stages"]) {
    if (object == "head") targets.push_back(&stage["head"]);
    if (object == stage["name"]) {
      // Stages that are named after a layer often train it alone: the layer's setting is meant then, for other stages.
      const bool parts_layers = member == "passes_gradient" && stage["train"].size() > 1;
      if (parts_layers && std::ranges::any_of(json["layers"], [&](const Json& layer) { return layer["name"] == object; })) {
        fail(ErrorKind::usage, "'{}': a stage of several layers and a layer have this name; expected another name of the stage",
             key);
      }
      if (member == "epochs" || member == "augment" || parts_layers) targets.push_back(&stage);
      if (is_stage_option(member)) targets.push_back(&stage["options"]);
    }
    known.push_back(stage["name"]);
  }
  if (targets.empty()) {
    for (Json& layer : json["layers"]) {
      if (object == layer["name"]) targets.push_back(&layer);
      if (!contains(known, layer["name"].get<std::string>())) known.push_back(layer["name"]);
    }
  }
  if (targets.empty()) fail(ErrorKind::usage, "'{}': unknown name '{}'{}", key, object, did_you_mean(object, known));
  for (Json* target : targets) {
    if (member == "kernel" && target->contains("padding")) target->erase("padding");
    (*target)[member] = parsed;
  }
  // Errors end up naming the key: `net.shift`, not the place in the JSON that the net is kept in.
  return net_from_json(json, object == "net" ? object : fmt::format("{}={}", key, value));
}

std::size_t shared_stages(const NetSpec& a, const NetSpec& b) {
  const nlohmann::json first = to_json(a);
  const nlohmann::json second = to_json(b);
  if (first["encoder"] != second["encoder"]) return 0;
  const auto layers_of = [](const nlohmann::json& net, const StageSpec& stage) {
    nlohmann::json layers;
    for (const auto& layer : net["layers"]) {
      if (contains(stage.train, layer["name"].get<std::string>())) layers.push_back(layer);
    }
    return layers;
  };
  std::size_t shared = 0;
  while (shared < std::min(a.stages.size(), b.stages.size()) && first["stages"][shared] == second["stages"][shared] &&
         layers_of(first, a.stages[shared]) == layers_of(second, b.stages[shared])) {
    ++shared;
  }
  return shared;
}

}  // namespace bitloom::layerwise
