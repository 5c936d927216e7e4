// Layers of transformers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "nn/layers/basic.h"

namespace bitloom::nn {

struct SelfAttentionOptions {
  std::size_t heads = 1;
  double dropout = 0;                  // of the softmax's results
  std::uint64_t dropout_number = 0;    // distinct for every dropout of the net
  double deviation = 0.02;             // of the initial weights
  double projection_deviation = 0.02;  // of those that lead back to the residual stream
  bool transposed = false;             // as LinearOptions has it
};

// Multi-head self-attention with its projections (Vaswani et al. 2017): (B,T,C) -> (B,T,C), C a multiple of the heads.
class SelfAttention final : public Layer {
 public:
  // The mask is that of all T; batches of other lengths are refused.
  SelfAttention(const std::string& name, std::size_t width, std::shared_ptr<const AttentionMask> mask,
                const SelfAttentionOptions& options);
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override;
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;

 private:
  AttentionShape shape() const;

  std::string name_;
  std::size_t width_;
  std::shared_ptr<const AttentionMask> mask_;
  SelfAttentionOptions options_;
  Linear qkv_, projection_;
};

// ids (B,T) i32 -> (B,T,C): a row of the table of tokens plus one of the table of positions.
class Embedding final : public Layer {
 public:
  Embedding(const std::string& name, std::size_t vocabulary, std::size_t positions, std::size_t width, double deviation = 0.02);
  Tensor forward(Pass& pass, const Tensor& ids) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;  // none
  void add_parameters(std::vector<Parameter*>& all) override;
  Shape output(const Shape& ids) const override;
  double cost(const Shape& ids) const override { return static_cast<double>(ids.size() * width_); }
  std::uint64_t stash_bytes(const Shape& ids, DType values) const override;
  Parameter& tokens() { return tokens_; }

 private:
  Tensor position_ids(Engine& engine, const Shape& ids);

  std::string name_;
  std::size_t vocabulary_, width_;
  Parameter tokens_, positions_;
  Tensor position_ids_;  // of the last shape
};

}  // namespace bitloom::nn
