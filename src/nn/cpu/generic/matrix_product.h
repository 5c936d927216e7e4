// Products of small matrices whose operands are packed tiles: what attention is made of. A part of the result of tile_rows x
// tile_vectors vectors stays in registers while all of K passes (the inner kernel of Goto, van de Geijn 2008).
//
// A Product says what elements are and how they are multiplied: `depth` neighbours in K make one element of 32 bits. Tiles:
//   A  (M, K / depth), or transposed (K / depth, M): single elements are spread over a vector
//   B  (K / depth, N): vectors along N
//   C  (M, N) floats
// A Product with multiply_tiles() has instructions for whole tiles (has_tiles). A by rows then has rows up to a multiple of 16,
// whatever they hold, and so has C, which gets others there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/local_arch.h"

namespace bitloom::nn {
namespace {

// One float per element.
template <typename Isa>
struct FloatProduct {
  using Element = float;
  using Vector = typename Isa::Float;
  static constexpr std::size_t depth = 1;
  static constexpr bool has_tiles = false;
  static BITLOOM_INLINE Vector load(const float* from) { return Isa::load(from); }
  static BITLOOM_INLINE Vector splat(const float* from) { return Isa::splat(*from); }
  static BITLOOM_INLINE Vector multiply_add(Vector a, Vector b, Vector c) { return Isa::fma(a, b, c); }
};

enum class Stored { by_rows, by_columns };

template <typename Isa, typename P, Stored kA, std::size_t kRows, std::size_t kVectors>
BITLOOM_INLINE void product_tile(std::size_t depth, const typename P::Element* a, std::size_t a_pitch,
                                 const typename P::Element* b, std::size_t b_pitch, float* c, std::size_t c_pitch,
                                 bool accumulate) {
  using Float = typename Isa::Float;
  Float sum[kRows][kVectors];
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) {
      sum[r][v] = accumulate ? Isa::load(c + r * c_pitch + v * Isa::width) : Isa::splat(0);
    }
  }
  for (std::size_t k = 0; k < depth; ++k) {
    typename P::Vector row[kVectors];
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) row[v] = P::load(b + k * b_pitch + v * Isa::width);
#pragma GCC unroll 8
    for (std::size_t r = 0; r < kRows; ++r) {
      const auto element = P::splat(kA == Stored::by_rows ? a + r * a_pitch + k : a + k * a_pitch + r);
#pragma GCC unroll 8
      for (std::size_t v = 0; v < kVectors; ++v) sum[r][v] = P::multiply_add(element, row[v], sum[r][v]);
    }
  }
#pragma GCC unroll 8
  for (std::size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (std::size_t v = 0; v < kVectors; ++v) Isa::store(c + r * c_pitch + v * Isa::width, sum[r][v]);
  }
}

template <typename Isa, typename P, Stored kA, std::size_t kVectors>
BITLOOM_INLINE void product_strip(std::size_t m, std::size_t depth, const typename P::Element* a, std::size_t a_pitch,
                                  const typename P::Element* b, std::size_t b_pitch, float* c, std::size_t c_pitch,
                                  bool accumulate) {
  const std::size_t step = kA == Stored::by_rows ? a_pitch : 1;
  std::size_t r = 0;
  for (; r + Isa::tile_rows <= m; r += Isa::tile_rows) {
    product_tile<Isa, P, kA, Isa::tile_rows, kVectors>(depth, a + r * step, a_pitch, b, b_pitch, c + r * c_pitch, c_pitch,
                                                       accumulate);
  }
  if constexpr (Isa::tile_rows > 4) {
    for (; r + 4 <= m; r += 4) {
      product_tile<Isa, P, kA, 4, kVectors>(depth, a + r * step, a_pitch, b, b_pitch, c + r * c_pitch, c_pitch, accumulate);
    }
  }
  for (; r < m; ++r) {
    product_tile<Isa, P, kA, 1, kVectors>(depth, a + r * step, a_pitch, b, b_pitch, c + r * c_pitch, c_pitch, accumulate);
  }
}

// C (M, `vectors` vectors) = or += A B; `depth` counts elements of K.
template <typename Isa, typename P, Stored kA>
__attribute__((noinline)) void product(std::size_t m, std::size_t vectors, std::size_t depth, const typename P::Element* a,
                                       std::size_t a_pitch, const typename P::Element* b, std::size_t b_pitch, float* c,
                                       std::size_t c_pitch, bool accumulate) {
  if constexpr (P::has_tiles && kA == Stored::by_rows) {
    static_assert(Isa::width == 16);
    const std::size_t done = P::multiply_tiles(m, vectors, depth, a, a_pitch, b, b_pitch, c, c_pitch, accumulate);
    if (done == depth) return;
    a += done;
    b += done * b_pitch;
    depth -= done;
    accumulate = accumulate || done != 0;
  }
  std::size_t v = 0;
  for (; v + Isa::tile_vectors <= vectors; v += Isa::tile_vectors) {
    product_strip<Isa, P, kA, Isa::tile_vectors>(m, depth, a, a_pitch, b + v * Isa::width, b_pitch, c + v * Isa::width, c_pitch,
                                                 accumulate);
  }
  if constexpr (Isa::tile_vectors > 2) {
    for (; v + 2 <= vectors; v += 2) {
      product_strip<Isa, P, kA, 2>(m, depth, a, a_pitch, b + v * Isa::width, b_pitch, c + v * Isa::width, c_pitch, accumulate);
    }
  }
  for (; v < vectors; ++v) {
    product_strip<Isa, P, kA, 1>(m, depth, a, a_pitch, b + v * Isa::width, b_pitch, c + v * Isa::width, c_pitch, accumulate);
  }
}

}  // namespace
}  // namespace bitloom::nn
