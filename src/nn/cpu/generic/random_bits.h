// Philox 4x32-10 (Salmon et al. 2011) on as many counters at once as a vector has lanes, and dropout: which elements are kept.
// The meaning of the draws is in nn/philox.h and nn/dropout.h; tests compare with those.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/elements.h"

namespace bitloom::nn {
namespace {

inline constexpr std::size_t random_at_once = 32;  // groups: two vectors at least, since one waits for its own products

// Calls of Philox under one key, lane by lane.
template <typename Isa>
struct PhiloxVectors {
  using Word = typename Isa::Word;
  static constexpr std::size_t rounds = 10, vectors = 2;
  Word key0[rounds], key1[rounds];

  explicit BITLOOM_INLINE PhiloxVectors(std::uint64_t key) {
#pragma GCC unroll 10
    for (std::uint32_t round = 0; round < rounds; ++round) {
      key0[round] = Isa::word_splat(static_cast<std::uint32_t>(key) + round * 0x9E3779B9U);
      key1[round] = Isa::word_splat(static_cast<std::uint32_t>(key >> 32U) + round * 0xBB67AE85U);
    }
  }

  // The counters (group_of(lane), second), lanes counted through all vectors, become words of draws.
  template <typename GroupOf>
  BITLOOM_INLINE void draw(GroupOf group_of, std::uint64_t second, Word (&c)[vectors][4]) const {
    constexpr std::uint32_t m0 = 0xD2511F53, m1 = 0xCD9E8D57;
#pragma GCC unroll 2
    for (std::size_t v = 0; v < vectors; ++v) {
      alignas(64) std::uint32_t low[Isa::width], high[Isa::width];
      for (std::size_t lane = 0; lane < Isa::width; ++lane) {
        const std::uint64_t group = group_of(v * Isa::width + lane);
        low[lane] = static_cast<std::uint32_t>(group);
        high[lane] = static_cast<std::uint32_t>(group >> 32U);
      }
      c[v][0] = Isa::load_words(low);
      c[v][1] = Isa::load_words(high);
      c[v][2] = Isa::word_splat(static_cast<std::uint32_t>(second));
      c[v][3] = Isa::word_splat(static_cast<std::uint32_t>(second >> 32U));
    }
#pragma GCC unroll 10
    for (std::size_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 2
      for (std::size_t v = 0; v < vectors; ++v) {
        Word high0, high1;
        const Word low0 = Isa::product(c[v][0], m0, high0);
        const Word low1 = Isa::product(c[v][2], m1, high1);
        c[v][0] = (high1 ^ c[v][1]) ^ key0[round];
        c[v][1] = low1;
        c[v][2] = (high0 ^ c[v][3]) ^ key1[round];
        c[v][3] = low0;
      }
    }
  }
};

// bits[i], bit e: element e of group groups[i] is kept. n is rounded up to a multiple of random_at_once: so long are both.
template <typename Isa>
void keep_bits(const DropoutKey& key, const std::uint64_t* groups, std::size_t n, std::uint8_t* bits) {
  using Word = typename Isa::Word;
  constexpr std::size_t vectors = PhiloxVectors<Isa>::vectors;
  const PhiloxVectors<Isa> philox(key.seed);
  // A draw is kept if it is at least the threshold: then threshold - 1 - draw has its highest bit set.
  const Word last_dropped = Isa::word_splat(key.threshold - 1);
  for (std::size_t begin = 0; begin < n; begin += vectors * Isa::width) {
    Word c[vectors][4];
    philox.draw(
        [=](std::size_t lane) __attribute__((always_inline)) { return groups[begin + lane]; }, key.site, c);
#pragma GCC unroll 2
    for (std::size_t v = 0; v < vectors; ++v) {
      Word kept = Isa::word_splat(0);
#pragma GCC unroll 4
      for (int word = 0; word < 4; ++word) {
        const Word first = last_dropped - (c[v][word] & Isa::word_splat(0xFFFF));
        const Word second = last_dropped - Isa::template shift_right<16>(c[v][word]);
        const Word pair =
            Isa::template shift_right<31>(first) | Isa::template shift_left<1>(Isa::template shift_right<31>(second));
        kept = Isa::template shift_right<2>(kept) | Isa::template shift_left<6>(pair);
      }
      Isa::store_bytes(bits + begin + v * Isa::width, kept);
    }
  }
}

template <typename Isa, typename V>
void dropout(const DropoutKey& key, std::uint64_t first_group, const V* x, V* y, std::size_t n) {
  constexpr std::size_t groups_at_once = 128, group = 8;
  const auto factor = Isa::splat(key.factor);
  std::uint64_t groups[groups_at_once];
  std::uint8_t bits[groups_at_once + 8];
  for (std::size_t begin = 0; begin < n; begin += groups_at_once * group) {
    for (std::size_t i = 0; i < groups_at_once; ++i) groups[i] = first_group + begin / group + i;
    keep_bits<Isa>(key, groups, groups_at_once, bits);
    const std::size_t here = n - begin < groups_at_once * group ? n - begin : groups_at_once * group;
    for_vectors<Isa>(
        here, [ =, &bits ](std::size_t i, auto part) __attribute__((always_inline)) {
          // The next numbers arrive while their bits are drawn.
          __builtin_prefetch(x + begin + groups_at_once * group + i, 0, 2);
          __builtin_prefetch(y + begin + groups_at_once * group + i, 1, 2);
          std::uint32_t lanes;
          __builtin_memcpy(&lanes, bits + i / group, sizeof lanes);
          const auto kept = Isa::mask_of(lanes >> (i % group));
          part.store(y + begin + i, Isa::select(kept, factor * part.load(x + begin + i), Isa::splat(0)));
        });
  }
}

}  // namespace
}  // namespace bitloom::nn
