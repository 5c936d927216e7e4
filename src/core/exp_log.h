// exp and log of doubles whose results are the same bits on every machine: IEEE additions, multiplications and divisions in a
// fixed order. Inline and without branches, and without the conversions between 64-bit integers and doubles that the baseline
// instruction set has for single numbers only, so that loops over them are vectorised. For softmax.h and layerwise's exact
// signal.
#pragma once

#include <bit>
#include <cstdint>

namespace bitloom {

inline constexpr double log2_e = 1.4426950408889634;
inline constexpr double ln_2 = 0.6931471805599453;

// exp(x) for x <= 87, relative error below 1e-9; 0 for x < -87.
inline double exp_double(double x) {
  // x = n ln 2 + r with integer n and |r| <= ln 2 / 2. Adding and subtracting 1.5 * 2^52 rounds to an integer, to nearest.
  constexpr double round_shift = 0x1.8p52;
  const double shifted = x * log2_e + round_shift;
  const double n = shifted - round_shift;
  const double r = x - n * ln_2;  // n ln 2 is off by at most 126 * 2^-54
  // The Taylor series up to r^9 / 9!; the first term left out is below 0.3466^10 / 10! = 7e-12.
  double p = 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // 2^n by its exponent bits. The low bits of `shifted` are the integer n.
  const double power = std::bit_cast<double>((std::bit_cast<std::uint64_t>(shifted) + 1023) << 52);
  // 0 below -87, by the sign of a difference: the baseline compares no 64-bit lanes.
  const std::uint64_t keep = (std::bit_cast<std::uint64_t>(x + 87.0) >> 63) - 1;
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(p * power) & keep);
}

// The natural logarithm of a normal x > 0, relative error below 1e-9.
inline double log_double(double x) {
  // x = m 2^k with sqrt(1/2) <= m < sqrt(2), so that k ln 2 never cancels log m.
  constexpr std::uint64_t sqrt_half = 0x3fe6a09e667f3bcdULL;  // the bits of sqrt(1/2)
  constexpr std::uint64_t sign = std::uint64_t{1} << 63;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  // The difference shifted right by 52 with its sign, which the baseline does to no 64-bit lanes: shifted with the sign bit
  // flipped, so that it is not negative, and 2^63 / 2^52 taken off.
  const std::uint64_t k = (((bits - sqrt_half) ^ sign) >> 52) - 2048;
  const double m = std::bit_cast<double>(bits - (k << 52));
  // log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| <= 0.1716; m - 1 is exact. The series 2 (s + s^3/3 + s^5/5 + ...)
  // up to s^13 / 13; the first term left out is below s * 0.1716^14 / 15 = 1.3e-12 s.
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  double p = 1.0 / 13;
  p = p * q + 1.0 / 11;
  p = p * q + 1.0 / 9;
  p = p * q + 1.0 / 7;
  p = p * q + 1.0 / 5;
  p = p * q + 1.0 / 3;
  p = p * q + 1.0;
  // A small integer added to the bits of 1.5 * 2^52 is added to it.
  constexpr double shift = 0x1.8p52;
  return (std::bit_cast<double>(std::bit_cast<std::uint64_t>(shift) + k) - shift) * ln_2 + 2.0 * s * p;
}

}  // namespace bitloom
