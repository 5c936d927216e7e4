// Sums and maxima of one term per rank. Private to mpi/.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/half.h"
#include "core/narrow.h"

namespace bitloom::mpi {

template <typename T>
constexpr bool is_half = std::is_same_v<T, bf16> || std::is_same_v<T, f16> || std::is_same_v<T, f1_6_9>;

template <typename T>
double wide(T x) {
  if constexpr (is_half<T>) {
    return static_cast<double>(to_float(x));
  } else {
    return static_cast<double>(x);
  }
}

// To a float that rounds further to 16 bits as x itself would: towards zero, and odd unless exact (Boldo and Melquiond 2008,
// "Emulation of FMA and correctly rounded sums", theorem 2.2).
inline float to_odd_float(double x) {
  const auto nearest = static_cast<float>(x);
  const auto back = static_cast<double>(nearest);
  if (back == x || std::isnan(x)) return nearest;
  auto bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(back) > std::abs(x)) --bits;
  return std::bit_cast<float>(bits | 1U);
}

// The nearest T, ties to even.
template <typename T>
T narrow(double x) {
  if constexpr (std::is_same_v<T, bf16>) {
    return to_bf16(to_odd_float(x));
  } else if constexpr (std::is_same_v<T, f16>) {
    return to_f16(to_odd_float(x));
  } else if constexpr (std::is_same_v<T, f1_6_9>) {
    return to_f1_6_9(to_odd_float(x));
  } else {
    return static_cast<T>(x);
  }
}

// out[i] = terms[0][i] + terms[1][i] + ..., in double precision and that order. `out` may be one of the terms.
template <typename T>
void sum_terms(std::span<const T* const> terms, T* out, std::size_t n) {
  constexpr std::size_t block = 512;
  std::array<double, block> sums;
  for (std::size_t begin = 0; begin < n; begin += block) {
    const std::size_t count = std::min(block, n - begin);
    const T* term = terms.front() + begin;
    for (std::size_t i = 0; i < count; ++i) sums[i] = wide(term[i]);
    for (const T* const next : terms.subspan(1)) {
      term = next + begin;
      for (std::size_t i = 0; i < count; ++i) sums[i] += wide(term[i]);
    }
    for (std::size_t i = 0; i < count; ++i) out[begin + i] = narrow<T>(sums[i]);
  }
}

// out[i] = the largest of terms[0][i], terms[1][i], ...; the first NaN, if there is one. `out` may be one of the terms.
template <typename T>
void max_terms(std::span<const T* const> terms, T* out, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    T largest = terms.front()[i];
    for (const T* const term : terms.subspan(1)) {
      const double a = wide(largest);
      const double b = wide(term[i]);
      if (!std::isnan(a) && (b > a || std::isnan(b))) largest = term[i];
    }
    out[i] = largest;
  }
}

}  // namespace bitloom::mpi
