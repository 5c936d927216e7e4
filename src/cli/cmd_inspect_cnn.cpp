#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "cli/inspect_cnn.h"
#include "cli/net_table.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "models/cnn/cnn.h"
#include "models/cnn/model_file.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

std::string shape_text(const nn::Shape& shape) {
  if (shape.axes() == 4) return fmt::format("{} x {} x {}", shape[1], shape[2], shape[3]);
  return fmt::format("{}", shape.back());
}

}  // namespace

Json describe_cnn(const models::CnnConfig& config) {
  models::Cnn net(config);
  Json json = {{"kind", models::cnn_kind},        {"net", config.name},
               {"activation", config.activation}, {"parameters", net.parameters()},
               {"macs", net.cost() / 2},          {"image", {config.image.height, config.image.width, config.image.channels}},
               {"classes", config.classes}};
  for (const models::CnnRow& row : models::describe(net)) {
    json["layers"].push_back({{"name", row.name},
                              {"kind", row.kind},
                              {"output", shape_text(row.output)},
                              {"parameters", row.parameters},
                              {"macs", row.cost / 2}});
  }
  return json;
}

Json describe_cnn_model(const std::filesystem::path& file) {
  const models::CnnDescription model = models::cnn_description_of(TensorFile::load(file, Checksum::required), file.string());
  Json json = describe_cnn(model.config);
  json["file"] = file.string();
  json["file_bytes"] = std::filesystem::file_size(file);
  json["class_names"] = model.class_names;
  json["pixel_mean"] = model.scale.mean;
  json["pixel_deviation"] = model.scale.deviation;
  return json;
}

void print_cnn(Terminal& terminal, const Json& json) {
  const auto number = [](const Json& value) { return format_count(static_cast<std::uint64_t>(value.get<double>())); };
  const Json& image = json["image"];
  terminal.print("net '{}': images of {} x {} pixels of {} colours, {} classes, activation {}\n",
                 json["net"].get<std::string>(), image[0].get<std::size_t>(), image[1].get<std::size_t>(),
                 image[2].get<std::size_t>(), json["classes"].get<std::size_t>(), json["activation"].get<std::string>());
  std::vector<std::vector<std::string>> rows{{"layer", "kind", "output", "parameters", "multiply-adds per image"}};
  for (const Json& layer : json["layers"]) {
    rows.push_back({layer["name"], layer["kind"], layer["output"], number(layer["parameters"]), number(layer["macs"])});
  }
  rows.push_back({"all", "", "", number(json["parameters"]), number(json["macs"])});
  terminal.line(table(rows));
  if (!json.contains("file")) return;
  terminal.print("file: {} ({})", json["file"].get<std::string>(), format_bytes(json["file_bytes"].get<std::uint64_t>()));
  terminal.print("classes: {}", fmt::join(json["class_names"].get<std::vector<std::string>>(), ", "));
}

}  // namespace bitloom::cli
