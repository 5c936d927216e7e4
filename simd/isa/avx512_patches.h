// Halves of a patch, and how the AVX-512 convolutions count them. Private to simd/isa; see avx512_conv.h.
#pragma once

#include "simd/isa/avx512_common.h"

namespace bitloom::simd {
namespace {

// How the halves of a patch are counted: x ^ sign; (x ^ sign) & nonzero; or two words of bits a and b that meet the same
// weights w at once (ConvShape::twin), by popcount(a ^ w) + popcount(b ^ w) = popcount(a ^ b) + 2 popcount((a ^ w) & ~(a ^ b)),
// of which the first is a pixel's alone. `single` is binary, for the words beside pairs.
enum class Halves { binary, ternary, paired, single };

// The counted part of a patch, and the weights of the first block of the group.
struct Counted {
  const std::uint32_t* sign = nullptr;
  const std::uint32_t* nonzero = nullptr;  // of ternary weights
  std::size_t block = 0;                   // halves of weights per block
  std::size_t halves = 0;                  // of a patch; of pairs those of a, behind which are as many of ~(a ^ b)
  const std::uint32_t* place = nullptr;    // of pairs and single words: which halves of weights they meet

  template <Halves kind>
  BITLOOM_INLINE std::size_t offset(std::size_t h) const {
    return (kind == Halves::paired || kind == Halves::single ? place[h] : h) * lanes;
  }
};

// Patches with pairs: a of each, ~(a ^ b) of each, single words, and the sum of popcount(a ^ b).
class Pairs {
 public:
  // Lists have room for 4 * shape.patch_words() numbers.
  void list(const ConvShape& shape, std::uint32_t* lists) {
    std::size_t pairs = 0, singles = 0;
    for (std::size_t w = 0; w < shape.pixel_words; ++w) {
      pairs += shape.twin[w] > w ? 1 : 0;
      singles += shape.twin[w] == w ? 1 : 0;
    }
    const std::size_t taps = shape.patch_words() / shape.pixel_words;
    pairs_ = pairs * taps;
    singles_ = singles * taps;
    first_ = lists;
    second_ = first_ + pairs_ + singles_;
    place_ = second_ + pairs_;
    std::size_t pair = 0, single = pairs_;
    for (std::size_t r = 0; r < shape.patch_rows; ++r) {
      for (std::size_t w = 0; w < shape.run_words; ++w) {
        const std::size_t word = w % shape.pixel_words, twin = shape.twin[word];
        if (twin < word) continue;
        const std::size_t at = twin > word ? pair++ : single++;
        first_[at] = static_cast<std::uint32_t>(r * shape.pitch + w);
        if (twin > word) second_[at] = static_cast<std::uint32_t>(r * shape.pitch + w - word + twin);
        place_[2 * at] = static_cast<std::uint32_t>(2 * (r * shape.run_words + w));
        place_[2 * at + 1] = place_[2 * at] + 1;
      }
    }
  }

  // patch_words() + 1 words, which are read as halves.
  void gather(const std::uint64_t* source, std::uint64_t* patch) const {
    const auto put = [](std::uint64_t* to, std::uint64_t word) { std::memcpy(to, &word, sizeof word); };
    std::uint64_t differing = 0;
    for (std::size_t k = 0; k < pairs_; ++k) {
      const std::uint64_t a = source[first_[k]], differ = a ^ source[second_[k]];
      put(patch + k, a);
      put(patch + pairs_ + k, ~differ);
      differing += static_cast<std::uint64_t>(__builtin_popcountll(differ));
    }
    patch += 2 * pairs_;
    for (std::size_t k = 0; k < singles_; ++k) put(patch + k, source[first_[pairs_ + k]]);
    put(patch + singles_, differing);
  }

  template <class Counter, int P, int B>
  BITLOOM_INLINE void count(const std::uint32_t* const (&x)[P], Counted counted, __m512i (&d)[P][B]) const {
    counted.halves = 2 * pairs_;
    counted.place = place_;
    Counter::template count<P, B, Halves::paired>(x, counted, d);
    const std::uint32_t* single[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      single[p] = x[p] + 4 * pairs_;
      const __m512i differing = _mm512_set1_epi32(static_cast<int>(single[p][2 * singles_]));
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) d[p][b] = _mm512_add_epi32(_mm512_add_epi32(d[p][b], d[p][b]), differing);
    }
    if (singles_ == 0) return;
    __m512i others[P][B];
    counted.halves = 2 * singles_;
    counted.place = place_ + 2 * pairs_;
    Counter::template count<P, B, Halves::single>(single, counted, others);
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 8
      for (int b = 0; b < B; ++b) d[p][b] = _mm512_add_epi32(d[p][b], others[p][b]);
    }
  }

 private:
  std::size_t pairs_ = 0, singles_ = 0;  // words of a patch
  // Words of the map, from where a patch begins: of each pair or single word, and its twin.
  std::uint32_t *first_ = nullptr, *second_ = nullptr;
  std::uint32_t* place_ = nullptr;  // of halves, among those of weights
};

}  // namespace
}  // namespace bitloom::simd
