// Floating-point numbers of 16 bits with six bits of exponent, for storage and messages: arithmetic is done in float.
//   f1_6_9   sign, 6 bits of exponent, 9 of fraction: gradients, error buffers, first moments, factors of PowerSGD
//   f0_6_10  no sign, 6 bits of exponent, 10 of fraction: AdamW's running variance
// From Ramesh et al. 2021, appendices B.2, D and E.2, who give the bits of both and that 1-6-9 ends slightly below 16. What
// they leave open is as in IEEE 754: the largest exponent is that of infinity and NaN, the smallest that of zero and subnormal
// numbers, conversions round to the nearest, ties to even. That makes the exponent's bias 59 in 1-6-9, which ends at 15.984375.
// 0-6-10 has a bias of 60: the variance is clipped at 5, so numbers up to 7.996 are enough, and one more power of two is left
// below, where squares of gradients are.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

namespace bitloom {

struct f1_6_9 {
  std::uint16_t bits = 0;
  static constexpr std::uint32_t fraction_bits = 9, bias = 59;
  friend bool operator==(f1_6_9, f1_6_9) = default;  // compares bits: NaN equals itself, 0 differs from -0
};

struct f0_6_10 {
  std::uint16_t bits = 0;
  static constexpr std::uint32_t fraction_bits = 10, bias = 60;
  friend bool operator==(f0_6_10, f0_6_10) = default;
};

// Bits of the infinity of T without its sign: larger ones are NaN's.
template <typename T>
inline constexpr std::uint32_t narrow_infinity = 63U << T::fraction_bits;

namespace narrow_detail {

// Choices are made by masks: compilers make no vector instructions of float arithmetic that only some elements need.
constexpr std::uint32_t mask_if(bool condition) { return 0U - static_cast<std::uint32_t>(condition); }

// Bits of the T nearest to a float's magnitude (the float's bits but the sign).
template <typename T>
constexpr std::uint32_t to_magnitude(std::uint32_t magnitude) {
  constexpr std::uint32_t shift = 23 - T::fraction_bits;
  constexpr std::uint32_t least_normal = (127 - T::bias + 1) << 23U;  // bits of 2^(1 - bias)
  // Numbers below are multiples of 2^(1 - bias - fraction_bits). Added to a float whose last bit is worth that much, they leave
  // the nearest multiple in the low bits, rounded as every addition is.
  constexpr std::uint32_t anchor = (127 - T::bias + 1 + shift) << 23U;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(std::min(magnitude, least_normal)) + std::bit_cast<float>(anchor)) -
      anchor;
  const std::uint32_t rounded = magnitude + ((1U << (shift - 1)) - 1) + ((magnitude >> shift) & 1U);
  const std::uint32_t normal = std::min((rounded - ((127 - T::bias) << 23U)) >> shift, narrow_infinity<T>);
  const std::uint32_t is_subnormal = mask_if(magnitude < least_normal);
  const std::uint32_t nan = mask_if(magnitude > 0x7F800000U) & (1U << (T::fraction_bits - 1));
  return (subnormal & is_subnormal) | (normal & ~is_subnormal) | nan;
}

// Bits of the float, without a sign, that a magnitude of T is.
template <typename T>
constexpr std::uint32_t from_magnitude(std::uint32_t magnitude) {
  constexpr std::uint32_t shift = 23 - T::fraction_bits;
  constexpr auto least = std::bit_cast<float>((127 - T::bias + 1 - T::fraction_bits) << 23U);
  const std::uint32_t normal = (magnitude << shift) + ((127 - T::bias) << 23U);
  const auto subnormal = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(magnitude)) * least);
  const std::uint32_t is_subnormal = mask_if(magnitude < (1U << T::fraction_bits));
  return (subnormal & is_subnormal) | (normal & ~is_subnormal) | (mask_if(magnitude >= narrow_infinity<T>) & 0x7F800000U);
}

}  // namespace narrow_detail

constexpr float to_float(f1_6_9 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000U} << 16U;
  return std::bit_cast<float>(narrow_detail::from_magnitude<f1_6_9>(x.bits & 0x7FFFU) | sign);
}

// From 15.9921875 on, halfway between the largest number and 16, infinity with the sign of x; NaN stays NaN.
constexpr f1_6_9 to_f1_6_9(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  return {static_cast<std::uint16_t>(narrow_detail::to_magnitude<f1_6_9>(bits & 0x7FFFFFFFU) | ((bits >> 16U) & 0x8000U))};
}

// Infinity becomes the largest number, 15.984375, with its sign; all else stays, NaN too (appendix E.2, step 4).
constexpr f1_6_9 clamped(f1_6_9 x) {
  return {static_cast<std::uint16_t>(x.bits - ((x.bits & 0x7FFFU) == narrow_infinity<f1_6_9> ? 1U : 0U))};
}

constexpr float to_float(f0_6_10 x) { return std::bit_cast<float>(narrow_detail::from_magnitude<f0_6_10>(x.bits)); }

// From 7.998046875 on, halfway between the largest number and 8, infinity. Negative numbers become 0, which is nearest;
// NaN and minus infinity, which no variance is, NaN.
constexpr f0_6_10 to_f0_6_10(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t positive = bits & narrow_detail::mask_if(bits <= 0x7F800000U);
  const std::uint32_t nan =
      0x7FC00000U & (narrow_detail::mask_if((bits & 0x7FFFFFFFU) > 0x7F800000U) | narrow_detail::mask_if(bits == 0xFF800000U));
  return {static_cast<std::uint16_t>(narrow_detail::to_magnitude<f0_6_10>(positive | nan))};
}

// Arrays (N) of the same length, element by element; loops that compilers make vector instructions of.
inline void convert(std::span<const float> from, std::span<f1_6_9> to) {
  assert(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = to_f1_6_9(from[i]);
}
inline void convert(std::span<const f1_6_9> from, std::span<float> to) {
  assert(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = to_float(from[i]);
}
inline void convert(std::span<const float> from, std::span<f0_6_10> to) {
  assert(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = to_f0_6_10(from[i]);
}
inline void convert(std::span<const f0_6_10> from, std::span<float> to) {
  assert(from.size() == to.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = to_float(from[i]);
}

}  // namespace bitloom
