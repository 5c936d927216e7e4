// The sequences of tokens that `bitloom train gpt` learns from and measures by.
#pragma once

#include <cstdint>
#include <span>

#include "cli/gpt_options.h"
#include "cli/text_source.h"
#include "data/text/chunk_order.h"
#include "models/gpt/config.h"

namespace bitloom::cli {

class GptSequences {
 public:
  // All of them outlive this. Throws Error(data) for a text that is too short, Error(usage) that names the option.
  GptSequences(const TextSource& text, const models::GptConfig& config, const GptSettings& settings);

  // As many sequences as there is room for, from number `first` on: inputs (sequences, context), and targets, the token behind
  // each, -1 where none counts.
  void read_training(std::uint64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
  void read_validation(std::uint64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

  std::uint64_t training_count() const { return order_.chunks(); }  // in an epoch
  std::size_t validation_count() const;                             // in an evaluation

 private:
  void read_validation_sequence(std::size_t n, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

  const TextSource& text_;
  std::size_t context_, most_validation_;
  data::ChunkOrder order_;
};

}  // namespace bitloom::cli
