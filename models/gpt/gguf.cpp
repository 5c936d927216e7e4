#include "models/gpt/gguf.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "models/foreign_tensors.h"
#include "models/gpt/foreign_names.h"
#include "models/gpt/gguf_tokenizer.h"

namespace bitloom::models {
namespace {

constexpr const char* architecture = "gpt2";
constexpr const char* gguf_activation = "gelu_tanh";  // llama.cpp's gpt2 has no other
constexpr std::uint32_t quantization_version = 2;     // of ggml, when it has q8_0 as here

constexpr auto outer_tensors = std::to_array<ForeignName>({{"embedding.tokens", "token_embd.weight"},
                                                           {"embedding.positions", "position_embd.weight"},
                                                           {"norm.gain", "output_norm.weight"},
                                                           {"norm.bias", "output_norm.bias"}});

constexpr auto block_tensors = std::to_array<ForeignName>({{"attention.norm.gain", "attn_norm.weight"},
                                                           {"attention.norm.bias", "attn_norm.bias"},
                                                           {"attention.qkv.weight", "attn_qkv.weight"},
                                                           {"attention.qkv.bias", "attn_qkv.bias"},
                                                           {"attention.projection.weight", "attn_output.weight"},
                                                           {"attention.projection.bias", "attn_output.bias"},
                                                           {"feed_forward.norm.gain", "ffn_norm.weight"},
                                                           {"feed_forward.norm.bias", "ffn_norm.bias"},
                                                           {"feed_forward.first.weight", "ffn_up.weight"},
                                                           {"feed_forward.first.bias", "ffn_up.bias"},
                                                           {"feed_forward.second.weight", "ffn_down.weight"},
                                                           {"feed_forward.second.bias", "ffn_down.bias"}});

constexpr ForeignNames gguf_names{"a GGUF file", outer_tensors, "blk", block_tensors};

// How one parameter goes into the file.
struct Layout {
  std::vector<std::size_t> shape;  // there
  bool is_transposed = false;
  bool is_f32 = false;  // whatever type is asked for
};

Layout layout_of(const nn::Parameter& parameter, const GptConfig& config) {
  Layout layout{unpadded_shape(parameter, config)};
  layout.is_f32 = layout.shape.size() == 1 || parameter.name == "embedding.positions";
  layout.is_transposed = layout.shape.size() == 2 && !parameter.name.starts_with("embedding.");
  if (layout.is_transposed) std::ranges::reverse(layout.shape);  // Linear keeps (inputs, outputs)
  return layout;
}

GgufType type_in_file(const Layout& layout, GgufType wanted) {
  if (layout.is_f32) return GgufType::f32;
  if (wanted == GgufType::q8_0 && layout.shape.back() % q8_0_block != 0) return GgufType::f16;
  return wanted;
}

// Number of llama.cpp's enum llama_ftype.
std::uint32_t file_type(GgufType type) {
  switch (type) {
    case GgufType::f32: return 0;
    case GgufType::f16: return 1;
    case GgufType::q8_0: return 7;
  }
  fail(ErrorKind::internal, "no file type for the GGUF type {}", static_cast<std::uint32_t>(type));
}

void set_architecture(GgufFile& file, const GptConfig& config) {
  const auto set = [&](const char* key, std::size_t value) {
    file.set(fmt::format("{}.{}", architecture, key), static_cast<std::uint32_t>(value));
  };
  set("context_length", config.context);
  set("embedding_length", config.width);
  set("feed_forward_length", 4 * config.width);
  set("block_count", config.layers);
  set("attention.head_count", config.heads);
  file.set(fmt::format("{}.attention.layer_norm_epsilon", architecture), static_cast<float>(gpt_norm_epsilon));
}

}  // namespace

GgufSummary save_gguf(nn::Engine& engine, Gpt& net, const data::Tokenizer& tokenizer, GgufType type, const std::string& name,
                      const std::filesystem::path& path) {
  const GptConfig& config = net.config();
  if (config.activation != gguf_activation) {
    fail(ErrorKind::usage, "activation: {}; expected {}, the only one that the architecture '{}' of GGUF files has",
         config.activation, gguf_activation, architecture);
  }
  GgufFile file;
  file.set("general.architecture", std::string(architecture));
  file.set("general.name", name);
  file.set("general.file_type", file_type(type));
  file.set("general.quantization_version", quantization_version);
  set_architecture(file, config);
  set_gguf_tokenizer(file, tokenizer);
  GgufSummary summary;
  for (const nn::Parameter* parameter : nn::parameters_of(net)) {
    const Layout layout = layout_of(*parameter, config);
    const std::string tensor = gguf_names.of(parameter->name);
    const GgufType found = type_in_file(layout, type);
    if (found == GgufType::f16 && type == GgufType::q8_0) summary.in_f16.push_back(tensor);
    file.add(tensor, found, layout.shape, [&engine, &config, parameter, layout] {
      std::vector<float> values = unpadded_values(engine, *parameter, config);
      return layout.is_transposed ? transposed(values, layout.shape[1], layout.shape[0]) : values;
    });
    ++summary.tensors;
  }
  file.save(path);
  return summary;
}

}  // namespace bitloom::models
