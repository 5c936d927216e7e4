// Counting disagreements without a popcount instruction: a carry-save adder tree (Harley-Seal) over the halves of a patch.
// Private to simd/isa; see avx512_conv.h.
//
// One vector holds 32 columns of 16 channels; plane j of a counter holds bit j of each column's count. A full adder takes two
// ternary-logic instructions. With a = x0 ^ w0 and b = x1 ^ w1, ones + a + b takes three with both xors:
//   t = ones ^ x0 ^ w0,   sum = t ^ x1 ^ w1,   carry = maj(ones, a, b) = t ? b : ones = t ? ~sum : ones
//   (t = ones ^ a, sum = t ^ b).
// The order of operands lets each instruction overwrite a value that is not needed any more.
#pragma once

#include "simd/isa/avx512_patches.h"

namespace bitloom::simd {
namespace {

inline constexpr int ternary_fused_carry = 0x74;  // b ? ~c : a

// Bytes of 4-bit popcounts times `weight`.
BITLOOM_INLINE __m512i nibble_counts(int weight) {
  const __m512i once = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
  switch (weight) {
    case 2: return _mm512_add_epi8(once, once);
    case 4: return _mm512_slli_epi16(once, 2);
    case 8: return _mm512_slli_epi16(once, 3);
    case 16: return _mm512_slli_epi16(once, 4);
    default: return once;
  }
}

// bytes += counts[popcount of each byte of plane].
BITLOOM_INLINE __m512i add_byte_counts(__m512i bytes, __m512i plane, __m512i counts) {
  const __m512i nibble = _mm512_set1_epi8(15);
  const __m512i low = _mm512_shuffle_epi8(counts, _mm512_and_si512(plane, nibble));
  const __m512i high = _mm512_shuffle_epi8(counts, _mm512_and_si512(_mm512_srli_epi16(plane, 4), nibble));
  return _mm512_add_epi8(bytes, _mm512_add_epi8(low, high));
}

// Where the tree reads its inputs and weights: half h of pixel p, and the weights that meet it.
template <Halves kind>
struct PatchSource {
  const std::uint32_t* const* x;
  const Counted& counted;

  BITLOOM_INLINE __m512i half(int p, std::size_t h) const { return _mm512_set1_epi32(static_cast<int>(x[p][h])); }
  BITLOOM_INLINE __m512i same(int p, std::size_t h) const {
    return _mm512_set1_epi32(static_cast<int>(x[p][counted.halves + h]));
  }
  // The two load ports are nearly full: weights are loaded once for all pixels.
  BITLOOM_INLINE __m512i sign(std::size_t h) const { return keep(_mm512_loadu_si512(counted.sign + counted.offset<kind>(h))); }
  BITLOOM_INLINE __m512i nonzero(std::size_t h) const {
    return keep(_mm512_loadu_si512(counted.nonzero + counted.offset<kind>(h)));
  }
};

// For peak_loop: freshly zeroed registers stand for the loaded inputs; zeroing takes no execution port.
struct RegisterSource {
  __m512i weights;
  BITLOOM_INLINE __m512i half(int, std::size_t) const { return zeroed(); }
  BITLOOM_INLINE __m512i sign(std::size_t) const { return weights; }
};

// P pixels in lock step, so that they share the loads of the weights.
template <int P, Halves kind, class Source>
struct CsaTree {
  Source source;
  __m512i ones[P], twos[P], fours[P], eights[P], sixteens[P];

  BITLOOM_INLINE void clear() {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) ones[p] = twos[p] = fours[p] = eights[p] = sixteens[p] = _mm512_setzero_si512();
  }

  // The add<n> take the n halves at position h and return, in `carry`, the plane of weight n.
  BITLOOM_INLINE void add2(std::size_t h, __m512i (&carry)[P]) {
    const __m512i w0 = source.sign(h);
    const __m512i w1 = source.sign(h + 1);
    if constexpr (kind == Halves::ternary || kind == Halves::paired) {
      __m512i counted0, counted1;
      if constexpr (kind == Halves::ternary) counted0 = source.nonzero(h), counted1 = source.nonzero(h + 1);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        if constexpr (kind == Halves::paired) counted0 = source.same(p, h), counted1 = source.same(p, h + 1);
        const __m512i a = _mm512_ternarylogic_epi32(source.half(p, h), w0, counted0, ternary_xor_and);
        const __m512i b = _mm512_ternarylogic_epi32(source.half(p, h + 1), w1, counted1, ternary_xor_and);
        carry[p] = full_add(ones[p], a, b);
      }
    } else {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const __m512i t = _mm512_ternarylogic_epi32(source.half(p, h), ones[p], w0, ternary_xor);
        const __m512i sum = _mm512_ternarylogic_epi32(source.half(p, h + 1), t, w1, ternary_xor);
        carry[p] = _mm512_ternarylogic_epi32(ones[p], t, sum, ternary_fused_carry);
        ones[p] = sum;
      }
    }
  }
  BITLOOM_INLINE void add4(std::size_t h, __m512i (&carry)[P]) {
    __m512i a[P], b[P];
    add2(h, a);
    add2(h + 2, b);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) carry[p] = full_add(twos[p], a[p], b[p]);
  }
  BITLOOM_INLINE void add8(std::size_t h, __m512i (&carry)[P]) {
    __m512i a[P], b[P];
    add4(h, a);
    add4(h + 4, b);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) carry[p] = full_add(fours[p], a[p], b[p]);
  }
  BITLOOM_INLINE void add16(std::size_t h, __m512i (&carry)[P]) {
    __m512i a[P], b[P];
    add8(h, a);
    add8(h + 8, b);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) carry[p] = full_add(eights[p], a[p], b[p]);
  }
  BITLOOM_INLINE void add32(std::size_t h, __m512i (&carry)[P]) {
    __m512i a[P], b[P];
    add16(h, a);
    add16(h + 16, b);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) carry[p] = full_add(sixteens[p], a[p], b[p]);
  }
};

struct CsaCounter {
  static constexpr int tile = 2, blocks = 1;

  template <int P, int B, Halves kind>
  static BITLOOM_INLINE void count(const std::uint32_t* const (&x)[P], const Counted& counted, __m512i (&d)[P][B]) {
    static_assert(B == 1);
    const std::size_t halves = counted.halves;
    CsaTree<P, kind, PatchSource<kind>> tree{{x, counted}, {}, {}, {}, {}, {}};
    tree.clear();
    __m512i bytes32[P], sum[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) bytes32[p] = sum[p] = _mm512_setzero_si512();
    // The remainder goes first, smallest piece first: its carries then find their planes empty.
    std::size_t h = 0;
    if (halves & 2) tree.add2(h, tree.twos), h += 2;
    if (halves & 4) tree.add4(h, tree.fours), h += 4;
    if (halves & 8) tree.add8(h, tree.eights), h += 8;
    if (halves & 16) tree.add16(h, tree.sixteens), h += 16;

    const __m512i once = nibble_counts(1);
    const __m512i by_32 = _mm512_set1_epi8(32);
    const __m512i pairs = _mm512_set1_epi16(1);
    std::size_t room = 31;  // 31 times 8 fits a byte
    for (; h < halves; h += 32) {
      __m512i carry[P];
      tree.add32(h, carry);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) bytes32[p] = add_byte_counts(bytes32[p], carry[p], once);
      if (--room == 0) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          sum[p] = _mm512_add_epi32(sum[p], _mm512_madd_epi16(_mm512_maddubs_epi16(bytes32[p], by_32), pairs));
          bytes32[p] = _mm512_setzero_si512();
        }
        room = 31;
      }
    }

    // At most 8 * (1 + 2 + 4 + 8 + 16) = 248 per byte; pairs of bytes with the thirty-twos: at most 16368.
    const __m512i by_1 = _mm512_set1_epi8(1);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      __m512i bytes = add_byte_counts(_mm512_setzero_si512(), tree.ones[p], once);
      bytes = add_byte_counts(bytes, tree.twos[p], nibble_counts(2));
      bytes = add_byte_counts(bytes, tree.fours[p], nibble_counts(4));
      bytes = add_byte_counts(bytes, tree.eights[p], nibble_counts(8));
      bytes = add_byte_counts(bytes, tree.sixteens[p], nibble_counts(16));
      const __m512i both = _mm512_add_epi16(_mm512_maddubs_epi16(bytes, by_1), _mm512_maddubs_epi16(bytes32[p], by_32));
      d[p][0] = _mm512_add_epi32(sum[p], _mm512_madd_epi16(both, pairs));
    }
  }

  // The tree of 32 halves on registers.
  static std::uint64_t peak_loop(std::uint64_t iterations) {
    constexpr int P = tile;
    CsaTree<P, Halves::binary, RegisterSource> tree{{keep(_mm512_set1_epi32(0x55AA00FF))}, {}, {}, {}, {}, {}};
    tree.clear();
    const __m512i once = nibble_counts(1);
    __m512i bytes32[P];
    for (int p = 0; p < P; ++p) bytes32[p] = _mm512_setzero_si512();
    for (std::uint64_t i = 0; i < iterations; ++i) {
      __m512i carry[P];
      tree.add32(0, carry);
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) bytes32[p] = add_byte_counts(bytes32[p], carry[p], once);
    }
    for (int p = 0; p < P; ++p) use(bytes32[p]);
    return iterations * P * 32 * 32 * lanes;
  }
};

}  // namespace
}  // namespace bitloom::simd
