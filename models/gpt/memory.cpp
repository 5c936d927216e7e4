#include "models/gpt/memory.h"

#include <algorithm>

#include "models/gpt/language_task.h"
#include "train/memory.h"

namespace bitloom::models {

GptMemory predict_memory(const GptConfig& config, std::size_t sequences, const train::TrainOptions& options) {
  Gpt net(config);
  const nn::Shape ids = {sequences, config.context};
  const train::MemoryNeeds needs = train::predict_memory(net, ids, options);
  GptMemory memory{needs.parameters, needs.gradients, needs.optimizer, needs.stash, 0, needs.checkpoint};
  const std::uint64_t hidden = ids.size() * config.width * dtype_size(options.values);
  // Either logits beside the hidden states and their gradients, or what is in a feed-forward part at once.
  const std::uint64_t logits =
      LanguageTask::workspace_bytes(config.padded_vocabulary(), ids.size(), options.values, config.logit_clip > 0);
  memory.activations = std::max(2 * hidden + logits, 10 * hidden);
  return memory;
}

double paper_saving(const GptConfig& config, unsigned bits) {
  // Numbers per token and layer, in widths. Inputs of: two norms, three products (qkv, projection, first), the second product
  // (4); queries, keys and values (3).
  constexpr double products = 5 + 4 + 3;
  // Softmax's results, these dropped out, and a mask of a byte per number.
  const double attention = (2 + 0.25) * static_cast<double>(config.heads * config.context) / static_cast<double>(config.width);
  const double activation = config.activation == "gelu_tanh" ? 4 * 4 : 4;
  return activation * (1 - bits / 32.0) / (products + attention + activation);
}

}  // namespace bitloom::models
