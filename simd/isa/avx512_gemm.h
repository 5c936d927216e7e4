// Integer matrix product and the counting and packing of single maps. Private to simd/isa; see avx512_common.h.
#pragma once

#include "simd/generic/row_tiles.h"
#include "simd/isa/avx512_common.h"

namespace bitloom::simd {
namespace {

// The depth that is summed before C is read and written: a panel of B, 64 columns wide, then stays in the second-level cache
// for all rows of A.
inline constexpr std::size_t gemm_depth = 256;

// sum += a0 b0 + a1 b1 in every lane of pairs of 16-bit integers, modulo 2^32. The sum stays in its register: as GCC 12
// arranges the intrinsics, of vpdpwssd most of all, sums move through memory in a loop that has registers for them.
BITLOOM_INLINE __m512i add_products(__m512i sum, __m512i a, __m512i b) {
#if defined(__AVX512VNNI__) && !defined(BITLOOM_EMULATED_AVX512)
  asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
#else
  return keep(_mm512_add_epi32(sum, _mm512_madd_epi16(a, b)));
#endif
}

// C(R, 16 V) += A(R, depth) B(depth, 16 V).
template <int R, int V>
void gemm_tile(std::size_t depth, const std::int16_t* a, std::size_t a_pitch, const std::int16_t* b, std::size_t b_pitch,
               std::int32_t* c, std::size_t c_pitch) {
  __m512i sum[R][V];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[r][v] = _mm512_loadu_si512(c + r * c_pitch + v * lanes);
  }
  for (std::size_t i = 0; i < depth; i += 2, b += b_pitch) {
    __m512i columns[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) columns[v] = _mm512_loadu_si512(b + static_cast<std::size_t>(v) * 2 * lanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      std::int32_t pair;
      std::memcpy(&pair, a + r * a_pitch + i, sizeof pair);
      const __m512i row = _mm512_set1_epi32(pair);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[r][v] = add_products(sum[r][v], row, columns[v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) _mm512_storeu_si512(c + r * c_pitch + v * lanes, sum[r][v]);
  }
}

template <int V>
void gemm_panel(std::size_t m, std::size_t depth, const std::int16_t* a, std::size_t a_pitch, const std::int16_t* b,
                std::size_t b_pitch, std::int32_t* c, std::size_t c_pitch) {
  for_each_row_tile(
      m, [&]<int R>(std::size_t r) { gemm_tile<R, V>(depth, a + r * a_pitch, a_pitch, b, b_pitch, c + r * c_pitch, c_pitch); });
}

inline void gemm_s16(std::size_t m, std::size_t n, std::size_t k, const std::int16_t* a, std::size_t a_pitch,
                     const std::int16_t* b_pairs, std::int32_t* c, std::size_t c_pitch) {
  for (std::size_t first = 0; first < k; first += gemm_depth) {
    const std::size_t depth = gemm_depth < k - first ? gemm_depth : k - first;
    const std::int16_t* b = b_pairs + first * n;
    std::size_t column = 0;
    for (; column + 4 * lanes <= n; column += 4 * lanes)
      gemm_panel<4>(m, depth, a + first, a_pitch, b + 2 * column, 2 * n, c + column, c_pitch);
    for (; column < n; column += lanes) gemm_panel<1>(m, depth, a + first, a_pitch, b + 2 * column, 2 * n, c + column, c_pitch);
  }
}

// A word is the mask of an addition to 64 byte counters; they are widened before they can overflow.
inline void pool_counts(const std::uint64_t* bits, std::size_t height, std::size_t width, std::size_t words, std::size_t pitch,
                        std::size_t grid, std::int16_t* counts) {
  const __m512i minus_one = _mm512_set1_epi8(-1);
  for (std::size_t a = 0; a < grid; ++a) {
    for (std::size_t b = 0; b < grid; ++b) {
      const std::size_t top = a * height / grid, bottom = (a + 1) * height / grid;
      const std::size_t left = b * width / grid, right = (b + 1) * width / grid;
      for (std::size_t word = 0; word < words; ++word, counts += word_bits) {
        __m512i low = _mm512_setzero_si512(), high = low, bytes = low;
        unsigned room = 255;
        const auto widen = [&] {
          low = _mm512_add_epi16(low, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)));
          high = _mm512_add_epi16(high, _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1)));
          bytes = _mm512_setzero_si512();
          room = 255;
        };
        for (std::size_t i = top; i < bottom; ++i) {
          const std::uint64_t* row = bits + i * pitch + word;
          for (std::size_t j = left; j < right; ++j) {
            bytes = _mm512_mask_sub_epi8(bytes, row[j * words], bytes, minus_one);
            if (--room == 0) widen();
          }
        }
        widen();
        _mm512_storeu_si512(counts, low);
        _mm512_storeu_si512(counts + word_bits / 2, high);
      }
    }
  }
}

// Each value is compared in two neighbouring lanes, as its two thresholds lie: >= in the even one, <= in the odd one.
inline void threshold_pack(const std::int32_t* values, std::size_t pixels, std::size_t features, const std::int32_t* thresholds,
                           std::uint64_t* bits) {
  const __m512i lower = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const __m512i upper = _mm512_add_epi32(lower, _mm512_set1_epi32(8));
  constexpr __mmask16 even = 0x5555, odd = 0xAAAA;
  const auto compare = [](__m512i value, __m512i limit) {
    return static_cast<std::uint32_t>(_mm512_mask_cmpge_epi32_mask(even, value, limit) |
                                      _mm512_mask_cmple_epi32_mask(odd, value, limit));
  };
  const std::size_t groups = features / lanes;
  const std::size_t words = (2 * features + word_bits - 1) / word_bits;
  for (std::size_t p = 0; p < pixels; ++p, values += features, bits += words) {
    for (std::size_t g = 0; g < 2 * words; ++g) {
      std::uint32_t half = 0;
      if (g < groups) {
        const __m512i value = _mm512_loadu_si512(values + g * lanes);
        const std::int32_t* limits = thresholds + g * 2 * lanes;
        half = compare(_mm512_permutexvar_epi32(lower, value), _mm512_loadu_si512(limits)) |
               compare(_mm512_permutexvar_epi32(upper, value), _mm512_loadu_si512(limits + lanes)) << 16;
      }
      std::memcpy(reinterpret_cast<unsigned char*>(bits) + g * sizeof half, &half, sizeof half);
    }
  }
}

}  // namespace
}  // namespace bitloom::simd
