#include "models/dalle/config.h"

#include <array>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "models/config_json.h"
#include "nn/activation.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

// Rates of the large ones are the paper's.
constexpr NamedDalle dalle_table[] = {
    {"tiny", "tests", 2, 2, 32, 12, 4, 16, 3e-3},
    {"emoji", "images of 64 x 64 pixels as 8 x 8 tokens, on two cores", 6, 4, 256, 32, 8, 512, 1e-3},
    {"emoji-16", "the same as 16 x 16 tokens", 6, 4, 256, 32, 16, 512, 1e-3},
    {"2.8b", "width 1920 of Ramesh et al. 2021", 64, 30, 1920, 256, 32, 8192, 4.5e-4},
    {"5.6b", "width 2688", 64, 42, 2688, 256, 32, 8192, 4.5e-4},
    {"12b", "width 3968", 64, 62, 3968, 256, 32, 8192, 4.5e-4},
};

// Fields of the description that are counts.
constexpr std::array<SizeField<DalleConfig>, 8> dalle_sizes = {{{"layers", &DalleConfig::layers},
                                                                {"heads", &DalleConfig::heads},
                                                                {"width", &DalleConfig::width},
                                                                {"text_positions", &DalleConfig::text},
                                                                {"text_vocabulary", &DalleConfig::text_vocabulary},
                                                                {"grid", &DalleConfig::grid},
                                                                {"codes", &DalleConfig::codes},
                                                                {"extent", &DalleConfig::extent}}};

}  // namespace

ImageAttention DalleConfig::attention_of(std::size_t i) const {
  if (i + 1 == layers) return ImageAttention::convolutional;
  return i % 4 == 1 ? ImageAttention::column : ImageAttention::row;
}

std::uint64_t DalleConfig::parameters() const {
  const std::uint64_t w = width;
  const std::uint64_t block = (3 * w * w + 3 * w) + (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w) + 4 * w;
  return layers * block + (inputs() + text + 2 * grid) * w + 2 * w + (text_vocabulary + codes) * w;
}

void check(const DalleConfig& config) {
  for (const auto& [name, size] : dalle_sizes) check_size(name, config.*size);
  check_heads_and_dropout(config.heads, config.width, config.dropout);
  if (config.grid > 256) fail(ErrorKind::usage, "grid: {}; expected at most 256", config.grid);
  if (config.text < 2) fail_field(ErrorKind::usage, "text_positions", "{}; expected at least 2", config.text);
  if (config.extent % 2 == 0) fail(ErrorKind::usage, "extent: {}; expected an odd number", config.extent);
  nn::find_activation(config.activation, marked_field("activation"));
  if (config.activation_bits > 4) {
    fail_field(ErrorKind::usage, "activation_bits", "{}; expected 1 to 4, or 0 for all", config.activation_bits);
  }
}

std::span<const NamedDalle> named_dalles() { return dalle_table; }

const NamedDalle& find_dalle(std::string_view name) { return find_named(dalle_table, name, marked_field("net")); }

DalleConfig config_of(const NamedDalle& named) {
  DalleConfig config;
  config.layers = named.layers;
  config.heads = named.heads;
  config.width = named.width;
  config.text = named.text;
  config.grid = named.grid;
  config.codes = named.codes;
  return config;
}

Json to_json(const DalleConfig& config) {
  Json json{{"dropout", config.dropout}, {"activation", config.activation}};
  write_sizes(json, dalle_sizes, config);
  return json;
}

DalleConfig parse_dalle_config(const std::string& text, const std::string& name) {
  const Json json = parse_description(text, name);
  DalleConfig config;
  read_sizes(json, dalle_sizes, config, name);
  read_dropout_and_activation(json, config, name);
  check_read(config, name);
  return config;
}

}  // namespace bitloom::models
