// The table that every x86-64 has, with SSE2: vectors of 4 floats.
#include <emmintrin.h>

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/local_arch.h"
#include "nn/cpu/kernels.h"

BITLOOM_NN_LOCAL_ARCH(sse2)

#include "nn/cpu/generic/isa_parts.h"
#include "nn/cpu/generic/table.h"
#include "nn/cpu/kernel_tables.h"

namespace bitloom::nn {
namespace {

struct Isa : PartsByCopy<Isa>, PowersByAdding<Isa> {
  using Float = xsimd::batch<float, LocalArch>;
  using Word = xsimd::batch<std::uint32_t, LocalArch>;
  using Mask = xsimd::batch_bool<float, LocalArch>;
  static constexpr std::size_t width = 4, tile_rows = 6, tile_vectors = 2;
  static constexpr bool has_fma = false, exact_scaling = false, fast_lookup = false, has_lane_bits = false,
                        packs_numbers = false;
  template <typename V>
  using Product = FloatProduct<Isa>;

  static BITLOOM_INLINE Float splat(float x) { return Float(_mm_set1_ps(x)); }
  static BITLOOM_INLINE Float load(const float* from) { return Float(_mm_loadu_ps(from)); }
  static BITLOOM_INLINE Float load(const bf16* from) {
    const __m128i four = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from));
    return Float(_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), four)));
  }
  static BITLOOM_INLINE Mask first(std::size_t n) { return mask_of((1U << n) - 1U); }
  static BITLOOM_INLINE Float first_lanes(Float x, std::size_t n) { return Float(_mm_and_ps(x, first(n))); }
  static BITLOOM_INLINE void store(float* to, Float x) { _mm_storeu_ps(to, x); }
  // To the nearest, ties to even; NaN stays NaN.
  static BITLOOM_INLINE void store(bf16* to, Float x) {
    const __m128i bits = _mm_castps_si128(x);
    const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
    const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, _mm_set1_epi32(0x7FFF)), odd);
    const __m128i nan = _mm_castps_si128(_mm_cmpunord_ps(x, x));
    const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
    const __m128i result = _mm_or_si128(_mm_and_si128(nan, quiet), _mm_andnot_si128(nan, rounded));
    const __m128i halves = _mm_srai_epi32(result, 16);  // sign-extended, so that signed saturation keeps them
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi32(halves, halves));
  }

  static BITLOOM_INLINE Float fma(Float a, Float b, Float c) { return a * b + c; }
  static BITLOOM_INLINE Float fnma(Float a, Float b, Float c) { return c - a * b; }
  static BITLOOM_INLINE Float max(Float a, Float b) { return Float(_mm_max_ps(a, b)); }
  static BITLOOM_INLINE Float min(Float a, Float b) { return Float(_mm_min_ps(a, b)); }
  static BITLOOM_INLINE Float abs(Float x) { return Float(_mm_andnot_ps(_mm_set1_ps(-0.0F), x)); }
  static BITLOOM_INLINE Float sqrt(Float x) { return Float(_mm_sqrt_ps(x)); }
  static BITLOOM_INLINE Mask beats(Float a, Float b) { return Mask(_mm_and_ps(_mm_cmpnle_ps(a, b), _mm_cmpord_ps(b, b))); }
  static BITLOOM_INLINE Mask less(Float a, Float b) { return Mask(_mm_cmplt_ps(a, b)); }
  static BITLOOM_INLINE Float select(Mask mask, Float a, Float b) {
    return Float(_mm_or_ps(_mm_and_ps(mask, a), _mm_andnot_ps(mask, b)));
  }
  static BITLOOM_INLINE Mask mask_of(std::uint32_t bits) {
    const __m128i lane = _mm_setr_epi32(1, 2, 4, 8);
    const __m128i all = _mm_set1_epi32(static_cast<int>(bits));
    return Mask(_mm_castsi128_ps(_mm_cmpeq_epi32(_mm_and_si128(all, lane), lane)));
  }
  static BITLOOM_INLINE float sum(Float x) {
    const __m128 two = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
  static BITLOOM_INLINE float largest(Float x) {
    const __m128 two = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
  }

  static BITLOOM_INLINE Word as_word(Float x) { return Word(_mm_castps_si128(x)); }
  static BITLOOM_INLINE Float as_float(Word x) { return Float(_mm_castsi128_ps(x)); }
  static BITLOOM_INLINE Word word_splat(std::uint32_t x) { return Word(_mm_set1_epi32(static_cast<int>(x))); }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_left(Word x) {
    return Word(_mm_slli_epi32(x, kBits));
  }
  template <unsigned kBits>
  static BITLOOM_INLINE Word shift_right(Word x) {
    return Word(_mm_srli_epi32(x, kBits));
  }
  static BITLOOM_INLINE Float to_float(Word x) { return Float(_mm_cvtepi32_ps(x)); }
  static BITLOOM_INLINE Word load_words(const std::uint32_t* from) {
    return Word(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static BITLOOM_INLINE Word load_bytes(const std::uint8_t* from) {
    return Word(_mm_setr_epi32(from[0], from[1], from[2], from[3]));
  }
  static BITLOOM_INLINE void store_bytes(std::uint8_t* to, Word x) {
    const __m128i halves = _mm_packs_epi32(x, x);
    const int four = _mm_cvtsi128_si32(_mm_packus_epi16(halves, halves));
    __builtin_memcpy(to, &four, sizeof four);
  }
  static BITLOOM_INLINE Word product(Word a, std::uint32_t m, Word& high) {
    const __m128i by = _mm_set1_epi32(static_cast<int>(m));
    const __m128i low_half = _mm_set1_epi64x(0xFFFFFFFF);
    const __m128i even = _mm_mul_epu32(a, by);
    const __m128i odd = _mm_mul_epu32(_mm_srli_epi64(a, 32), by);
    high = Word(_mm_or_si128(_mm_srli_epi64(even, 32), _mm_andnot_si128(low_half, odd)));
    return Word(_mm_or_si128(_mm_and_si128(even, low_half), _mm_slli_epi64(odd, 32)));
  }
  static BITLOOM_INLINE Float lookup(const float* table, Word index) {
    alignas(16) std::uint32_t at[width];
    _mm_store_si128(reinterpret_cast<__m128i*>(at), index);
    return Float(_mm_setr_ps(table[at[0] % 16], table[at[1] % 16], table[at[2] % 16], table[at[3] % 16]));
  }

  struct Squares {
    __m128d low, high;
  };
  static BITLOOM_INLINE Squares no_squares() { return {_mm_setzero_pd(), _mm_setzero_pd()}; }
  static BITLOOM_INLINE void add_squares(Squares& to, Float x) {
    const __m128d low = _mm_cvtps_pd(x);
    const __m128d high = _mm_cvtps_pd(_mm_movehl_ps(x, x));
    to.low = _mm_add_pd(to.low, _mm_mul_pd(low, low));
    to.high = _mm_add_pd(to.high, _mm_mul_pd(high, high));
  }
  static BITLOOM_INLINE void store_squares(double* to, const Squares& x) {
    _mm_storeu_pd(to, x.low);
    _mm_storeu_pd(to + 2, x.high);
  }
};

}  // namespace

constinit const VectorKernels baseline_vector_kernels = make_vector_kernels<Isa>("baseline");

}  // namespace bitloom::nn
