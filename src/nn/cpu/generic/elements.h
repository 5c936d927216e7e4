// Loops over elements: walking vectors, sums and conversions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/kernels.h"

namespace bitloom::nn {
namespace {

// Whole numbers from 0 to 255 in floats: 2^23 + x has x in its low bits.
template <typename Isa>
BITLOOM_INLINE typename Isa::Word small_words(typename Isa::Float x) {
  return Isa::as_word(x + Isa::splat(8388608)) & Isa::word_splat(0xFF);
}

// Argument of the body of for_vectors(): loads and stores the vector there, whole or the part that is left at the end.
template <typename Isa>
struct WholeVector {
  static constexpr bool is_whole = true;
  template <typename T>
  BITLOOM_INLINE typename Isa::Float load(const T* from) const {
    return Isa::load(from);
  }
  template <typename T>
  BITLOOM_INLINE void store(T* to, typename Isa::Float x) const {
    Isa::store(to, x);
  }
  // Loads and stores whole numbers below 256, bytes in memory.
  BITLOOM_INLINE typename Isa::Float load_small(const std::uint8_t* from) const { return Isa::to_float(Isa::load_bytes(from)); }
  BITLOOM_INLINE void store_small(std::uint8_t* to, typename Isa::Float x) const { Isa::store_bytes(to, small_words<Isa>(x)); }
};
template <typename Isa>
struct PartOfVector {
  static constexpr bool is_whole = false;
  std::size_t n;
  template <typename T>
  BITLOOM_INLINE typename Isa::Float load(const T* from) const {
    return Isa::load_part(from, n);
  }
  template <typename T>
  BITLOOM_INLINE void store(T* to, typename Isa::Float x) const {
    Isa::store_part(to, x, n);
  }
  BITLOOM_INLINE typename Isa::Float load_small(const std::uint8_t* from) const {
    std::uint8_t bytes[Isa::width] = {};
    __builtin_memcpy(bytes, from, n);
    return Isa::to_float(Isa::load_bytes(bytes));
  }
  BITLOOM_INLINE void store_small(std::uint8_t* to, typename Isa::Float x) const {
    std::uint8_t bytes[Isa::width];
    Isa::store_bytes(bytes, small_words<Isa>(x));
    __builtin_memcpy(to, bytes, n);
  }
};

// Calls body(i, part) for i = 0, width, 2 width, ... below n.
template <typename Isa, typename Body>
BITLOOM_INLINE void for_vectors(std::size_t n, Body body) {
  std::size_t i = 0;
  for (; i + Isa::width <= n; i += Isa::width) body(i, WholeVector<Isa>());
  if (i < n) body(i, PartOfVector<Isa>{n - i});
}

template <typename Isa, typename V>
void add(const V* a, const V* b, V* y, std::size_t n) {
  for_vectors<Isa>(
      n, [=](std::size_t i, auto part)
             __attribute__((always_inline)) { part.store(y + i, part.load(a + i) + part.load(b + i)); });
}

template <typename Isa, typename X, typename V>
void scale_add(float alpha, const X* x, float beta, V* y, std::size_t n) {
  const auto factor = Isa::splat(alpha);
  if (beta == 0) {
    for_vectors<Isa>(
        n, [=](std::size_t i, auto part) __attribute__((always_inline)) { part.store(y + i, factor * part.load(x + i)); });
    return;
  }
  const auto keep = Isa::splat(beta);
  for_vectors<Isa>(
      n, [=](std::size_t i, auto part) __attribute__((always_inline)) {
        part.store(y + i, Isa::fma(keep, part.load(y + i), factor * part.load(x + i)));
      });
}

// A square of a float is exact in double. The order of the sum is that of sixteen lanes, whatever the width of vectors.
template <typename Isa, typename V>
double sum_of_squares(const V* x, std::size_t n) {
  constexpr std::size_t lanes = 16;
  typename Isa::Squares sums[lanes / Isa::width];
  for (auto& each : sums) each = Isa::no_squares();
  std::size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
#pragma GCC unroll 4
    for (std::size_t k = 0; k < lanes / Isa::width; ++k) Isa::add_squares(sums[k], Isa::load(x + i + k * Isa::width));
  }
  for (std::size_t k = 0; i + k * Isa::width < n; ++k) {
    const std::size_t left = n - i - k * Isa::width;
    Isa::add_squares(sums[k],
                     left >= Isa::width ? Isa::load(x + i + k * Isa::width) : Isa::load_part(x + i + k * Isa::width, left));
  }
  double lane[lanes];
  for (std::size_t k = 0; k < lanes / Isa::width; ++k) Isa::store_squares(lane + k * Isa::width, sums[k]);
  for (std::size_t half = lanes / 2; half > 0; half /= 2) {
    for (std::size_t k = 0; k < half; ++k) lane[k] += lane[k + half];
  }
  return lane[0];
}

}  // namespace
}  // namespace bitloom::nn
