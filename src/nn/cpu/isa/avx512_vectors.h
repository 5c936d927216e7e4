// Vectors of 16 floats for the tables that have AVX-512 F, BW, DQ and VL, and BMI2 (Skylake-X, Zen 4 and later).
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/local_arch.h"
#include "nn/cpu/kernels.h"

BITLOOM_NN_LOCAL_ARCH(avx512bw)

namespace bitloom::nn {
namespace {

// To the nearest bf16, ties to even; NaN stays NaN.
struct NarrowByIntegers {
  static BITLOOM_INLINE __m256i narrow(__m512 x) {
    const __m512i bits = _mm512_castps_si512(x);
    const __m512i upper = _mm512_srli_epi32(bits, 16);
    const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7FFF)), odd), 16);
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(rounded, nan, upper, _mm512_set1_epi32(0x40)));
  }
};

// Narrow: how floats become bf16.
template <typename Narrow>
struct Avx512 {
  using Float = xsimd::batch<float, LocalArch>;
  using Word = xsimd::batch<std::uint32_t, LocalArch>;
  using Mask = __mmask16;
  static constexpr std::size_t width = 16, tile_rows = 6, tile_vectors = 4;
  static constexpr bool has_fma = true, exact_scaling = true, fast_lookup = true, has_lane_bits = true, packs_numbers = false;

  static BITLOOM_INLINE __mmask16 first(std::size_t n) { return static_cast<__mmask16>((1U << n) - 1U); }
  static BITLOOM_INLINE __m512 widen(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
  static BITLOOM_INLINE Float splat(float x) { return Float(_mm512_set1_ps(x)); }
  static BITLOOM_INLINE Float load(const float* from) { return Float(_mm512_loadu_ps(from)); }
  static BITLOOM_INLINE Float load(const bf16* from) {
    return Float(widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
  }
  static BITLOOM_INLINE Float load_part(const float* from, std::size_t n) {
    return Float(_mm512_maskz_loadu_ps(first(n), from));
  }
  static BITLOOM_INLINE Float load_part(const bf16* from, std::size_t n) {
    return Float(widen(_mm256_maskz_loadu_epi16(first(n), from)));
  }
  template <typename T>
  static BITLOOM_INLINE Float load_part(const T* from, std::size_t n, float fill) {
    return Float(_mm512_mask_mov_ps(_mm512_set1_ps(fill), first(n), load_part(from, n)));
  }
  static BITLOOM_INLINE Float first_lanes(Float x, std::size_t n) { return Float(_mm512_maskz_mov_ps(first(n), x)); }
  static BITLOOM_INLINE void store(float* to, Float x) { _mm512_storeu_ps(to, x); }
  static BITLOOM_INLINE void store(bf16* to, Float x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), Narrow::narrow(x));
  }
  static BITLOOM_INLINE void store_part(float* to, Float x, std::size_t n) { _mm512_mask_storeu_ps(to, first(n), x); }
  static BITLOOM_INLINE void store_part(bf16* to, Float x, std::size_t n) {
    _mm256_mask_storeu_epi16(to, first(n), Narrow::narrow(x));
  }

  static BITLOOM_INLINE Float fma(Float a, Float b, Float c) { return Float(_mm512_fmadd_ps(a, b, c)); }
  static BITLOOM_INLINE Float fnma(Float a, Float b, Float c) { return Float(_mm512_fnmadd_ps(a, b, c)); }
  static BITLOOM_INLINE Float max(Float a, Float b) { return Float(_mm512_max_ps(a, b)); }
  static BITLOOM_INLINE Float min(Float a, Float b) { return Float(_mm512_min_ps(a, b)); }
  static BITLOOM_INLINE Float abs(Float x) { return Float(_mm512_abs_ps(x)); }
  static BITLOOM_INLINE Float sqrt(Float x) { return Float(_mm512_sqrt_ps(x)); }
  static BITLOOM_INLINE Mask beats(Float a, Float b) {
    return _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(b, b, _CMP_ORD_Q), a, b, _CMP_NLE_UQ);
  }
  static BITLOOM_INLINE Mask less(Float a, Float b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static BITLOOM_INLINE Float select(Mask mask, Float a, Float b) { return Float(_mm512_mask_mov_ps(b, mask, a)); }
  static BITLOOM_INLINE Mask mask_of(std::uint32_t bits) { return static_cast<__mmask16>(bits); }
  static BITLOOM_INLINE std::uint32_t lanes_of(Mask mask) { return mask; }
  static BITLOOM_INLINE std::uint64_t deposit(std::uint64_t bits, std::uint64_t places) { return _pdep_u64(bits, places); }
  static BITLOOM_INLINE float sum(Float x) { return _mm512_reduce_add_ps(x); }
  static BITLOOM_INLINE float largest(Float x) { return _mm512_reduce_max_ps(x); }

  static BITLOOM_INLINE Float round_to_power(Float x, Float& power) {
    power = Float(_mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    return power;
  }
  static BITLOOM_INLINE Float scale_by(Float p, Float power) { return Float(_mm512_scalef_ps(p, power)); }

  static BITLOOM_INLINE Word as_word(Float x) { return Word(_mm512_castps_si512(x)); }
  static BITLOOM_INLINE Float as_float(Word x) { return Float(_mm512_castsi512_ps(x)); }
  static BITLOOM_INLINE Word word_splat(std::uint32_t x) { return Word(_mm512_set1_epi32(static_cast<int>(x))); }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_left(Word x) {
    return Word(_mm512_slli_epi32(x, kBits));
  }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_right(Word x) {
    return Word(_mm512_srli_epi32(x, kBits));
  }
  static BITLOOM_INLINE Float to_float(Word x) { return Float(_mm512_cvtepi32_ps(x)); }
  static BITLOOM_INLINE Word load_words(const std::uint32_t* from) { return Word(_mm512_loadu_si512(from)); }
  static BITLOOM_INLINE Word load_bytes(const std::uint8_t* from) {
    return Word(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static BITLOOM_INLINE void store_bytes(std::uint8_t* to, Word x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(x));
  }
  static BITLOOM_INLINE Word product(Word a, std::uint32_t m, Word& high) {
    const __m512i by = _mm512_set1_epi32(static_cast<int>(m));
    const __m512i even = _mm512_mul_epu32(a, by);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), by);
    high = Word(_mm512_mask_mov_epi32(_mm512_srli_epi64(even, 32), 0xAAAA, odd));
    return Word(_mm512_mask_mov_epi32(even, 0xAAAA, _mm512_slli_epi64(odd, 32)));
  }
  static BITLOOM_INLINE Float lookup(const float* table, Word index) {
    return Float(_mm512_permutexvar_ps(index, _mm512_loadu_ps(table)));
  }

  struct Squares {
    __m512d low, high;
  };
  static BITLOOM_INLINE Squares no_squares() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
  static BITLOOM_INLINE void add_squares(Squares& to, Float x) {
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    to.low = _mm512_fmadd_pd(low, low, to.low);
    to.high = _mm512_fmadd_pd(high, high, to.high);
  }
  static BITLOOM_INLINE void store_squares(double* to, const Squares& x) {
    _mm512_storeu_pd(to, x.low);
    _mm512_storeu_pd(to + 8, x.high);
  }
};

}  // namespace
}  // namespace bitloom::nn
