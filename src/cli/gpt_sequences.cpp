#include "cli/gpt_sequences.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace bitloom::cli {
namespace {

data::ChunkOrder make_order(const TextSource& text, std::size_t context, const GptSettings& settings) {
  if (text.train.size() <= context) {
    fail(ErrorKind::data, "--data: {}: {} tokens for training; expected more than the context, {}", settings.data,
         text.train.size(), context);
  }
  const data::TokenDropout dropout{settings.merge_dropout, text.tokenizer.get()};
  try {
    return {text.train, context, settings.local.stream_seed(settings.seed), data::ChunkOrder::default_shards, dropout};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::usage) throw;
    fail(ErrorKind::usage, "--merge-dropout: {}", error.what());
  }
}

}  // namespace

GptSequences::GptSequences(const TextSource& text, const models::GptConfig& config, const GptSettings& settings)
    : text_(text),
      context_(config.context),
      most_validation_(settings.evaluate_sequences),
      order_(make_order(text, config.context, settings)) {}

void GptSequences::read_training(std::uint64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  for (std::size_t at = 0; at < inputs.size(); at += context_) {
    order_.read(first++, inputs.subspan(at, context_), targets.subspan(at, context_));
  }
}

void GptSequences::read_validation(std::uint64_t first, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const {
  for (std::size_t at = 0; at < inputs.size(); at += context_) {
    read_validation_sequence(first++, inputs.subspan(at, context_), targets.subspan(at, context_));
  }
}

// Sequence n of the validation text: tokens n T .. n T + T, the last ones with targets that do not count.
void GptSequences::read_validation_sequence(std::size_t n, std::span<std::int32_t> inputs,
                                            std::span<std::int32_t> targets) const {
  std::fill(inputs.begin(), inputs.end(), 0);
  std::fill(targets.begin(), targets.end(), -1);
  const std::size_t size = text_.validation.size();
  const std::size_t begin = n * context_;
  if (n >= validation_count() || begin + 1 >= size) return;
  std::vector<std::int32_t> tokens(std::min(context_ + 1, size - begin));
  text_.validation.read(begin, tokens);
  std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
  std::copy(tokens.begin() + 1, tokens.end(), targets.begin());
}

std::size_t GptSequences::validation_count() const {
  const std::size_t size = text_.validation.size();
  const std::size_t all = size < 2 ? 0 : (size - 2) / context_ + 1;
  return most_validation_ == 0 ? all : std::min(all, most_validation_);
}

}  // namespace bitloom::cli
