// Blocks of transformers, which all nets made of them share: self-attention and a feed-forward part in residual branches, a
// layer norm before each (Radford et al. 2019; Shoeybi et al. 2019, section 3).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "nn/activation.h"
#include "nn/layer.h"
#include "nn/layers/tokens.h"
#include "train/parallel/tensor.h"

namespace bitloom::models {

struct BlockConfig {
  std::size_t layers = 1, heads = 1, width = 1;  // width a multiple of the heads
  double dropout = 0;                            // of attention's softmax, and before every residual sum
  std::string activation = "gelu_tanh";
  unsigned activation_bits = 0;  // kept of every activation's input for the backward pass; 0: all
  nn::Quantiser activation_quantiser = nn::Quantiser::few_bit;
  bool recompute = false;  // keep of every block its input alone, and compute the rest again
  // Type of what residual branches compute where the identity path, from the embeddings to the last norm, has P (Ramesh et al.
  // 2021, figure 4), for training with gradient scales of blocks; none: both have V.
  std::optional<DType> branch_values = {};
  // Initial weights of the feed-forward parts have deviation 0.02 / layers (Huang et al. 2019, section 4).
  bool small_feed_forward = false;
};

// Blocks of a net whose description has all of it, under the same names.
template <typename Config>
BlockConfig blocks_of(const Config& config) {
  return {.layers = config.layers,
          .heads = config.heads,
          .width = config.width,
          .dropout = config.dropout,
          .activation = config.activation,
          .activation_bits = config.activation_bits,
          .activation_quantiser = config.activation_quantiser,
          .recompute = config.recompute,
          .branch_values = config.branch_values,
          .small_feed_forward = config.small_feed_forward};
}

// Adds the parts of a net in their order: dropout layers are numbered in the order in which they act. Initial weights are
// normal with deviation 0.02, those before residual sums divided by sqrt(2 layers) (Shoeybi et al. 2019, section 3.3).
class BlockBuilder {
 public:
  // The config outlives this. group: processes that divide each layer, if any.
  BlockBuilder(const BlockConfig& config, train::TensorGroup* group) : config_(config), layers_(group) {}

  const train::TensorLayers& layers() const { return layers_; }
  void add_dropout(nn::Sequence& net);
  // The mask of block i, and another order in which its attention is computed, if any: many blocks may share them.
  struct Mask {
    std::shared_ptr<const nn::AttentionMask> mask;
    std::shared_ptr<const nn::TokenOrder> order;
  };
  void add_blocks(nn::Sequence& net, const std::function<Mask(std::size_t i)>& mask_of);

 private:
  double projection_deviation() const;
  nn::LayerPointer attention(const std::string& name, const Mask& mask);
  nn::LayerPointer feed_forward(const std::string& name);

  const BlockConfig& config_;
  train::TensorLayers layers_;
  std::uint64_t dropouts_ = 0, activations_ = 0;
};

}  // namespace bitloom::models
