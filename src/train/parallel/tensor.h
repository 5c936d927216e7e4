// Tensor parallelism (Shoeybi et al. 2019, section 3): the processes of a group divide each layer between them. Attention is
// divided by heads, a feed-forward part by its inner columns, tables and logits by the vocabulary; what lies between, the
// residual stream, layer norms and biases that are added to sums, every process has whole and with the same bits.
//
// Sums over the group in a step, of b sequences of s tokens of width h: two of b s h in the forward pass of each layer (Leave),
// two in its backward pass (Enter), two more where the layer is computed again; one for the embedding; for the loss one of b s
// h, the gradient of the hidden states, and 3 b s numbers: a maximum and a sum of two for each part of the logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "mpi/comm.h"
#include "nn/layers/tokens.h"

namespace bitloom::train {

class GpuComm;

class TensorGroup {
 public:
  // The ranks of `comm`, which outlives this.
  explicit TensorGroup(mpi::Comm& comm);
  // A member of a group that is not there: its net can be described, but not run.
  TensorGroup(std::size_t rank, std::size_t size);
  ~TensorGroup();
  TensorGroup(const TensorGroup&) = delete;
  TensorGroup& operator=(const TensorGroup&) = delete;

  std::size_t rank() const { return rank_; }
  std::size_t size() const { return size_; }
  // This process has things begin_of(n) .. end_of(n) - 1 of n; most_of(n) is the largest number that any has.
  std::size_t begin_of(std::size_t n) const { return n * rank_ / size_; }
  std::size_t end_of(std::size_t n) const { return n * (rank_ + 1) / size_; }
  std::size_t most_of(std::size_t n) const { return (n + size_ - 1) / size_; }

  // Collective, in place, with the same bits on all ranks: on CPUs in the order of ranks (mpi/float_collectives.h); on GPUs by
  // NCCL, in order with the engine's ops. The engine is the same in all calls.
  void sum(nn::Engine& engine, nn::Tensor& tensor);
  void max(nn::Engine& engine, nn::Tensor& tensor);

 private:
  mpi::Comm& comm() const;
  GpuComm& gpus(nn::Engine& engine);

  mpi::Comm* comm_ = nullptr;  // none: a group that is not there
  std::size_t rank_, size_;
  std::unique_ptr<GpuComm> gpus_;
};

// Where the work of a layer is divided (the paper's f): x as it is; backward the sum of the gradients that the processes have
// of it.
class Enter final : public nn::Layer {
 public:
  explicit Enter(TensorGroup& group) : group_(group) {}
  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& x) override;
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override;
  nn::Shape output(const nn::Shape& x) const override { return x; }
  double cost(const nn::Shape& /*x*/) const override { return 0; }
  std::uint64_t stash_bytes(const nn::Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  TensorGroup& group_;
};

// Where it is put together (the paper's g): the sum of the x (...,C) of all processes plus a bias (C), which all have; backward
// dy as it is.
class Leave final : public nn::Layer {
 public:
  // bias: name of the parameter.
  Leave(TensorGroup& group, const std::string& bias, std::size_t columns);
  nn::Tensor forward(nn::Pass& pass, const nn::Tensor& x) override;
  nn::Tensor backward(nn::Pass& pass, const nn::Tensor& dy) override;
  void add_parameters(std::vector<nn::Parameter*>& all) override { all.push_back(&bias_); }
  nn::Shape output(const nn::Shape& x) const override { return x; }
  double cost(const nn::Shape& x) const override { return static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const nn::Shape& /*x*/, DType /*values*/) const override { return 0; }

 private:
  TensorGroup& group_;
  nn::Parameter bias_;
  nn::Tensor no_rows_;  // zeros, one per row: which row of the bias, a table of one, each gets
};

// nn::Embedding whose tokens' table the group divides by rows; positions are replicated.
class VocabularyEmbedding final : public nn::Embedding {
 public:
  VocabularyEmbedding(TensorGroup& group, const std::string& name, std::size_t vocabulary, std::size_t positions,
                      std::size_t width);

 private:
  void complete(nn::Engine& engine, nn::Tensor& y) override { group_.sum(engine, y); }

  TensorGroup& group_;
};

// Logits by a table of tokens (tied embeddings), which a group may divide, and their loss.
class VocabularyHead {
 public:
  // The table, of which rows from `vocabulary` on are padding, outlives this. group: none or of one: the table is whole.
  // clip: the magnitude at which the loss that is trained on clips logits (Huang et al. 2019, section 4), which then pass no
  // gradient; 0: none. Losses without a gradient are those of the logits as they are.
  VocabularyHead(TensorGroup* group, nn::Parameter& table, std::size_t vocabulary, double clip = 0);

  nn::Parameter& table() const { return table_; }
  // Columns of logits that this process has, and the most that any has.
  std::size_t columns() const { return table_.shape[0]; }
  std::size_t most_columns() const;

  // hidden (R,C) -> those logits (R,columns), of type P.
  nn::Tensor logits(nn::Engine& engine, const nn::Tensor& hidden) const;
  // Collective: those of all processes. For a few rows: all have them whole.
  nn::Tensor all_logits(nn::Engine& engine, const nn::Tensor& hidden) const;
  // Collective: losses (R), and dlogits (R,columns) or none, as nn::cross_entropy() has them. 3 numbers per row go round.
  void cross_entropy(nn::Engine& engine, const nn::Tensor& logits, const nn::Tensor& targets, double scale, nn::Tensor& loss,
                     nn::Tensor* dlogits) const;
  // dlogits of type V (R,columns) -> this process's term of hidden's gradient, written to dhidden (R,C); adds to the table's
  // gradient.
  void backward(nn::Engine& engine, const nn::Tensor& hidden, const nn::Tensor& dlogits, nn::Tensor& dhidden) const;
  // Collective: the sum of those terms, of all rows that there are.
  void complete(nn::Engine& engine, nn::Tensor& dhidden) const;

 private:
  TensorGroup* group_;
  nn::Parameter& table_;
  nn::VocabularySlice slice_;
  double clip_;

  void cross_entropy_of(nn::Engine& engine, const nn::Tensor& logits, const nn::Tensor& targets, double scale, nn::Tensor& loss,
                        nn::Tensor* dlogits) const;
};

// Makes the layers of a net that are divided, or, without a group or for one process, whole: the same parameters in the same
// order, of which each process has its parts.
class TensorLayers {
 public:
  explicit TensorLayers(TensorGroup* group) : group_(group != nullptr && group->size() > 1 ? group : nullptr) {}
  TensorGroup* group() const { return group_; }

  // options.heads are all heads, a multiple of the processes.
  void add_attention(nn::Sequence& to, const std::string& name, std::size_t width,
                     std::shared_ptr<const nn::AttentionMask> mask, nn::SelfAttentionOptions options) const;
  // From width to `inside` columns, of which each process has some, for layers of single elements; and back.
  void add_expansion(nn::Sequence& to, const std::string& name, std::size_t width, std::size_t inside,
                     nn::LinearOptions options = {}) const;
  void add_contraction(nn::Sequence& to, const std::string& name, std::size_t inside, std::size_t width,
                       nn::LinearOptions options = {}) const;
  std::unique_ptr<nn::Embedding> make_embedding(const std::string& name, std::size_t vocabulary, std::size_t positions,
                                                std::size_t width) const;

 private:
  TensorGroup* group_;
};

}  // namespace bitloom::train
