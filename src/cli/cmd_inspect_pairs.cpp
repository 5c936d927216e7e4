#include <nlohmann/json.hpp>

#include "cli/inspect_pairs.h"
#include "core/progress.h"
#include "models/clip/model_file.h"
#include "models/dalle/model_file.h"
#include "models/model_kind.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

Json described(const std::filesystem::path& file, const char* kind, const Json& net, nn::Layer& layers, double cost,
               const data::Tokenizer& tokenizer) {
  std::uint64_t parameters = 0;
  for (const nn::Parameter* parameter : nn::parameters_of(layers)) parameters += parameter->shape.size();
  return {{"kind", kind},
          {"net", net},
          {"parameters", parameters},
          {"macs", cost / 2},
          {"tokenizer", tokenizer.kind()},
          {"file", file.string()},
          {"file_bytes", std::filesystem::file_size(file)}};
}

}  // namespace

Json describe_dalle_model(const std::filesystem::path& file) {
  nn::Engine engine;
  const models::LoadedDalle loaded = models::load_dalle(engine, file);
  Json json = described(file, models::dalle_kind, to_json(loaded.net->config()), loaded.net->layers(), loaded.net->cost(1),
                        *loaded.tokenizer);
  json["dvae"] = loaded.dvae;
  return json;
}

Json describe_clip_model(const std::filesystem::path& file) {
  nn::Engine engine;
  const models::LoadedClip loaded = models::load_clip(engine, file);
  const models::ClipConfig& config = loaded.net->config();
  const data::ImageShape& image = config.image.image;
  Json json = described(file, models::clip_kind, to_json(config), *loaded.net,
                        loaded.net->cost({1, image.height, image.width, image.channels}), *loaded.tokenizer);
  json["embedding"] = config.embedding();
  return json;
}

void print_pairs_model(Terminal& terminal, const Json& json) {
  terminal.print("{}: {} parameters, {} multiply-adds per pair, {} tokenizer", json["kind"].get<std::string>(),
                 format_count(json["parameters"].get<std::uint64_t>()),
                 format_count(static_cast<std::uint64_t>(json["macs"].get<double>())), json["tokenizer"].get<std::string>());
  for (const auto& [name, value] : json["net"].items()) {
    if (!value.is_object()) terminal.print("  {:<22}{}", name, value.dump());
  }
  if (json.contains("dvae")) terminal.print("  {:<22}{}", "discrete VAE", json["dvae"].get<std::string>());
  terminal.print("file: {} ({})", json["file"].get<std::string>(), format_bytes(json["file_bytes"].get<std::uint64_t>()));
}

}  // namespace bitloom::cli
