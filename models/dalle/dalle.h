// The net: embeddings of text, padding and image tokens with their positions, blocks with a mask of their own each, a last
// layer norm, and a table of logits for text and one for image tokens.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/dalle/config.h"
#include "nn/layers/basic.h"
#include "train/parallel/tensor.h"

namespace bitloom::models {

// ids (B,T) i32 in [0, config.inputs()), numbered as DalleConfig says -> (B,T,C): a row of the table of inputs plus, of a text
// token, one of the table of positions and, of an image token, one of the table of rows and one of columns.
class DalleEmbedding final : public nn::Layer {
 public:
  explicit DalleEmbedding(const DalleConfig& config);
  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& ids) override;
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override;  // none
  bool takes_wide_gradients() const override { return true; }
  void add_parameters(std::vector<nn::Parameter*>& all) override;
  nn::Shape output(const nn::Shape& ids) const override;
  double cost(const nn::Shape& ids) const override { return 3 * static_cast<double>(ids.size() * config_.width); }
  std::uint64_t stash_bytes(const nn::Shape& ids, DType values) const override;
  bool keeps_input() const override { return true; }

 private:
  // A table of positions, and which of its rows a token gets; `size` of it: none.
  struct Positions {
    nn::Parameter table;
    std::vector<std::int32_t> row_of;  // by token
    nn::Tensor ids;                    // of the last shape, from token 0 on
  };
  nn::Tensor rows_of(nn::Engine& engine, Positions& positions, const nn::Shape& ids, std::size_t first);

  const DalleConfig& config_;
  nn::Parameter inputs_;
  std::array<Positions, 3> positions_;  // of text, rows, columns
};

// (B,T,C) -> (B,T,C): the last layer norm. It has the tables of logits, too, which the loss reads.
class DalleOutput final : public nn::Layer {
 public:
  explicit DalleOutput(const DalleConfig& config);
  nn::Parameter& text() { return text_; }
  nn::Parameter& codes() { return codes_; }

  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& x) override { return norm_.forward(pass, x); }
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override;
  void add_parameters(std::vector<nn::Parameter*>& all) override;
  nn::Shape output(const nn::Shape& x) const override { return norm_.output(x); }
  double cost(const nn::Shape& x) const override { return norm_.cost(x); }
  std::uint64_t stash_bytes(const nn::Shape& x, DType values) const override { return norm_.stash_bytes(x, values); }
  bool keeps_input() const override { return true; }

 private:
  nn::LayerNorm norm_;
  nn::Parameter text_, codes_;  // (V,C)
};

// Tokens that see one another in the layers of a kind.
nn::AttentionMask attention_mask(const DalleConfig& config, ImageAttention kind);

class Dalle {
 public:
  // group: processes that divide attention and feed-forward parts, if any; outlives this. Throws Error(usage) as check() does,
  // and for heads that the group does not divide.
  explicit Dalle(const DalleConfig& config, train::TensorGroup* group = nullptr);
  Dalle(const Dalle&) = delete;
  Dalle& operator=(const Dalle&) = delete;

  const DalleConfig& config() const { return config_; }
  nn::Sequence& layers() { return layers_; }
  // Logits (R,V) by hidden states (R,C) of the tokens before those that they are of: of text tokens, and of codes.
  const train::VocabularyHead& text_head() const { return *text_head_; }
  const train::VocabularyHead& code_head() const { return *code_head_; }
  // Multiplications and additions of a forward pass over `pairs` texts and images, logits included.
  double cost(std::size_t pairs) const;

 private:
  DalleConfig config_;
  nn::Sequence layers_;
  std::unique_ptr<train::VocabularyHead> text_head_, code_head_;
};

}  // namespace bitloom::models
