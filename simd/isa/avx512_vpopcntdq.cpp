// The table for CPUs with AVX-512 F, BW, DQ, VL, VPOPCNTDQ and VNNI (Ice Lake, Zen 4 and later). All but the convolution and
// the matrix product's inner step is as in the table without VPOPCNTDQ.
#include "simd/generic/elementwise.h"
#include "simd/isa/avx512_conv.h"
#include "simd/isa/avx512_gemm.h"
#include "simd/isa/avx512_rows.h"
#include "simd/tables.h"

namespace bitloom::simd {
namespace {

// xor, popcount, add. Tiles of 8 pixels and 2 blocks keep 16 sums in registers and need 10 loads per 48 of these: fewer pixels
// or one block are bound by the two load ports. A carry-save step in front of the popcount, 5 instructions for 6, would pay on
// Intel's processors, whose popcount has one port; on Zen 5, where it has two, it measured slower.
struct PopcountCounter {
  static constexpr int tile = 8, blocks = 2;

  template <int P, int B, Halves kind>
  static BITLOOM_INLINE void count(const std::uint32_t* const (&x)[P], const Counted& counted, __m512i (&d)[P][B]) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) d[p][b] = _mm512_setzero_si512();
    }
    const std::size_t halves = counted.halves;
#pragma GCC unroll 2
    for (std::size_t h = 0; h < halves; ++h) {
      const std::size_t offset = counted.offset<kind>(h);
      __m512i w[B], n[B];
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) {
        const std::size_t at = static_cast<std::size_t>(b) * counted.block * lanes + offset;
        w[b] = keep(_mm512_loadu_si512(counted.sign + at));
        if constexpr (kind == Halves::ternary) n[b] = keep(_mm512_loadu_si512(counted.nonzero + at));
      }
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const __m512i half = keep(_mm512_set1_epi32(static_cast<int>(x[p][h])));
        __m512i same;
        if constexpr (kind == Halves::paired) same = keep(_mm512_set1_epi32(static_cast<int>(x[p][halves + h])));
#pragma GCC unroll 8
        for (int b = 0; b < B; ++b) {
          __m512i differ;
          if constexpr (kind == Halves::ternary || kind == Halves::paired) {
            differ = _mm512_ternarylogic_epi32(half, w[b], kind == Halves::ternary ? n[b] : same, ternary_xor_and);
          } else {
            differ = _mm512_xor_si512(half, w[b]);
          }
          d[p][b] = _mm512_add_epi32(d[p][b], _mm512_popcnt_epi32(differ));
        }
      }
    }
  }

  // The same three instructions on registers, in 12 chains; weights and pixel are opaque anew in every round.
  static std::uint64_t peak_loop(std::uint64_t iterations) {
    constexpr int chains = 12;
    __m512i sum[chains], w[chains];
    __m512i half = _mm512_set1_epi32(0x55AA00FF);
    for (int c = 0; c < chains; ++c) {
      sum[c] = _mm512_setzero_si512();
      w[c] = keep(_mm512_set1_epi32(c));
    }
    for (std::uint64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 2
      for (int repeat = 0; repeat < 2; ++repeat) {
        half = keep(half);
#pragma GCC unroll 16
        for (int c = 0; c < chains; ++c) sum[c] = _mm512_add_epi32(sum[c], _mm512_popcnt_epi32(_mm512_xor_si512(half, w[c])));
      }
    }
    for (const __m512i& s : sum) use(s);
    return iterations * 2 * chains * 32 * lanes;
  }
};

}  // namespace

const Kernels avx512_vpopcntdq_kernels = {"avx512_vpopcntdq",
                                          conv<PopcountCounter>,
                                          conv_counts<PopcountCounter>,
                                          accumulate_rows,
                                          pool_counts,
                                          gemm_s16,
                                          threshold_pack,
                                          prepare_rounding,
                                          centre_gradient,
                                          descend,
                                          combine_s16,
                                          adam,
                                          PopcountCounter::peak_loop};

}  // namespace bitloom::simd
