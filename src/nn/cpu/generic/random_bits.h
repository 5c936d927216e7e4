// Dropout: which elements are kept, by Philox 4x32-10 (Salmon et al. 2011) on as many counters at once as a vector has lanes.
// What the draws mean is said in nn/dropout.h; tests compare with that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/elements.h"

namespace bitloom::nn {
namespace {

// bits[i], bit e: element e of group groups[i] is kept. `groups` is a multiple of 16 long (the rest may be anything), and so is
// `bits`.
template <typename Isa>
void keep_bits(const DropoutKey& key, const std::uint64_t* groups, std::size_t n, std::uint8_t* bits) {
  using Word = typename Isa::Word;
  constexpr std::uint32_t m0 = 0xD2511F53, m1 = 0xCD9E8D57;
  for (std::size_t begin = 0; begin < n; begin += Isa::width) {
    alignas(64) std::uint32_t low[Isa::width], high[Isa::width];
    for (std::size_t lane = 0; lane < Isa::width; ++lane) {
      low[lane] = static_cast<std::uint32_t>(groups[begin + lane]);
      high[lane] = static_cast<std::uint32_t>(groups[begin + lane] >> 32U);
    }
    Word c[4] = {Isa::load_words(low), Isa::load_words(high), Isa::word_splat(static_cast<std::uint32_t>(key.site)),
                 Isa::word_splat(static_cast<std::uint32_t>(key.site >> 32U))};
    auto k0 = static_cast<std::uint32_t>(key.seed);
    auto k1 = static_cast<std::uint32_t>(key.seed >> 32U);
    for (int round = 0; round < 10; ++round) {
      Word high0, high1;
      const Word low0 = Isa::product(c[0], m0, high0);
      const Word low1 = Isa::product(c[2], m1, high1);
      c[0] = (high1 ^ c[1]) ^ Isa::word_splat(k0);
      c[1] = low1;
      c[2] = (high0 ^ c[3]) ^ Isa::word_splat(k1);
      c[3] = low0;
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    // A draw is kept if it is at least the threshold: then threshold - 1 - draw has its highest bit set.
    const Word last_dropped = Isa::word_splat(key.threshold - 1);
    Word kept = Isa::word_splat(0);
#pragma GCC unroll 4
    for (int word = 0; word < 4; ++word) {
      const Word first = last_dropped - (c[word] & Isa::word_splat(0xFFFF));
      const Word second = last_dropped - Isa::template shift_right<16>(c[word]);
      const Word pair =
          Isa::template shift_right<31>(first) | Isa::template shift_left<1>(Isa::template shift_right<31>(second));
      kept = Isa::template shift_right<2>(kept) | Isa::template shift_left<6>(pair);
    }
    Isa::store_bytes(bits + begin, kept);
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
          std::uint32_t lanes;
          __builtin_memcpy(&lanes, bits + i / group, sizeof lanes);
          const auto kept = Isa::mask_of(lanes >> (i % group));
          part.store(y + begin + i, Isa::select(kept, factor * part.load(x + begin + i), Isa::splat(0)));
        });
  }
}

}  // namespace
}  // namespace bitloom::nn
