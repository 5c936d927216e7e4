// The net: embeddings, blocks of self-attention and feed-forward parts before each of which stands a layer norm, a last layer
// norm, and logits by the table of tokens itself (tied embeddings).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/gpt/config.h"
#include "nn/layers/blocks.h"
#include "nn/layers/tokens.h"
#include "train/parallel/tensor.h"

namespace bitloom::models {

// ids (B,T) i32 -> hidden states (B,T,C) behind the last layer norm. Logits are a step of their own, since nobody needs them of
// all tokens at once.
//
// Initial weights are normal with deviation 0.02, those before residual sums divided by sqrt(2 layers) (Shoeybi et al. 2019,
// section 3.3).
class Gpt final : public nn::Layer {
 public:
  // For sequences of `tokens` tokens, at most the context; 0: of the context's. group: processes that divide each layer, if
  // any; outlives this. Throws Error(usage) as check() does, and for heads that the group does not divide.
  explicit Gpt(const GptConfig& config, std::size_t tokens = 0, train::TensorGroup* group = nullptr);

  const GptConfig& config() const { return config_; }
  std::size_t tokens() const { return tokens_; }
  // None where every process has whole layers.
  train::TensorGroup* group() const { return group_; }
  // The layers: the embeddings, then two residual blocks for each of config().layers, then the last norm.
  nn::Sequence& layers() { return layers_; }

  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& ids) override { return layers_.forward(pass, ids); }
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override { return layers_.backward(pass, dy); }
  void add_parameters(std::vector<nn::Parameter*>& all) override { layers_.add_parameters(all); }
  nn::Shape output(const nn::Shape& ids) const override { return layers_.output(ids); }
  // With the logits of all tokens.
  double cost(const nn::Shape& ids) const override;
  std::uint64_t stash_bytes(const nn::Shape& ids, DType values) const override { return layers_.stash_bytes(ids, values); }
  std::uint64_t peak_stash_bytes(const nn::Shape& ids, DType values) const override {
    return layers_.peak_stash_bytes(ids, values);
  }

  // hidden (R,C) -> logits (R,padded vocabulary) of type P. Columns from config().vocabulary on mean nothing. Collective where
  // a group divides them.
  nn::Tensor logits(nn::Engine& engine, const nn::Tensor& hidden) const { return head_->all_logits(engine, hidden); }
  // The table of tokens, which the first layer and the logits read.
  nn::Parameter& table() { return head_->table(); }
  // The logits of this process, and their losses.
  train::VocabularyHead& head() { return *head_; }

 private:
  GptConfig config_;
  std::size_t tokens_;
  train::TensorGroup* group_;
  nn::Sequence layers_;
  std::optional<train::VocabularyHead> head_;
};

}  // namespace bitloom::models
