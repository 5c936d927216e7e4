#include <nlohmann/json.hpp>
#include <vector>

#include "cli/inspect_dvae.h"
#include "cli/net_table.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "models/dvae/dvae.h"
#include "models/dvae/model_file.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

}  // namespace

Json describe_dvae(const models::DvaeConfig& config) {
  models::Dvae net(config);
  Json json = {{"kind", models::dvae_kind},
               {"net", config.name},
               {"parameters", net.parameters()},
               {"encoder_parameters", net.encoder_parameters()},
               {"decoder_parameters", net.decoder_parameters()},
               {"macs", net.cost() / 2},
               {"side", config.side},
               {"grid", config.grid()},
               {"codes", config.codes}};
  for (const models::DvaeRow& row : models::describe(net)) {
    json["layers"].push_back({{"name", row.name},
                              {"output", fmt::format("{} x {} x {}", row.output[1], row.output[2], row.output[3])},
                              {"parameters", row.parameters},
                              {"macs", row.cost / 2}});
  }
  return json;
}

Json describe_dvae_model(const std::filesystem::path& file) {
  const auto model = models::dvae_description_of(TensorFile::load(file, Checksum::required), file.string());
  Json json = describe_dvae(model.config);
  json["file"] = file.string();
  json["file_bytes"] = std::filesystem::file_size(file);
  json["least_log_b"] = model.least_log_b;
  return json;
}

void print_dvae(Terminal& terminal, const Json& json) {
  const auto number = [](const Json& value) { return format_count(static_cast<std::uint64_t>(value.get<double>())); };
  const auto size = [&](const char* key) { return json[key].get<std::size_t>(); };
  terminal.print("net '{}': images of {} x {} pixels, {} x {} tokens of {} codes; encoder of {} parameters, decoder of {}\n",
                 json["net"].get<std::string>(), size("side"), size("side"), size("grid"), size("grid"), size("codes"),
                 number(json["encoder_parameters"]), number(json["decoder_parameters"]));
  std::vector<std::vector<std::string>> rows{{"layers", "output", "parameters", "multiply-adds per image"}};
  for (const Json& layer : json["layers"]) {
    rows.push_back({layer["name"], layer["output"], number(layer["parameters"]), number(layer["macs"])});
  }
  rows.push_back({"all", "", number(json["parameters"]), number(json["macs"])});
  terminal.line(table(rows));
  if (!json.contains("file")) return;
  terminal.print("file: {} ({})", json["file"].get<std::string>(), format_bytes(json["file_bytes"].get<std::uint64_t>()));
}

}  // namespace bitloom::cli
