#include "models/gpt/config.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "nn/activation.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

constexpr NamedGpt table[] = {
    {"tiny", "0.9 M parameters besides the vocabulary's: first runs, tests", 4, 4, 128, 256, 128, 3e-3},
    {"small", "11 M: a small corpus on a laptop", 6, 6, 384, 256, 128, 1e-3},
    {"gpt2-124m", "the sizes of GPT-2", 12, 12, 768, 1024, 128, 6e-4},
    {"gpt2-355m", "", 24, 16, 1024, 1024, 128, 3e-4},
    {"gpt2-774m", "", 36, 20, 1280, 1024, 128, 2.5e-4},
    {"gpt2-1.5b", "", 48, 25, 1600, 1024, 128, 2e-4},
    {"1.2b", "those of Megatron-LM, for 8 ranks that divide each layer", 40, 16, 1536, 1024, 1024, 1.5e-4},
    {"2.5b", "", 54, 20, 1920, 1024, 1024, 1.5e-4},
    {"4.2b", "", 64, 24, 2304, 1024, 1024, 1.5e-4},
    {"8.3b", "", 72, 32, 3072, 1024, 1024, 1.5e-4},
};

std::size_t size_of(const Json& json, const char* key, const std::string& name) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_unsigned()) {
    fail(ErrorKind::data, "{}: '{}' is missing or no whole number", name, key);
  }
  return found->get<std::size_t>();
}

}  // namespace

std::uint64_t GptConfig::parameters() const {
  const std::uint64_t w = width;
  // Four matrices of attention with biases, two of the feed-forward part, two layer norms.
  const std::uint64_t block = (3 * w * w + 3 * w) + (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w) + 4 * w;
  return layers * block + (padded_vocabulary() + context) * w + 2 * w;
}

void check(const GptConfig& config) {
  static constexpr std::size_t most = 1 << 20;
  const auto at_least_one = [](const char* field, std::size_t value) {
    if (value == 0 || value > most) fail_field(ErrorKind::usage, field, "{}; expected 1 to {}", value, most);
  };
  at_least_one("layers", config.layers);
  at_least_one("heads", config.heads);
  at_least_one("width", config.width);
  at_least_one("context", config.context);
  at_least_one("vocabulary_multiple", config.vocabulary_multiple);
  if (config.width % config.heads != 0) {
    fail_field(ErrorKind::usage, "heads", "{}; expected a divisor of the width, {}", config.heads, config.width);
  }
  if (config.vocabulary < 2) fail(ErrorKind::usage, "vocabulary: {} tokens; expected at least 2", config.vocabulary);
  if (!(config.dropout >= 0 && config.dropout < 1)) {
    fail_field(ErrorKind::usage, "dropout", "{}; expected 0 <= rate < 1", config.dropout);
  }
  nn::find_activation(config.activation, marked_field("activation"));
  if (config.activation_bits > 4) {
    fail_field(ErrorKind::usage, "activation_bits", "{}; expected 1 to 4, or 0 for all", config.activation_bits);
  }
}

std::span<const NamedGpt> named_gpts() { return table; }

const NamedGpt& find_gpt(std::string_view name, std::string_view argument) { return find_named(table, name, argument); }

GptConfig config_of(const NamedGpt& named) {
  GptConfig config;
  config.layers = named.layers;
  config.heads = named.heads;
  config.width = named.width;
  config.context = named.context;
  config.vocabulary_multiple = named.vocabulary_multiple;
  return config;
}

Json to_json(const GptConfig& config) {
  return {{"layers", config.layers},   {"heads", config.heads},           {"width", config.width},
          {"context", config.context}, {"vocabulary", config.vocabulary}, {"vocabulary_multiple", config.vocabulary_multiple},
          {"dropout", config.dropout}, {"activation", config.activation}};
}

GptConfig parse_gpt_config(const std::string& text, const std::string& name) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) fail(ErrorKind::data, "{}: the net's description is not a JSON object", name);
  GptConfig config;
  config.layers = size_of(json, "layers", name);
  config.heads = size_of(json, "heads", name);
  config.width = size_of(json, "width", name);
  config.context = size_of(json, "context", name);
  config.vocabulary = size_of(json, "vocabulary", name);
  config.vocabulary_multiple = size_of(json, "vocabulary_multiple", name);
  const auto dropout = json.find("dropout");
  const auto activation = json.find("activation");
  if (dropout == json.end() || !dropout->is_number() || activation == json.end() || !activation->is_string()) {
    fail(ErrorKind::data, "{}: 'dropout' or 'activation' is missing or of another type", name);
  }
  config.dropout = dropout->get<double>();
  config.activation = activation->get<std::string>();
  try {
    check(config);
  } catch (const Error& error) {
    fail(ErrorKind::data, "{}: {}", name, error.what());
  }
  return config;
}

}  // namespace bitloom::models
