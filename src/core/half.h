// Floating-point numbers of 16 bits, for storage: arithmetic is done in float.
//   bf16  sign, 8 bits of exponent, 7 of fraction: the upper half of a float
//   f16   sign, 5 bits of exponent, 10 of fraction: IEEE 754 binary16
#pragma once

#include <bit>
#include <cstdint>

namespace bitloom {

struct bf16 {
  std::uint16_t bits = 0;
  friend bool operator==(bf16, bf16) = default;  // compares bits: NaN equals itself, 0 differs from -0
};

struct f16 {
  std::uint16_t bits = 0;
  friend bool operator==(f16, f16) = default;
};

constexpr float to_float(bf16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16U); }

// To the nearest, ties to even; NaN stays NaN.
constexpr bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return {static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};
  return {static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U)};
}

constexpr float to_float(f16 x) {
  const std::uint32_t sign = std::uint32_t{x.bits & 0x8000U} << 16U;
  const std::uint32_t magnitude = x.bits & 0x7FFFU;
  if (magnitude >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | ((magnitude & 0x3FFU) << 13U));  // Inf, NaN
  if (magnitude < 0x400U) {  // subnormal: a multiple of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13U) + ((127U - 15U) << 23U)));
}

// To the nearest, ties to even; beyond 65,504 infinity; NaN stays NaN.
constexpr f16 to_f16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return {static_cast<std::uint16_t>(sign | 0x7E00U)};
  if (magnitude >= 0x477FF000U) return {static_cast<std::uint16_t>(sign | 0x7C00U)};  // 65,520 and more
  if (magnitude < 0x38800000U) {                                                      // below 2^-14: subnormal
    // Adding 0.5 leaves the multiple of 2^-24 nearest to |x| in the low bits, rounded as every addition is.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U))};
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13U) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded - ((127U - 15U) << 23U)) >> 13U))};
}

}  // namespace bitloom
