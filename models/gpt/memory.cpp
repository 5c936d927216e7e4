#include "models/gpt/memory.h"

namespace bitloom::models {

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
