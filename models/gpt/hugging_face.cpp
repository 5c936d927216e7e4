#include "models/gpt/hugging_face.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "models/foreign_tensors.h"
#include "models/gpt/foreign_names.h"

namespace bitloom::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* config_name = "config.json";
constexpr const char* weights_name = "model.safetensors";

// The functions of transformers' ACT2FN that are here; of several names for one, the first is written.
constexpr auto activation_names = std::to_array<ForeignName>({{"gelu_tanh", "gelu_new"},
                                                              {"gelu_tanh", "gelu_pytorch_tanh"},
                                                              {"gelu_tanh", "gelu_fast"},
                                                              {"gelu", "gelu"},
                                                              {"silu", "silu"},
                                                              {"silu", "swish"},
                                                              {"relu", "relu"},
                                                              {"tanh", "tanh"}});

constexpr auto outer_names = std::to_array<ForeignName>({{"embedding.tokens", "wte.weight"},
                                                         {"embedding.positions", "wpe.weight"},
                                                         {"norm.gain", "ln_f.weight"},
                                                         {"norm.bias", "ln_f.bias"}});

// Their "Conv1D" keeps matrices as (inputs, outputs), as Linear does.
constexpr auto block_names = std::to_array<ForeignName>({{"attention.norm.gain", "ln_1.weight"},
                                                         {"attention.norm.bias", "ln_1.bias"},
                                                         {"attention.qkv.weight", "attn.c_attn.weight"},
                                                         {"attention.qkv.bias", "attn.c_attn.bias"},
                                                         {"attention.projection.weight", "attn.c_proj.weight"},
                                                         {"attention.projection.bias", "attn.c_proj.bias"},
                                                         {"feed_forward.norm.gain", "ln_2.weight"},
                                                         {"feed_forward.norm.bias", "ln_2.bias"},
                                                         {"feed_forward.first.weight", "mlp.c_fc.weight"},
                                                         {"feed_forward.first.bias", "mlp.c_fc.bias"},
                                                         {"feed_forward.second.weight", "mlp.c_proj.weight"},
                                                         {"feed_forward.second.bias", "mlp.c_proj.bias"}});

// Without the prefix.
constexpr ForeignNames their_names{"GPT-2", outer_names, "h", block_names};

// --- config.json ---

// A key of the object, or what it is if it is not there or null. `expected` is for the message about another type.
template <typename T>
T value_of(const Json& json, const char* key, const T& fallback, const std::string& name, const char* expected) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return fallback;
  const bool fits = std::is_same_v<T, bool>          ? found->is_boolean()
                    : std::is_same_v<T, std::size_t> ? found->is_number_unsigned()
                    : std::is_same_v<T, double>      ? found->is_number()
                                                     : found->is_string();
  if (!fits) fail(ErrorKind::data, "{}: '{}' is {}; expected {}", name, key, found->dump(), expected);
  return found->get<T>();
}

std::size_t size_of(const Json& json, const char* key, std::size_t fallback, const std::string& name) {
  return value_of<std::size_t>(json, key, fallback, name, "a whole number");
}

// Requires the value that a Gpt has, where GPT-2 may have another.
void require(const Json& json, const char* key, bool fallback, bool wanted, const std::string& name) {
  const bool value = value_of<bool>(json, key, fallback, name, "true or false");
  if (value != wanted) fail(ErrorKind::data, "{}: '{}' is {}; nets here have {}", name, key, value, wanted);
}

std::string our_activation(const std::string& theirs, const std::string& name) {
  std::vector<std::string_view> known;
  for (const ForeignName& names : activation_names) {
    if (names.theirs == theirs) return std::string(names.ours);
    known.push_back(names.theirs);
  }
  fail(ErrorKind::data, "{}: 'activation_function' is '{}'; expected one of {}", name, theirs, fmt::join(known, ", "));
}

void check_architecture(const Json& json, const GptConfig& config, const std::string& name) {
  const auto type = value_of<std::string>(json, "model_type", "gpt2", name, "a string");
  if (type != "gpt2") fail(ErrorKind::data, "{}: 'model_type' is '{}'; expected 'gpt2'", name, type);
  const auto found = value_of<double>(json, "layer_norm_epsilon", gpt_norm_epsilon, name, "a number");
  if (!(std::abs(found - gpt_norm_epsilon) <= 1e-3 * gpt_norm_epsilon)) {
    fail(ErrorKind::data, "{}: 'layer_norm_epsilon' is {}; nets here have {}", name, found, gpt_norm_epsilon);
  }
  const std::size_t inside = size_of(json, "n_inner", 4 * config.width, name);
  if (inside != 4 * config.width) {
    fail(ErrorKind::data, "{}: 'n_inner' is {}; nets here have four times the width, {}", name, inside, 4 * config.width);
  }
  require(json, "scale_attn_weights", true, true, name);
  require(json, "scale_attn_by_inverse_layer_idx", false, false, name);
  require(json, "add_cross_attention", false, false, name);
  require(json, "tie_word_embeddings", true, true, name);
}

// --- model.safetensors ---

TensorFile load_weights(const fs::path& folder) {
  const fs::path path = folder / weights_name;
  if (fs::exists(path)) return TensorFile::load(path);
  const char* instead = fs::exists(folder / (std::string(weights_name) + ".index.json")) ? "the weights are in several files"
                        : fs::exists(folder / "pytorch_model.bin")                       ? "there is a pytorch_model.bin"
                                                                                         : "there is no such file";
  fail(ErrorKind::data, "{}: {}; expected one file, as save_pretrained(folder, max_shard_size=\"1TB\") writes", path.string(),
       instead);
}

// Takes tensors out of a file, one by one, so that what is left has no place in the net.
class Weights {
 public:
  explicit Weights(const fs::path& folder) : path_((folder / weights_name).string()), file_(load_weights(folder)) {
    if (file_.contains("transformer.wte.weight")) prefix_ = "transformer.";
  }

  // name: without the prefix.
  std::vector<float> take(const std::string& name, const std::vector<std::size_t>& shape) {
    const std::string full = prefix_ + name;
    const auto found = file_.tensors.find(full);
    const std::string label = fmt::format("{}: the tensor '{}'", path_, full);
    if (found == file_.tensors.end()) {
      fail(ErrorKind::data, "{} is missing; expected one of shape [{}]", label, fmt::join(shape, ", "));
    }
    if (found->second.shape != shape) {
      fail(ErrorKind::data, "{} has the shape [{}]; expected [{}]", label, fmt::join(found->second.shape, ", "),
           fmt::join(shape, ", "));
    }
    std::vector<float> values = to_floats(found->second, label);
    file_.tensors.erase(found);
    return values;
  }

  // table: (vocabulary,C) of tokens, which a head of its own must not differ from.
  void check_rest(const std::vector<float>& table, const std::vector<std::size_t>& shape) {
    for (const auto& [name, tensor] : file_.tensors) {
      if (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias")) continue;
      const std::string label = fmt::format("{}: the tensor '{}'", path_, name);
      if (name != "lm_head.weight") fail(ErrorKind::data, "{} has no place in the net that config.json describes", label);
      if (tensor.shape != shape || to_floats(tensor, label) != table) {
        fail(ErrorKind::data, "{} is not equal to '{}wte.weight'; nets here have one table for both", label, prefix_);
      }
    }
  }

 private:
  std::string path_, prefix_;
  TensorFile file_;
};

}  // namespace

GptConfig read_hugging_face_config(const fs::path& folder, std::size_t vocabulary_multiple) {
  const std::string name = (folder / config_name).string();
  const std::string text = read_text(name);
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object() || json_depth(text) > deepest_json) fail(ErrorKind::data, "{}: not a JSON object", name);
  GptConfig config;
  config.layers = size_of(json, "n_layer", 12, name);
  config.heads = size_of(json, "n_head", 12, name);
  config.width = size_of(json, "n_embd", 768, name);
  config.context = size_of(json, "n_positions", size_of(json, "n_ctx", 1024, name), name);
  config.vocabulary = size_of(json, "vocab_size", 50257, name);
  config.vocabulary_multiple = vocabulary_multiple;
  config.dropout = 0;
  for (const char* key : {"embd_pdrop", "attn_pdrop", "resid_pdrop"}) {
    config.dropout = std::max(config.dropout, value_of<double>(json, key, 0.1, name, "a number"));
  }
  config.activation = our_activation(value_of<std::string>(json, "activation_function", "gelu_new", name, "a string"), name);
  check_architecture(json, config, name);
  try {
    check(config);
  } catch (const Error& error) {
    fail(ErrorKind::data, "{}: {}", name, error.what());
  }
  return config;
}

void load_hugging_face(nn::Engine& engine, const fs::path& folder, Gpt& net) {
  Weights weights(folder);
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(net);
  std::vector<float> table;
  std::vector<std::size_t> table_shape;
  for (nn::Parameter* parameter : parameters) {
    const std::vector<std::size_t> shape = unpadded_shape(*parameter, net.config());
    std::vector<float> values = weights.take(their_names.of(parameter->name), shape);
    if (parameter->name == "embedding.tokens") {
      table = values;
      table_shape = shape;
    }
    values.resize(parameter->shape.size());
    engine.write(parameter->value, std::as_bytes(std::span(values)));
  }
  weights.check_rest(table, table_shape);
  nn::refresh_copies(engine, parameters);
}

void save_hugging_face(nn::Engine& engine, Gpt& net, const fs::path& folder, std::int32_t end_of_text) {
  const GptConfig& config = net.config();
  const auto activation = std::find_if(activation_names.begin(), activation_names.end(),
                                       [&](const ForeignName& names) { return names.ours == config.activation; });
  if (activation == activation_names.end()) {
    fail(ErrorKind::usage, "activation '{}': transformers have no such function", config.activation);
  }
  TensorFile file;
  file.metadata["format"] = "pt";
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    file.put("transformer." + their_names.of(parameter->name), unpadded_shape(*parameter, config),
             unpadded_values(engine, *parameter, config));
  }
  file.save(folder / weights_name);
  const Json json = {{"architectures", {"GPT2LMHeadModel"}},
                     {"model_type", "gpt2"},
                     {"vocab_size", config.vocabulary},
                     {"n_positions", config.context},
                     {"n_embd", config.width},
                     {"n_layer", config.layers},
                     {"n_head", config.heads},
                     {"n_inner", nullptr},
                     {"activation_function", activation->theirs},
                     {"resid_pdrop", config.dropout},
                     {"embd_pdrop", config.dropout},
                     {"attn_pdrop", config.dropout},
                     {"layer_norm_epsilon", gpt_norm_epsilon},
                     {"initializer_range", 0.02},
                     {"tie_word_embeddings", true},
                     {"bos_token_id", end_of_text},
                     {"eos_token_id", end_of_text},
                     {"torch_dtype", "float32"}};
  write_atomically(folder / config_name, json.dump(2) + "\n");
}

}  // namespace bitloom::models
