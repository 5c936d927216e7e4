#include "models/gpt/gpt.h"

#include "core/error.h"
#include "models/transformer/blocks.h"

namespace bitloom::models {
namespace {

const GptConfig& checked(const GptConfig& config, std::size_t tokens) {
  check(config);
  if (tokens > config.context) {
    fail(ErrorKind::usage, "sequences of {} tokens; expected at most the context, {}", tokens, config.context);
  }
  return config;
}

}  // namespace

Gpt::Gpt(const GptConfig& config, std::size_t tokens, train::TensorGroup* group)
    : config_(checked(config, tokens)),
      tokens_(tokens == 0 ? config.context : tokens),
      group_(train::TensorLayers(group).group()) {
  const BlockConfig blocks = blocks_of(config_);
  BlockBuilder builder(blocks, group_);
  auto embedding = builder.layers().make_embedding("embedding", config_.padded_vocabulary(), config_.context, config_.width);
  if (config_.branch_values) embedding->widen();
  head_.emplace(group_, embedding->tokens(), config_.vocabulary, config_.logit_clip);
  layers_.add(std::move(embedding));
  builder.add_dropout(layers_);
  const auto mask = std::make_shared<nn::AttentionMask>(nn::AttentionMask::causal(tokens_, tokens_));
  builder.add_blocks(layers_, [&](std::size_t) { return BlockBuilder::Mask{mask, nullptr}; });
  layers_.emplace<nn::LayerNorm>("norm", config_.width, config_.branch_values);
}

double Gpt::cost(const nn::Shape& ids) const {
  return layers_.cost(ids) + 2 * static_cast<double>(ids.size() * config_.width * head_->columns());
}

}  // namespace bitloom::models
