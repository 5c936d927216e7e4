// Stochastic rounding to formats of 16 bits: the one place that knows it. A value between two neighbours becomes the upper one
// as likely as it is near to it, so that the mean of what is kept is the value itself (Gupta et al. 2015, "Deep learning with
// limited numerical precision", section 3). Weights without f32 masters need it: an update of less than half a bf16 step, 2^-9
// of the weight, is lost each time if it is rounded to the nearest (Zamirai et al. 2020, "Revisiting BFloat16 training"). So do
// AdamW's moments: of a variance of 0-6-10 a step of less than 2^-12 to 2^-11 of it would be lost, and with beta2 = 0.999 one
// moves it by a thousandth of its distance from the squared gradient. C++17: CUDA includes this too.
#pragma once

#include <cstdint>

#include "nn/philox.h"

namespace bitloom::nn {

inline constexpr unsigned rounding_group = 8;  // elements of one call of Philox

// Each has draws of its own.
enum class Rounded : std::uint8_t { value, mean, variance };

// The counter of a step: its number with that in the two highest bits.
constexpr std::uint64_t rounding_step(std::uint64_t step, Rounded what) {
  return step | (static_cast<std::uint64_t>(what) << 62U);
}

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

// A format of core/narrow.h: six bits of exponent, the largest of which is that of infinity and NaN.
template <unsigned kFractionBits, unsigned kBias>
struct NarrowRounding {
  static constexpr unsigned dropped =
      23 - kFractionBits;  // bits of an f32's fraction that are cut off; as many of a draw count
  static constexpr std::uint32_t exponents = 127 - kBias;  // by which those of f32 are more
  // Bits of floats: the least normal number, 2^(1 - bias), and the largest.
  static constexpr std::uint32_t least_normal = (exponents + 1) << 23U;
  static constexpr std::uint32_t largest = ((exponents + 63) << 23U) - (1U << dropped);
  // And of one that is cut off to the code of NaN, whatever is added below.
  static constexpr std::uint32_t nan = ((exponents + 63) << 23U) | 0x400000U;

  // magnitude: the bits of |x|. raised: those of |x| + 2^(1 - bias), whose fraction is that of a number that is too small to be
  // normal, in its place. -> the code without a sign. What the format has already stays. Numbers above the largest become the
  // largest: moments that were infinite would stay so.
  static constexpr std::uint32_t code(std::uint32_t magnitude, std::uint32_t raised, std::uint32_t draw) {
    std::uint32_t bits = magnitude;
    if (magnitude < least_normal) bits = raised - (1U << 23U);
    if (magnitude > largest) bits = largest;
    if (magnitude > 0x7F800000U) bits = nan;
    return (bits - (exponents << 23U) + (draw >> (16U - dropped))) >> dropped;
  }
};
using MeanRounding = NarrowRounding<9, 59>;       // f1_6_9
using VarianceRounding = NarrowRounding<10, 60>;  // f0_6_10

}  // namespace bitloom::nn
