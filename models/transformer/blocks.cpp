#include "models/transformer/blocks.h"

#include <cmath>
#include <utility>

#include "nn/layers/blocks.h"

namespace bitloom::models {

using nn::Sequence;

double BlockBuilder::projection_deviation() const { return 0.02 / std::sqrt(2.0 * static_cast<double>(config_.layers)); }

void BlockBuilder::add_dropout(Sequence& net) { net.emplace<nn::DropoutLayer>(config_.dropout, dropouts_++); }

nn::LayerPointer BlockBuilder::attention(const std::string& name, const Mask& mask) {
  nn::SelfAttentionOptions options;
  options.heads = config_.heads;
  options.dropout = config_.dropout;
  options.dropout_number = dropouts_++;
  options.projection_deviation = projection_deviation();
  options.order = mask.order;
  auto branch = std::make_unique<Sequence>();
  branch->emplace<nn::LayerNorm>(name + ".norm", config_.width, config_.branch_values);
  layers_.add_attention(*branch, name, config_.width, mask.mask, options);
  add_dropout(*branch);
  return branch;
}

nn::LayerPointer BlockBuilder::feed_forward(const std::string& name) {
  const std::size_t inside = 4 * config_.width;
  nn::LinearOptions first;
  nn::LinearOptions second;
  second.deviation = projection_deviation();
  if (config_.small_feed_forward) first.deviation = second.deviation = 0.02 / static_cast<double>(config_.layers);
  auto branch = std::make_unique<Sequence>();
  branch->emplace<nn::LayerNorm>(name + ".norm", config_.width, config_.branch_values);
  layers_.add_expansion(*branch, name + ".first", config_.width, inside, first);
  // Numbers beyond those of dropout layers, and other ones for every process of a group: each has columns of its own, whose
  // rounding errors are to have nothing to do with others'.
  const std::uint64_t rank = layers_.group() == nullptr ? 0 : layers_.group()->rank();
  const std::uint64_t first_number = (1 + rank) << 32U;
  branch->emplace<nn::Activate>(nn::find_activation(config_.activation), config_.activation_bits, config_.activation_quantiser,
                                first_number + activations_++);
  layers_.add_contraction(*branch, name + ".second", inside, config_.width, second);
  add_dropout(*branch);
  return branch;
}

void BlockBuilder::add_blocks(Sequence& net, const std::function<Mask(std::size_t i)>& mask_of) {
  for (std::size_t i = 0; i < config_.layers; ++i) {
    const std::string name = fmt::format("blocks.{}", i);
    auto block = std::make_unique<Sequence>();
    block->emplace<nn::Residual>(attention(name + ".attention", mask_of(i)), 2 * i);
    block->emplace<nn::Residual>(feed_forward(name + ".feed_forward"), 2 * i + 1);
    if (config_.recompute) {
      net.emplace<nn::Recomputed>(std::move(block), config_.branch_values.has_value());
    } else {
      net.add(std::move(block));
    }
  }
}

}  // namespace bitloom::models
