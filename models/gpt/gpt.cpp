#include "models/gpt/gpt.h"

#include <cmath>

#include "core/error.h"

namespace bitloom::models {
namespace {

using nn::LayerPointer;
using nn::Sequence;

// Dropout layers are numbered in the order in which they act.
struct Builder {
  const GptConfig& config;
  train::TensorLayers layers;
  std::shared_ptr<const nn::AttentionMask> mask;
  std::uint64_t dropouts = 0;

  double projection_deviation() const { return 0.02 / std::sqrt(2.0 * static_cast<double>(config.layers)); }

  LayerPointer attention(const std::string& name) {
    nn::SelfAttentionOptions options;
    options.heads = config.heads;
    options.dropout = config.dropout;
    options.dropout_number = dropouts++;
    options.projection_deviation = projection_deviation();
    auto branch = std::make_unique<Sequence>();
    branch->emplace<nn::LayerNorm>(name + ".norm", config.width);
    layers.add_attention(*branch, name, config.width, mask, options);
    branch->emplace<nn::DropoutLayer>(config.dropout, dropouts++);
    return branch;
  }

  LayerPointer feed_forward(const std::string& name) {
    const std::size_t inside = 4 * config.width;
    nn::LinearOptions second;
    second.deviation = projection_deviation();
    auto branch = std::make_unique<Sequence>();
    branch->emplace<nn::LayerNorm>(name + ".norm", config.width);
    layers.add_expansion(*branch, name + ".first", config.width, inside);
    branch->emplace<nn::Activate>(nn::find_activation(config.activation), config.activation_bits);
    layers.add_contraction(*branch, name + ".second", inside, config.width, second);
    branch->emplace<nn::DropoutLayer>(config.dropout, dropouts++);
    return branch;
  }

  LayerPointer block(std::size_t i) {
    const std::string name = fmt::format("blocks.{}", i);
    auto block = std::make_unique<Sequence>();
    block->emplace<nn::Residual>(attention(name + ".attention"), 2 * i);
    block->emplace<nn::Residual>(feed_forward(name + ".feed_forward"), 2 * i + 1);
    if (!config.recompute) return block;
    return std::make_unique<nn::Recomputed>(std::move(block));
  }
};

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
  Builder builder{config_, train::TensorLayers(group_),
                  std::make_shared<nn::AttentionMask>(nn::AttentionMask::causal(tokens_, tokens_))};
  auto embedding = builder.layers.make_embedding("embedding", config_.padded_vocabulary(), config_.context, config_.width);
  head_.emplace(group_, embedding->tokens(), config_.vocabulary);
  layers_.add(std::move(embedding));
  layers_.emplace<nn::DropoutLayer>(config_.dropout, builder.dropouts++);
  for (std::size_t i = 0; i < config_.layers; ++i) layers_.add(builder.block(i));
  layers_.emplace<nn::LayerNorm>("norm", config_.width);
}

double Gpt::cost(const nn::Shape& ids) const {
  return layers_.cost(ids) + 2 * static_cast<double>(ids.size() * config_.width * head_->columns());
}

}  // namespace bitloom::models
