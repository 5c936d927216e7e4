// bitloom inspect: what a model, a run or a net consists of.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/inspect_cnn.h"
#include "cli/inspect_dvae.h"
#include "cli/inspect_flips.h"
#include "cli/inspect_gpt.h"
#include "cli/inspect_pairs.h"
#include "cli/model_source.h"
#include "cli/net_table.h"
#include "core/error.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/progress.h"
#include "core/suggest.h"
#include "core/text.h"
#include "layerwise/model.h"
#include "models/binary/named_nets.h"
#include "models/cnn/model_file.h"
#include "models/gpt/model_file.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

Json layers_json(const std::vector<LayerSummary>& layers) {
  Json list = Json::array();
  for (const LayerSummary& layer : layers) {
    list.push_back({{"name", layer.name},
                    {"inputs", layer.inputs},
                    {"output", layer.output},
                    {"kernel", layer.kernel},
                    {"weights", layer.weights},
                    {"thresholds", layer.thresholds},
                    {"weight_bits", layer.weight_bits},
                    {"bit_macs", layer.bit_macs}});
  }
  return list;
}

// Description of a net alone, without a model.
Json describe_net(const layerwise::NetSpec& net, const layerwise::MapShape& encoder) {
  Json json = {{"net", net.name},          {"classifier", net.classifier}, {"mirror", net.views.mirror},
               {"shift", net.views.shift}, {"sure", net.views.sure},       {"views", net.views.count()}};
  json["encoder"] = {
      {"kind", net.encoder.kind}, {"height", encoder.height}, {"width", encoder.width}, {"bits", encoder.channels}};
  json["layers"] = layers_json(summarise_layers(net, encoder));
  std::uint64_t bits = 0;
  std::uint64_t macs = 0;
  for (const Json& layer : json["layers"]) {
    bits += layer["weight_bits"].get<std::uint64_t>();
    macs += layer["bit_macs"].get<std::uint64_t>();
  }
  json["weight_bits"] = bits;
  json["bit_macs"] = macs;
  for (const layerwise::StageSpec& stage : net.stages) {
    json["stages"].push_back(
        {{"name", stage.name}, {"train", stage.train}, {"epochs", stage.epochs}, {"head", stage.head.kind}});
  }
  return json;
}

// Seconds that training took, if the model lies in the folder of its run: the model itself does not depend on how its run went.
std::optional<double> training_seconds(const std::filesystem::path& model) {
  const std::filesystem::path metrics = model.parent_path() / metrics_file;
  if (model.filename() != model_file || !std::filesystem::exists(metrics)) return std::nullopt;
  try {
    const std::vector<Json> lines = read_metrics(metrics);
    const auto result = std::find_if(lines.rbegin(), lines.rend(), [](const Json& line) {
      return line.value("event", Json()) == "result" && line.contains("seconds") && line["seconds"].is_number();
    });
    if (result != lines.rend()) return (*result)["seconds"].get<double>();
  } catch (const Error&) {
    // A model can be shown without them.
  }
  return std::nullopt;
}

Json describe_model(const layerwise::Model& model, const std::filesystem::path& file) {
  Json json = describe_net(model.net, model.encoder.output());
  json["file"] = file.string();
  json["file_bytes"] = std::filesystem::file_size(file);
  json["classes"] = model.class_names;
  json["encoder"]["patch"] = model.encoder.patch();
  json["encoder"]["bytes"] = model.encoder.bytes();
  json["encoder"]["macs"] = model.encoder.macs();
  for (const auto& [layer, head] : model.heads) {
    json["heads"].push_back({{"layer", layer},
                             {"kind", head.spec().kind},
                             {"grid", head.spec().grid},
                             {"bytes", head.bytes()},
                             {"macs", head.macs()},
                             {"votes", contains(model.net.classifier, layer)}});
  }
  json["head_bytes"] = model.head_bytes();
  json["head_macs"] = model.head_macs();
  json["notes"] = model.notes;
  if (const auto seconds = training_seconds(file)) json["training_seconds"] = *seconds;
  return json;
}

std::string number(const Json& value) { return format_count(value.get<std::uint64_t>()); }

void print(Terminal& terminal, const Json& json) {
  const layerwise::Views shown{json["mirror"].get<bool>(), json["shift"].get<std::size_t>(), json["sure"].get<double>()};
  std::string vote = shown.count() == 1 ? "" : fmt::format(", with {} images as test-time augmentation", shown.names());
  if (shown.stop_early()) vote += fmt::format(", until a class has a probability of {}", shown.sure);
  terminal.print("net '{}'{}", json["net"].get<std::string>(), vote);
  const Json& encoder = json["encoder"];
  std::string line = fmt::format("encoder: {}, {} x {} pixels of {} bits", encoder["kind"].get<std::string>(),
                                 encoder["height"].get<std::size_t>(), encoder["width"].get<std::size_t>(),
                                 encoder["bits"].get<std::size_t>());
  if (encoder.contains("bytes")) {
    line += fmt::format("; {}, {} multiply-adds per image", format_bytes(encoder["bytes"].get<std::uint64_t>()),
                        number(encoder["macs"]));
  }
  terminal.print("{}\n", line);
  std::vector<std::vector<std::string>> rows{{"layer", "inputs", "output", "kernel", "weights", "bits", "bit-MACs per image"}};
  for (const Json& layer : json["layers"]) {
    std::string kind = layer["weights"];
    if (layer["thresholds"] != 1) kind += fmt::format(", {} thresholds", number(layer["thresholds"]));
    rows.push_back({layer["name"], layer["inputs"], layer["output"], layer["kernel"], kind, number(layer["weight_bits"]),
                    number(layer["bit_macs"])});
  }
  rows.push_back({"all", "", "", "", "", number(json["weight_bits"]), number(json["bit_macs"])});
  terminal.line(table(rows));
  if (json.contains("heads")) {
    rows = {{"head on", "kind", "grid", "size", "multiply-adds per image", "in the ensemble"}};
    for (const Json& head : json["heads"]) {
      rows.push_back({head["layer"], head["kind"], std::to_string(head["grid"].get<std::size_t>()),
                      format_bytes(head["bytes"].get<std::uint64_t>()), number(head["macs"]),
                      head["votes"].get<bool>() ? "yes" : "no"});
    }
    terminal.line(table(rows));
    const auto views = json["views"].get<std::size_t>();
    terminal.print("per image{}: {} bit-MACs, {} multiply-adds of encoder and heads",
                   views == 1 ? ""
                              : fmt::format(" and its test-time augmentation, {}{} images together",
                                            shown.stop_early() ? "up to " : "", views),
                   format_count(views * json["bit_macs"].get<std::uint64_t>()),
                   format_count(views * (json["head_macs"].get<std::uint64_t>() + encoder["macs"].get<std::uint64_t>())));
    terminal.print("file: {} ({})", json["file"].get<std::string>(), format_bytes(json["file_bytes"].get<std::uint64_t>()));
    terminal.print("classes: {}", fmt::join(json["classes"].get<std::vector<std::string>>(), ", "));
    for (const auto& [key, value] : json["notes"].items()) terminal.print("{}: {}", key, value.get<std::string>());
    if (json.contains("training_seconds")) {
      terminal.print("trained in {}", format_duration(json["training_seconds"].get<double>()));
    }
    return;
  }
  rows = {{"stage", "trains", "epochs", "head"}};
  for (const Json& stage : json["stages"]) {
    rows.push_back({stage["name"], fmt::format("{}", fmt::join(stage["train"].get<std::vector<std::string>>(), ", ")),
                    std::to_string(stage["epochs"].get<std::size_t>()), stage["head"]});
  }
  terminal.line(table(rows));
}

// A description and the function that prints it.
struct Shown {
  Json description;
  void (*print)(Terminal& terminal, const Json& description);
};

// Names of all kinds, each once.
std::vector<std::string> all_net_names() {
  std::vector<std::string> all;
  for (const std::vector<std::string>& names : {models::binary_net_names(), models::cnn_names(), models::dvae_names()}) {
    std::ranges::copy_if(names, std::back_inserter(all), [&](const std::string& name) { return !contains(all, name); });
  }
  return all;
}

// By a name that no net of another kind has.
bool is_dvae(const std::string& name) {
  return contains(models::dvae_names(), name) && !contains(models::cnn_names(), name) &&
         !contains(models::binary_net_names(), name);
}

constexpr std::int64_t most_per_axis = 65536;

// A named net or one in a file. The list of a binary net's layers has names, that of another kinds.
Shown describe_named(const std::string& name, const std::string& size) {
  std::vector<std::size_t> sizes;
  for (const std::string& part : split(size, 'x')) {
    const std::int64_t length = parse_int(part).value_or(0);
    sizes.push_back(length > most_per_axis ? 0 : static_cast<std::size_t>(std::max<std::int64_t>(length, 0)));
  }
  if (sizes.size() != 3 || std::find(sizes.begin(), sizes.end(), 0U) != sizes.end()) {
    fail(ErrorKind::usage, "--image-size: '{}' is not HEIGHTxWIDTHxCOLOURS of at most {} each, such as 32x32x3", size,
         most_per_axis);
  }
  if (const auto names = all_net_names(); name.find_first_of("/.") == std::string::npos && !contains(names, name)) {
    fail(ErrorKind::usage, "unknown net '{}'{}; a file's name needs a '/' or a '.'", name, did_you_mean(name, names));
  }
  if (is_dvae(name)) return {describe_dvae(models::find_dvae(name)), &print_dvae};
  const bool is_named = contains(models::cnn_names(), name) && !contains(models::binary_net_names(), name);
  const auto is_cnn_file = [&] {
    if (!std::filesystem::is_regular_file(name)) return false;
    const Json json = Json::parse(read_text(name), nullptr, false, true);
    return json.is_object() && json.contains("layers") && json["layers"].is_array() && !json["layers"].empty() &&
           json["layers"][0].is_object() && json["layers"][0].contains("kind") && !json["layers"][0].contains("name");
  };
  if (is_named || is_cnn_file()) {
    constexpr std::size_t classes = 10;
    models::CnnConfig config = models::find_cnn(name);
    config.image = {sizes[0], sizes[1], sizes[2]};
    config.classes = classes;
    return {describe_cnn(config), &print_cnn};
  }
  const layerwise::NetSpec net = models::find_binary_net(name);
  return {describe_net(net, encoder_output(net.encoder, sizes[0], sizes[1], sizes[2])), &print};
}

Shown describe_file(const std::filesystem::path& file) {
  const std::string kind = kind_of_model(file);
  if (kind == models::gpt_kind) return {describe_gpt(file), &print_gpt};
  if (kind == models::cnn_kind) return {describe_cnn_model(file), &print_cnn};
  if (kind == models::dvae_kind) return {describe_dvae_model(file), &print_dvae};
  if (kind == models::dalle_kind) return {describe_dalle_model(file), &print_pairs_model};
  if (kind == models::clip_kind) return {describe_clip_model(file), &print_pairs_model};
  return {describe_model(layerwise::Model::load(file), file), &print};
}

// A named net or a file that is no safetensors file.
bool is_net(const std::string& argument) {
  if (contains(all_net_names(), argument)) return true;
  if (argument.ends_with(".json")) return true;
  return !std::filesystem::exists(argument) && argument.find_first_of("/.") == std::string::npos;
}

}  // namespace

int inspect(Session& session, std::span<const std::string> args) {
  std::vector<std::string> arguments;
  std::string size = "32x32x3";
  bool json = false;
  bool flips = false;
  std::size_t images = 512;
  Options options(
      "bitloom inspect MODEL|RUN|NET [options]",
      "Shows the layers of a model, a run's model, a named net or a net file (*.json): sizes in bits and bytes, bit-MACs\n"
      "(one weight bit meets one input bit) per image. Of a float net: layers, parameters, multiply-adds per image; of a GPT: "
      "architecture, parameters, "
      "tokenizer.");
  options.arguments(arguments, "MODEL|RUN|NET", 1, 1);
  options.text("image-size", size, "HxWxC", "Height and width in pixels, and colours, of the images (for nets)");
  options.flag(
      "flips", flips,
      "Instead, of a run's binary net: how many flips of single weights lower the loss, and how well the changes by one, "
      "ten, ... at once are foretold; kept in RUN/flips.json, for `bitloom report`");
  options.count("images", images, 1, 1000000, "Number of training images, and of held-out ones, for --flips");
  const std::array<Options::Need, 1> needs{{{"images", "flips", {}}}};
  options.needs(needs);
  options.flag("json", json, "One JSON object instead of tables");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  session.on_root([&] {
    if (flips && is_net(arguments.front())) {
      fail(ErrorKind::usage, "--flips: {} is a net without trained weights; expected a run", arguments.front());
    }
    const Shown shown = is_net(arguments.front()) ? describe_named(arguments.front(), size) : [&] {
      const std::filesystem::path file = find_model(arguments.front());
      if (options.source("image-size") != Options::Source::none) {
        fail(ErrorKind::usage, "--image-size: {} has no effect; {} is a model, which knows its images", size, file.string());
      }
      session.terminal.note(checkpoint_note(file));
      if (flips) return Shown{study_run_flips(arguments.front(), file, images, session.terminal), &print_flips};
      return describe_file(file);
    }();
    json ? session.terminal.json(shown.description) : shown.print(session.terminal, shown.description);
  });
  return exit_done;
}

}  // namespace bitloom::cli
