// The noise of relaxed categorical variables: the one place that knows. C++17: CUDA includes this too.
#pragma once

#include <cstdint>

#include "nn/philox.h"

namespace bitloom::nn {

inline constexpr unsigned gumbel_group = 4;  // elements of one call of Philox, a word each

constexpr Philox4x32 gumbel_draws(std::uint64_t seed, std::uint64_t site, std::uint64_t group) {
  return philox(philox_words(group, site), seed);
}

// A number of (0,1): the upper 23 bits of a draw and one half, in units of 2^-23. It, and 1 minus it, are exact in f32, so that
// all types have the same noise, -log(-log(uniform)).
constexpr float gumbel_uniform(std::uint32_t draw) { return (static_cast<float>(draw >> 9U) + 0.5F) * (1.0F / 8388608.0F); }

}  // namespace bitloom::nn
