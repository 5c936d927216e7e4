// The table for CPUs with AVX-512 F, BW, DQ, VL and VPOPCNTDQ (Ice Lake, Zen 4 and later). All but the convolution is as in
// the table without VPOPCNTDQ.
#include "simd/isa/avx512_conv.h"
#include "simd/isa/avx512_csa_conv.h"
#include "simd/isa/avx512_gemm.h"
#include "simd/isa/avx512_rows.h"
#include "simd/tables.h"

namespace bitloom::simd {
namespace {

// One full adder per two halves and pixel, then a popcount of its carry: 5 instructions (two of them with an xor inside)
// where xor, popcount and add twice are 6. Any more levels of carry-save cost what they save.
struct PopcountCounter {
  static constexpr int tile = 4;

  template <int P, bool kTernary>
  static BITLOOM_INLINE void count(const std::uint32_t* const (&x)[P], const std::uint32_t* sign, const std::uint32_t* nonzero,
                                   std::size_t halves, __m512i (&d)[P]) {
    CsaTree<P, kTernary, PatchSource> tree{{x, sign, nonzero}, {}, {}, {}, {}, {}};
    tree.clear();
    __m512i twos[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) twos[p] = _mm512_setzero_si512();
      // The number of halves is even.
#pragma GCC unroll 2
    for (std::size_t h = 0; h < halves; h += 2) add_pair(tree, h, twos);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) d[p] = _mm512_add_epi32(_mm512_add_epi32(twos[p], twos[p]), _mm512_popcnt_epi32(tree.ones[p]));
  }

  // The same on registers.
  static std::uint64_t peak_loop(std::uint64_t iterations) {
    constexpr int P = tile;
    CsaTree<P, false, RegisterSource> tree{{_mm512_set1_epi32(0x55AA00FF)}, {}, {}, {}, {}, {}};
    asm volatile("" : "+v"(tree.source.weights));
    tree.clear();
    __m512i twos[P];
    for (int p = 0; p < P; ++p) twos[p] = _mm512_setzero_si512();
    for (std::uint64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 4
      for (std::size_t h = 0; h < 8; h += 2) add_pair(tree, h, twos);
    }
    for (int p = 0; p < P; ++p) asm volatile("" : : "v"(twos[p]));
    return iterations * P * 8 * 32 * lanes;
  }

 private:
  template <int P, bool kTernary, class Source>
  static BITLOOM_INLINE void add_pair(CsaTree<P, kTernary, Source>& tree, std::size_t h, __m512i (&twos)[P]) {
    __m512i carry[P];
    tree.add2(h, carry);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) twos[p] = _mm512_add_epi32(twos[p], _mm512_popcnt_epi32(carry[p]));
  }
};

}  // namespace

const Kernels avx512_vpopcntdq_kernels = {
    "avx512_vpopcntdq", conv<PopcountCounter>, conv_counts<PopcountCounter>, accumulate_rows, pool_counts,
    gemm_s16,           threshold_pack,        PopcountCounter::peak_loop};

}  // namespace bitloom::simd
