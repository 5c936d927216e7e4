// A transformer over the tokens of a text and of an image (Ramesh et al. 2021, section 2.2 and appendix B.1): its sizes, named
// ones, and its description as JSON.
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

// Pairs of queries and keys that a layer's attention sees among image tokens; text is causal, and an image sees all of it.
enum class ImageAttention : std::uint8_t { row, column, convolutional };

struct DalleConfig {
  std::size_t layers = 6;
  std::size_t heads = 4;
  std::size_t width = 256;  // a multiple of the heads
  std::size_t text = 32;    // positions of text; those behind a caption's end have padding tokens of their own
  std::size_t text_vocabulary = 0;
  std::size_t grid = 8;     // an image has grid x grid tokens, in raster order
  std::size_t codes = 512;  // vocabulary of image tokens
  std::size_t extent = 11;  // side of the window of convolutional attention: odd; the grid's, if that is smaller
  double dropout = 0.1;     // of embeddings, of attention's softmax, and before every residual sum
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

  std::size_t image() const { return grid * grid; }
  std::size_t tokens() const { return text + image(); }
  // Inputs are numbered together: tokens of text, then padding by position, then codes.
  std::size_t padding_id(std::size_t position) const { return text_vocabulary + position; }
  std::size_t code_id(std::size_t code) const { return text_vocabulary + text + code; }
  std::size_t inputs() const { return text_vocabulary + text + codes; }
  // Attention of layer i, counted from 0: convolutional for the last; column for the second of every four; row for the others.
  ImageAttention attention_of(std::size_t i) const;
  // Numbers that are learned.
  std::uint64_t parameters() const;
};

// Throws Error(usage) that names the field, its value and what was expected.
void check(const DalleConfig& config);

struct NamedDalle {
  const char* name;
  const char* summary;
  std::size_t layers, heads, width, text, grid, codes;
  double rate;  // a peak of the learning rate that suits the size
};
// tiny, emoji, emoji-16, and the three sizes of Ramesh et al. 2021.
std::span<const NamedDalle> named_dalles();
// Throws Error(usage) that names the field `net` and the closest name.
const NamedDalle& find_dalle(std::string_view name);
// Without the vocabulary of text, which the tokenizer says.
DalleConfig config_of(const NamedDalle& named);

// The architecture, without what is kept for backward passes.
nlohmann::json to_json(const DalleConfig& config);
// Throws Error(data) that names `name` and what is missing or wrong in it.
DalleConfig parse_dalle_config(const std::string& json, const std::string& name);

}  // namespace bitloom::models
