#include "models/gpt/config.h"

#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "models/config_json.h"
#include "nn/activation.h"

namespace bitloom::models {
namespace {

using Json = nlohmann::json;

constexpr NamedGpt gpt_table[] = {
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

// Fields of the description that are counts.
constexpr std::array<SizeField<GptConfig>, 6> gpt_sizes = {{{"layers", &GptConfig::layers},
                                                            {"heads", &GptConfig::heads},
                                                            {"width", &GptConfig::width},
                                                            {"context", &GptConfig::context},
                                                            {"vocabulary", &GptConfig::vocabulary},
                                                            {"vocabulary_multiple", &GptConfig::vocabulary_multiple}}};

}  // namespace

std::uint64_t GptConfig::parameters() const {
  const std::uint64_t w = width;
  // Four matrices of attention with biases, two of the feed-forward part, two layer norms.
  const std::uint64_t block = (3 * w * w + 3 * w) + (w * w + w) + (4 * w * w + 4 * w) + (4 * w * w + w) + 4 * w;
  return layers * block + (padded_vocabulary() + context) * w + 2 * w;
}

void check(const GptConfig& config) {
  for (const auto& [name, size] : gpt_sizes) {
    if (size != &GptConfig::vocabulary) check_size(name, config.*size);
  }
  check_heads_and_dropout(config.heads, config.width, config.dropout);
  if (config.vocabulary < 2) fail(ErrorKind::usage, "vocabulary: {} tokens; expected at least 2", config.vocabulary);
  nn::find_activation(config.activation, marked_field("activation"));
  if (config.activation_bits > 4) {
    fail_field(ErrorKind::usage, "activation_bits", "{}; expected 1 to 4, or 0 for all", config.activation_bits);
  }
}

std::span<const NamedGpt> named_gpts() { return gpt_table; }

const NamedGpt& find_gpt(std::string_view name, std::string_view argument) { return find_named(gpt_table, name, argument); }

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
  Json json{{"dropout", config.dropout}, {"activation", config.activation}};
  write_sizes(json, gpt_sizes, config);
  return json;
}

GptConfig parse_gpt_config(const std::string& text, const std::string& name) {
  const Json json = parse_description(text, name);
  GptConfig config;
  read_sizes(json, gpt_sizes, config, name);
  read_dropout_and_activation(json, config, name);
  check_read(config, name);
  return config;
}

}  // namespace bitloom::models
