// Layers of transformers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "nn/layers/basic.h"

namespace bitloom::nn {

// Keys and values of the tokens so far, of every attention in the order in which a net calls them: a forward pass with a cache
// goes on where the one before it ended. Forward alone, without dropout.
class KeyValueCache {
 public:
  // Throws Error(usage) if one of them is 0.
  KeyValueCache(std::size_t sequences, std::size_t capacity);

  std::size_t sequences() const { return sequences_; }
  std::size_t capacity() const { return capacity_; }
  // Tokens of every sequence that are in it.
  std::size_t size() const { return size_; }
  std::uint64_t bytes() const;

  // Before a pass over `tokens` more of each sequence. Throws Error(usage) if there is no room for them.
  void begin(std::size_t tokens);
  // After it: they are in.
  void end();
  // Forgets all tokens, not the memory.
  void clear() { size_ = 0; }

  // For attention, during a pass: the cached tokens of this call, followed by qkv (B,T',W): (B,capacity,W).
  const Tensor& append(Engine& engine, const Tensor& qkv);
  // Rows of a layer's mask, over `capacity` keys, that the tokens of this pass are; made once for all layers that share it.
  const AttentionMask& rows_of(const AttentionMask& mask);

 private:
  std::size_t sequences_, capacity_, size_ = 0;
  std::size_t tokens_ = 0, call_ = 0;  // shape and number of the pass under way
  std::vector<Tensor> calls_;
  std::map<std::uint64_t, AttentionMask> rows_;  // those of this pass, by the mask's id
};

// Another order of the tokens in which an attention is computed, and its mask in that order: where tokens that see one another
// stand together, fewer blocks of the mask are looked at.
struct TokenOrder {
  std::vector<std::int32_t> tokens;  // token i of the order is token tokens[i] of the sequence
  AttentionMask mask;
};

struct SelfAttentionOptions {
  std::size_t heads = 1;
  double dropout = 0;                  // rate on the softmax's results
  std::uint64_t dropout_number = 0;    // distinct for every dropout of the net
  double deviation = 0.02;             // deviation of the initial weights
  double projection_deviation = 0.02;  // deviation of those that lead back to the residual stream
  bool transposed = false;             // as LinearOptions has it
  // Where several processes divide the heads: those that this one has. The result is then one of the terms of a sum, without
  // the projection's bias. own_heads 0: all.
  std::size_t first_head = 0, own_heads = 0;
  // None: tokens are computed as they stand. Passes with a cache always do.
  std::shared_ptr<const TokenOrder> order = nullptr;
};

// Multi-head self-attention with its projections (Vaswani et al. 2017): (B,T,C) -> (B,T,C), C a multiple of the heads.
class SelfAttention final : public Layer {
 public:
  // The mask is that of all T; batches of other lengths are refused. A cache has room for T tokens: those of a pass see what
  // the mask shows them, and there is nothing yet behind them.
  SelfAttention(const std::string& name, std::size_t width, std::shared_ptr<const AttentionMask> mask,
                const SelfAttentionOptions& options);
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override;
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return options_.order == nullptr; }

 private:
  AttentionShape shape() const;
  Dropout dropout(const Pass& pass, std::size_t sequences) const;
  Tensor empty_lse(Engine& engine, const Tensor& x) const;
  Tensor forward_cached(Pass& pass, const Tensor& x);
  const AttentionMask& mask() const { return options_.order == nullptr ? *mask_ : options_.order->mask; }
  // x (B,T,C) with the tokens of every sequence in the order of the options, or back from it.
  Tensor in_order(Engine& engine, const Tensor& x);
  Tensor out_of_order(Engine& engine, const Tensor& x);

  // Rows of a tensor (B T,C) whose sequences are in another order.
  struct Rows {
    std::vector<std::int32_t> tokens;
    Tensor ids;  // of the last number of sequences
    Tensor of(Engine& engine, const Tensor& x);
  };

  std::string name_;
  std::size_t width_;
  std::shared_ptr<const AttentionMask> mask_;
  SelfAttentionOptions options_;
  std::size_t own_width_;  // of the heads that this process has
  Linear qkv_, projection_;
  Rows ordered_, back_;
};

// out (R,C) += rows of the table as gather() gives them; out may have type P where the table has V.
void add_rows(Engine& engine, const Tensor& table, const Tensor& ids, Tensor& out, const VocabularySlice& slice = {});

// ids (B,T) i32 -> (B,T,C): a row of the table of tokens plus one of the table of positions.
class Embedding : public Layer {
 public:
  Embedding(const std::string& name, std::size_t vocabulary, std::size_t positions, std::size_t width, double deviation = 0.02);
  Tensor forward(Pass& pass, const Tensor& ids) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;  // none
  bool takes_wide_gradients() const override { return true; }
  void add_parameters(std::vector<Parameter*>& all) override;
  Shape output(const Shape& ids) const override;
  double cost(const Shape& ids) const override { return static_cast<double>(ids.size() * width_); }
  std::uint64_t stash_bytes(const Shape& ids, DType values) const override;
  bool keeps_input() const override { return true; }
  Parameter& tokens() { return tokens_; }
  // y is of type P, whatever the tables' is.
  void widen() { is_wide_ = true; }

 protected:
  // Where several processes divide the vocabulary, the table of tokens is rows begin .. end - 1; before the first pass.
  void divide(std::size_t begin, std::size_t end);
  // y (R,C) are the tokens' rows, zeros of those that the table has not; they become those of all processes.
  virtual void complete(Engine& /*engine*/, Tensor& /*y*/) {}

 private:
  Tensor position_ids(Engine& engine, const Shape& ids, std::size_t first);

  std::string name_;
  std::size_t width_;
  bool is_wide_ = false;
  VocabularySlice slice_;
  Parameter tokens_, positions_;
  Tensor position_ids_;  // ids of the last shape, from position 0 on
};

}  // namespace bitloom::nn
