// Configuration of a GPT-style transformer (Radford et al. 2019; Shoeybi et al. 2019, section 3 and table 1), its named sizes,
// and its description as JSON.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/safetensors.h"
#include "nn/activation.h"

namespace bitloom::models {

struct GptConfig {
  std::size_t layers = 4;
  std::size_t heads = 4;
  std::size_t width = 128;         // a multiple of the heads
  std::size_t context = 256;       // tokens that it sees at once
  std::size_t vocabulary = 50257;  // tokens
  // The number of rows of the tables of tokens is a multiple of this (Shoeybi et al. 2019, section 3.2: 128 times the ranks
  // that divide them).
  std::size_t vocabulary_multiple = 128;
  double dropout = 0.1;  // of embeddings, of attention's softmax, and before every residual sum
  std::string activation = "gelu_tanh";
  unsigned activation_bits = 0;  // kept of every activation's input for the backward pass; 0: all
  nn::Quantiser activation_quantiser = nn::Quantiser::few_bit;
  bool recompute = false;  // keep of every block its input alone, and compute the rest again
  // Type of what residual branches compute where the identity path, from the embeddings to the last norm, has P (Ramesh et al.
  // 2021, figure 4), for training with gradient scales of blocks; none: both have V.
  std::optional<DType> branch_values = {};
  // For deep nets (Huang et al. 2019, section 4): initial weights of the feed-forward parts divided by the layers, and a
  // magnitude at which the loss of training clips logits; 0: none.
  bool small_feed_forward = false;
  double logit_clip = 0;

  std::size_t padded_vocabulary() const {
    return (vocabulary + vocabulary_multiple - 1) / vocabulary_multiple * vocabulary_multiple;
  }
  // Numbers that are learned, the padding of the vocabulary included.
  std::uint64_t parameters() const;
};

// Throws Error(usage) that names the field, its value and what was expected.
void check(const GptConfig& config);

struct NamedGpt {
  const char* name;
  const char* summary;
  std::size_t layers, heads, width, context, vocabulary_multiple;
  double rate;  // a peak of the learning rate that suits the size
};

// tiny, small, gpt2-124m ... gpt2-1.5b, and 1.2b ... 8.3b of Shoeybi et al. 2019.
std::span<const NamedGpt> named_gpts();
// Throws Error(usage) that names `argument` and the closest name.
const NamedGpt& find_gpt(std::string_view name, std::string_view argument = "`net`");
GptConfig config_of(const NamedGpt& named);

// The architecture: what a trained model's weights depend on, dropout and activation too; not what is kept for backward passes.
nlohmann::json to_json(const GptConfig& config);
// Throws Error(data) that names `name` and what is missing or wrong in it.
GptConfig parse_gpt_config(const std::string& json, const std::string& name);

}  // namespace bitloom::models
