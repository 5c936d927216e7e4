// Training task of a GPT for the float trainer: the token that follows each token.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/gpt/gpt.h"
#include "train/task.h"

namespace bitloom::models {

class LanguageTask final : public train::Task {
 public:
  // Fills the inputs and targets (B,T) of a micro-batch; targets of -1 do not count, and none in training is.
  using Source = std::function<void(std::uint64_t step, std::uint64_t micro_batch, std::span<std::int32_t> inputs,
                                    std::span<std::int32_t> targets)>;

  // sequences: of a micro-batch. logits_bytes: memory for logits, about, which are computed for as many rows at once as fit
  // into it.
  LanguageTask(Gpt& net, std::size_t sequences, Source source, std::uint64_t logits_bytes = default_logits_bytes);

  nn::Sequence& net() override { return net_.layers(); }
  nn::Shape input_shape() const override { return {sequences_, net_.tokens()}; }
  std::optional<DType> input_type() const override { return DType::i32; }
  double loss_cost() const override;
  std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) override;
  nn::Tensor input(nn::Pass& pass) override;
  train::PartLoss loss(nn::Pass& pass, nn::Tensor hidden, double scale, nn::Tensor* dhidden) override;
  std::vector<nn::Parameter*> head_parameters() override { return {&net_.table()}; }

  // Rows whose `columns` logits are computed at once, and what that takes in bytes, for values of a type; is_clipped: with
  // those that the loss clips beside them.
  static std::size_t rows_at_once(std::size_t columns, std::size_t rows, std::uint64_t logits_bytes);
  static std::uint64_t workspace_bytes(std::size_t columns, std::size_t rows, DType values, bool is_clipped,
                                       std::uint64_t logits_bytes = default_logits_bytes);
  static constexpr std::uint64_t default_logits_bytes = 256 << 20;

 private:
  struct Tokens {
    std::vector<std::int32_t> inputs, targets;  // (B,T)
  };
  Tokens fetch(const nn::Pass& pass) const;

  Gpt& net_;
  std::size_t sequences_;
  Source source_;
  train::Awaited<std::vector<std::int32_t>> targets_;
  std::uint64_t logits_bytes_;
};

// Losses (R) of type P, in nats, of hidden states (R,C) with targets (R), -1: 0. With `dhidden` (R,C), that of hidden is
// written to it, for `scale` times the sum of the losses, and the table's gradient is added to. Collective where a group
// divides the net: all its processes get the same losses and dhidden.
nn::Tensor language_losses(nn::Engine& engine, Gpt& net, const nn::Tensor& hidden, const nn::Tensor& targets, double scale,
                           nn::Tensor* dhidden, std::uint64_t logits_bytes = LanguageTask::default_logits_bytes);

}  // namespace bitloom::models
