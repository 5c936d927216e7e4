// The AVX2 table (Haswell, Zen and later).
#include "simd/generic/elementwise.h"
#include "simd/isa/avx2_conv.h"

#include "simd/generic/local_arch.h"
#include "simd/generic/positional_count.h"
#include "simd/generic/row_tiles.h"

BITLOOM_LOCAL_ARCH(avx2)

namespace bitloom::simd {
namespace {

struct Isa {
  using Batch = xsimd::batch<std::uint64_t, LocalArch>;

  static BITLOOM_INLINE Batch splat(std::uint64_t x) { return Batch(_mm256_set1_epi64x(static_cast<long long>(x))); }
  static BITLOOM_INLINE Batch load_part(const std::uint64_t* from, std::size_t words) {
    const __m256i count = _mm256_set1_epi64x(static_cast<long long>(words));
    const __m256i valid = _mm256_cmpgt_epi64(count, _mm256_setr_epi64x(0, 1, 2, 3));
    return Batch(_mm256_maskload_epi64(reinterpret_cast<const long long*>(from), valid));
  }

  static BITLOOM_INLINE __m128i join_bytes(const std::uint8_t* low, const std::uint8_t* high) {
    return _mm_unpacklo_epi8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(low)),
                             _mm_loadl_epi64(reinterpret_cast<const __m128i*>(high)));
  }
  static BITLOOM_INLINE void add_bytes(std::int32_t* to, const std::uint8_t* low, const std::uint8_t* high, unsigned shift,
                                       std::uint32_t bias) {
    const __m256i count =
        _mm256_sll_epi32(_mm256_cvtepu16_epi32(join_bytes(low, high)), _mm_cvtsi32_si128(static_cast<int>(shift)));
    store(to, _mm256_add_epi32(load(to), _mm256_add_epi32(count, _mm256_set1_epi32(static_cast<int>(bias)))));
  }
  static BITLOOM_INLINE void put_bytes(std::int16_t* to, const std::uint8_t* low, const std::uint8_t* high) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), join_bytes(low, high));
  }
};

void accumulate_rows(const RowLists& rows, std::int32_t* sums) { accumulate_rows_with<Isa>(rows, sums); }

void pool_counts(const std::uint64_t* bits, std::size_t height, std::size_t width, std::size_t words, std::size_t pitch,
                 std::size_t grid, std::int16_t* counts) {
  pool_counts_with<Isa>(bits, height, width, words, pitch, grid, counts);
}

// A tile of `rows` x 16 of C stays in registers over all of K; vpmaddwd does a pair of K.
template <std::size_t rows>
inline __attribute__((always_inline)) void gemm_tile(std::size_t n, std::size_t k, const std::int16_t* a, std::size_t a_pitch,
                                                     const std::int16_t* b_pairs, std::int32_t* c, std::size_t c_pitch) {
  __m256i sum[rows][2];
  for (std::size_t r = 0; r < rows; ++r) {
    sum[r][0] = load(c + r * c_pitch);
    sum[r][1] = load(c + r * c_pitch + 8);
  }
  for (std::size_t i = 0; i < k; i += 2) {
    const __m256i b0 = load(b_pairs + i * n);
    const __m256i b1 = load(b_pairs + i * n + 16);
    for (std::size_t r = 0; r < rows; ++r) {
      std::int32_t pair;
      __builtin_memcpy(&pair, a + r * a_pitch + i, sizeof pair);
      const __m256i x = _mm256_set1_epi32(pair);
      sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(x, b0));
      sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(x, b1));
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    store(c + r * c_pitch, sum[r][0]);
    store(c + r * c_pitch + 8, sum[r][1]);
  }
}

void gemm_s16(std::size_t m, std::size_t n, std::size_t k, const std::int16_t* a, std::size_t a_pitch,
              const std::int16_t* b_pairs, std::int32_t* c, std::size_t c_pitch) {
  for (std::size_t column = 0; column < n; column += 16) {
    const std::int16_t* b = b_pairs + 2 * column;
    for_each_row_tile(m, [&]<std::size_t R>(std::size_t row) {
      gemm_tile<R>(n, k, a + row * a_pitch, a_pitch, b, c + row * c_pitch + column, c_pitch);
    });
  }
}

void threshold_pack(const std::int32_t* values, std::size_t pixels, std::size_t features, const std::int32_t* thresholds,
                    std::uint64_t* bits) {
  const std::size_t words = (2 * features + 63) / 64;
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  for (std::size_t p = 0; p < pixels; ++p) {
    for (std::size_t word = 0; word < words; ++word) {
      std::uint64_t packed = 0;
      for (std::size_t f = 32 * word; f < features && f < 32 * word + 32; f += 4) {
        const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values + p * features + f));
        const __m256i x = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(four), twice);
        const __m256i t = load(thresholds + 2 * f);
        // Not below the first of a pair of thresholds, not above the second.
        const __m256i fails = _mm256_blend_epi32(_mm256_cmpgt_epi32(t, x), _mm256_cmpgt_epi32(x, t), 0xaa);
        const unsigned mask = ~static_cast<unsigned>(_mm256_movemask_ps(_mm256_castsi256_ps(fails))) & 0xffU;
        packed |= static_cast<std::uint64_t>(mask) << (2 * (f - 32 * word));
      }
      bits[p * words + word] = packed;
    }
  }
}

}  // namespace

const Kernels avx2_kernels = {"avx2",      conv,           conv_counts,      accumulate_rows, pool_counts,
                              gemm_s16,    threshold_pack, prepare_rounding, centre_gradient, descend,
                              combine_s16, adam,           peak_loop};

}  // namespace bitloom::simd
