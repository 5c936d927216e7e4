// Shared by the files of isa/ for CPUs with AVX-512 BF16: products of bf16 by pairs, and how tiles of pairs are packed.
#pragma once

#include "nn/cpu/isa/avx512_vectors.h"

#include "nn/cpu/generic/attention_tiles.h"

namespace bitloom::nn {
namespace {

// Two bf16 per element: number 2 k in the low half, 2 k + 1 in the high one.
struct PairProduct {
  using Element = std::uint32_t;
  using Vector = __m512i;
  static constexpr std::size_t depth = 2;
  static constexpr bool has_tiles = false;
  static BITLOOM_INLINE Vector load(const Element* from) { return _mm512_loadu_si512(from); }
  static BITLOOM_INLINE Vector splat(const Element* from) { return _mm512_set1_epi32(static_cast<int>(*from)); }
  static BITLOOM_INLINE xsimd::batch<float, LocalArch> multiply_add(Vector a, Vector b, xsimd::batch<float, LocalArch> c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  }
};

struct NarrowNatively {
  static BITLOOM_INLINE __m256i narrow(__m512 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)); }
};

// Tiles whose elements are pairs.
template <typename Isa>
struct PairPacking {
  static constexpr bool one_format = false;
  static constexpr Stored left = Stored::by_columns;

  static void pack_along(HeadRows<const bf16> from, std::size_t rows, std::size_t head_size, std::uint32_t* to) {
    const std::size_t pitch = padded_head(head_size);
    auto* out = reinterpret_cast<bf16*>(to);
    for (std::size_t row = 0; row < rows; ++row) {
      __builtin_memcpy(static_cast<void*>(out + row * pitch), from.data + row * from.pitch, head_size * sizeof(bf16));
      __builtin_memset(static_cast<void*>(out + row * pitch + head_size), 0, (pitch - head_size) * sizeof(bf16));
    }
    __builtin_memset(static_cast<void*>(out + rows * pitch), 0, (attention_block - rows) * pitch * sizeof(bf16));
  }

  static BITLOOM_INLINE __m512i widen(const bf16* from, std::size_t n) {
    return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(n >= 16 ? 0xFFFF : Isa::first(n), from));
  }
  static void pack_across(HeadRows<const bf16> from, std::size_t rows, std::size_t head_size, std::uint32_t* to) {
    const std::size_t pitch = padded_head(head_size);
    for (std::size_t row = 0; row < attention_block; row += 2) {
      const bf16* x = from.data + row * from.pitch;
      for (std::size_t i = 0; i < pitch; i += 16) {
        const std::size_t n = i < head_size ? head_size - i : 0;
        const __m512i even = row < rows ? widen(x + i, n) : _mm512_setzero_si512();
        const __m512i odd = row + 1 < rows ? widen(x + from.pitch + i, n) : _mm512_setzero_si512();
        _mm512_storeu_si512(to + row / 2 * pitch + i, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
      }
    }
  }

  static BITLOOM_INLINE void put_across(std::uint32_t* to, std::size_t row, std::size_t column, typename Isa::Float even,
                                        typename Isa::Float odd) {
    const __m512i low = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(even)));
    const __m512i high = _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(odd)));
    _mm512_storeu_si512(to + row / 2 * attention_block + column, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
  }
  static BITLOOM_INLINE void put_along(std::uint32_t* to, std::size_t row, std::size_t column, typename Isa::Float x) {
    auto* out = reinterpret_cast<bf16*>(to) + row * attention_block + column;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
};

}  // namespace
}  // namespace bitloom::nn
