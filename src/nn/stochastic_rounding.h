// Stochastic rounding to bf16: the one place that knows it. A value between two neighbours becomes the upper one as likely as
// it is near to it, so that the mean of what is kept is the value itself (Gupta et al. 2015, "Deep learning with limited
// numerical precision", section 3). Weights without f32 masters need it: an update of less than half a bf16 step, 2^-9 of the
// weight, is lost each time if it is rounded to the nearest (Zamirai et al. 2020, "Revisiting BFloat16 training"). C++17: CUDA
// includes this too.
#pragma once

#include <cstdint>

#include "nn/philox.h"

namespace bitloom::nn {

inline constexpr unsigned rounding_group = 8;  // elements of one call of Philox

// The draws of elements 8 group .. 8 group + 7 in a step: philox_half(draws, i) is that of element 8 group + i.
constexpr Philox4x32 rounding_draws(std::uint64_t key, std::uint64_t step, std::uint64_t group) {
  return philox(philox_words(group, step), key);
}

// Bits of an f32 -> those of the f32 that bf16 has exactly: 16 random bits are added below the mantissa that is kept, the rest
// is cut off. Magnitudes and signs are apart, so this is the same for both signs. What bf16 has already stays, infinities too;
// above its largest number infinity is the neighbour. NaN stays NaN, as to_bf16() has it.
constexpr std::uint32_t round_stochastically(std::uint32_t bits, std::uint32_t draw) {
  const bool is_nan = (bits & 0x7FFFFFFFU) > 0x7F800000U;
  return (is_nan ? bits | 0x400000U : bits + draw) & 0xFFFF0000U;
}

}  // namespace bitloom::nn
