// A token drawn from logits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace bitloom::models {

struct DrawOptions {
  double temperature = 1;  // logits are divided by it; 0: always the most likely token, the first of equals
  std::size_t top_k = 0;   // draw from the k most likely tokens alone; 0: from all
  double top_p = 1;        // from the fewest most likely ones whose probabilities sum to p (Holtzman et al. 2020)
};

// Throws Error(usage) that names the field.
void check(const DrawOptions& options);

// Throws Error(data) if one is no number, or if all are -infinity, which no token can be drawn from.
void check_logits(std::span<const float> logits);

// From logits (V) that check_logits() passes. uniform: in [0, 1). Ties of equal logits go to the smaller token. Tokens of
// -infinity are never drawn; where some have +infinity, these alone are, all with the same probability.
std::int32_t draw(std::span<const float> logits, const DrawOptions& options, double uniform);

}  // namespace bitloom::models
