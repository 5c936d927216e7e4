// The table for CPUs with AVX2 and FMA (Haswell, Zen and later): vectors of 8 floats.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/local_arch.h"
#include "nn/cpu/kernels.h"

BITLOOM_NN_LOCAL_ARCH(avx2)

#include "nn/cpu/generic/isa_parts.h"
#include "nn/cpu/generic/table.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::nn {
namespace {

struct Isa : PowersByAdding<Isa> {
  using Float = xsimd::batch<float, LocalArch>;
  using Word = xsimd::batch<std::uint32_t, LocalArch>;
  using Mask = xsimd::batch_bool<float, LocalArch>;
  static constexpr std::size_t width = 8, tile_rows = 6, tile_vectors = 2;
  static constexpr bool has_fma = true, exact_scaling = false, fast_lookup = true, has_lane_bits = false, packs_numbers = true;
  template <typename V>
  using Product = FloatProduct<Isa>;

  static BITLOOM_INLINE __m256i first(std::size_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static BITLOOM_INLINE __m256 widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
  // To the nearest, ties to even; NaN stays NaN.
  static BITLOOM_INLINE __m128i narrow(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i upper = _mm256_srli_epi32(bits, 16);
    const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7FFF)), odd), 16);
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    const __m256i result = _mm256_blendv_epi8(rounded, _mm256_or_si256(upper, _mm256_set1_epi32(0x40)), nan);
    return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
  }

  static BITLOOM_INLINE Float splat(float x) { return Float(_mm256_set1_ps(x)); }
  static BITLOOM_INLINE Float load(const float* from) { return Float(_mm256_loadu_ps(from)); }
  static BITLOOM_INLINE Float load(const bf16* from) {
    return Float(widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
  }
  static BITLOOM_INLINE Float load_part(const float* from, std::size_t n) { return Float(_mm256_maskload_ps(from, first(n))); }
  static BITLOOM_INLINE Float load_part(const bf16* from, std::size_t n) {
    bf16 part[width];
    __builtin_memset(static_cast<void*>(part), 0, sizeof part);
    __builtin_memcpy(static_cast<void*>(part), from, n * sizeof(bf16));
    return load(part);
  }
  template <typename T>
  static BITLOOM_INLINE Float load_part(const T* from, std::size_t n, float fill) {
    return Float(_mm256_blendv_ps(_mm256_set1_ps(fill), load_part(from, n), _mm256_castsi256_ps(first(n))));
  }
  static BITLOOM_INLINE Float first_lanes(Float x, std::size_t n) {
    return Float(_mm256_and_ps(x, _mm256_castsi256_ps(first(n))));
  }
  static BITLOOM_INLINE void store(float* to, Float x) { _mm256_storeu_ps(to, x); }
  static BITLOOM_INLINE void store(bf16* to, Float x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), narrow(x)); }
  static BITLOOM_INLINE void store_part(float* to, Float x, std::size_t n) { _mm256_maskstore_ps(to, first(n), x); }
  static BITLOOM_INLINE void store_part(bf16* to, Float x, std::size_t n) {
    bf16 part[width];
    store(part, x);
    __builtin_memcpy(static_cast<void*>(to), part, n * sizeof(bf16));
  }

  static BITLOOM_INLINE Float fma(Float a, Float b, Float c) { return Float(_mm256_fmadd_ps(a, b, c)); }
  static BITLOOM_INLINE Float fnma(Float a, Float b, Float c) { return Float(_mm256_fnmadd_ps(a, b, c)); }
  static BITLOOM_INLINE Float max(Float a, Float b) { return Float(_mm256_max_ps(a, b)); }
  static BITLOOM_INLINE Float min(Float a, Float b) { return Float(_mm256_min_ps(a, b)); }
  static BITLOOM_INLINE Float abs(Float x) { return Float(_mm256_andnot_ps(_mm256_set1_ps(-0.0F), x)); }
  static BITLOOM_INLINE Float sqrt(Float x) { return Float(_mm256_sqrt_ps(x)); }
  static BITLOOM_INLINE Mask beats(Float a, Float b) {
    return Mask(_mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLE_UQ), _mm256_cmp_ps(b, b, _CMP_ORD_Q)));
  }
  static BITLOOM_INLINE Mask less(Float a, Float b) { return Mask(_mm256_cmp_ps(a, b, _CMP_LT_OQ)); }
  static BITLOOM_INLINE Float select(Mask mask, Float a, Float b) { return Float(_mm256_blendv_ps(b, a, mask)); }
  static BITLOOM_INLINE Mask mask_of(std::uint32_t bits) {
    const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    const __m256i all = _mm256_set1_epi32(static_cast<int>(bits));
    return Mask(_mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, lane), lane)));
  }
  static BITLOOM_INLINE float sum(Float x) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }
  static BITLOOM_INLINE float largest(Float x) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  static BITLOOM_INLINE Word as_word(Float x) { return Word(_mm256_castps_si256(x)); }
  static BITLOOM_INLINE Float as_float(Word x) { return Float(_mm256_castsi256_ps(x)); }
  static BITLOOM_INLINE Word word_splat(std::uint32_t x) { return Word(_mm256_set1_epi32(static_cast<int>(x))); }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_left(Word x) {
    return Word(_mm256_slli_epi32(x, kBits));
  }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_right(Word x) {
    return Word(_mm256_srli_epi32(x, kBits));
  }
  static BITLOOM_INLINE Float to_float(Word x) { return Float(_mm256_cvtepi32_ps(x)); }
  static BITLOOM_INLINE Word load_words(const std::uint32_t* from) {
    return Word(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static BITLOOM_INLINE Word load_bytes(const std::uint8_t* from) {
    return Word(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
  }
  static BITLOOM_INLINE void store_bytes(std::uint8_t* to, Word x) {
    const __m256i words = x;
    const __m128i halves = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(halves, halves));
  }
  static BITLOOM_INLINE Word product(Word a, std::uint32_t m, Word& high) {
    const __m256i by = _mm256_set1_epi32(static_cast<int>(m));
    const __m256i even = _mm256_mul_epu32(a, by);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), by);
    high = Word(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA));
    return Word(_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA));
  }
  static BITLOOM_INLINE Float lookup(const float* table, Word index) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
    return Float(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28))));
  }

  static BITLOOM_INLINE Word ones_where_less(Float a, Float b) {
    return Word(_mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ)));
  }
  static BITLOOM_INLINE Float lookup_eight(const float* table, Word index) {
    return Float(_mm256_permutevar8x32_ps(_mm256_load_ps(table), index));
  }
  // Multiplications join neighbours, then pairs; fours are put together by a shift.
  template <unsigned kBits>
  static BITLOOM_INLINE void pack_numbers(std::uint8_t* to, const Word* number) {
    // The first four numbers of each vector in the lower half, the others in the upper one.
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_packus_epi32(number[0], number[1]), _mm256_packus_epi32(number[2], number[3]));
    const __m256i pairs = _mm256_maddubs_epi16(bytes, _mm256_set1_epi16(1 | 256 << kBits));
    const __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 | 65536 << (2 * kBits)));
    const __m128i upper = _mm_slli_epi32(_mm256_extracti128_si256(fours, 1), 4 * kBits);
    const __m128i eights = _mm_or_si128(_mm256_castsi256_si128(fours), upper);
    // kBits bytes of every four.
    alignas(16) static constexpr std::uint8_t places[4][16] = {
        {0, 4, 8, 12, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128},
        {0, 1, 4, 5, 8, 9, 12, 13, 128, 128, 128, 128, 128, 128, 128, 128},
        {0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 128, 128, 128, 128},
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};
    const __m128i compact = _mm_shuffle_epi8(eights, _mm_load_si128(reinterpret_cast<const __m128i*>(places[kBits - 1])));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), compact);
  }

  struct Squares {
    __m256d low, high;
  };
  static BITLOOM_INLINE Squares no_squares() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
  static BITLOOM_INLINE void add_squares(Squares& to, Float x) {
    const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
    const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
    to.low = _mm256_fmadd_pd(low, low, to.low);
    to.high = _mm256_fmadd_pd(high, high, to.high);
  }
  static BITLOOM_INLINE void store_squares(double* to, const Squares& x) {
    _mm256_storeu_pd(to, x.low);
    _mm256_storeu_pd(to + 4, x.high);
  }
};

}  // namespace

constinit const VectorKernels avx2_vector_kernels = make_vector_kernels<Isa>("avx2");

}  // namespace bitloom::nn
