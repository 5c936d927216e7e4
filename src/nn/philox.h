// Philox 4x32-10: a random function of a counter and a key, without state (Salmon, Moraes, Dror, Shaw: "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011, section 3.3 and table 2). Bit operations and products of 32 bits only, so that every
// backend draws the same numbers. C++17: CUDA includes this too.
#pragma once

#include <cstdint>

namespace bitloom::nn {

// 128 bits, the least significant word first.
struct Philox4x32 {
  std::uint32_t word[4];
};

constexpr Philox4x32 philox_words(std::uint64_t low, std::uint64_t high) {
  return {{static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32U), static_cast<std::uint32_t>(high),
           static_cast<std::uint32_t>(high >> 32U)}};
}

constexpr Philox4x32 philox(Philox4x32 counter, std::uint64_t key) {
  constexpr std::uint64_t m0 = 0xD2511F53, m1 = 0xCD9E8D57;
  constexpr std::uint32_t golden_ratio = 0x9E3779B9, root_of_3_minus_1 = 0xBB67AE85;  // by which the key moves every round
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32U);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = m0 * counter.word[0];
    const std::uint64_t p1 = m1 * counter.word[2];
    counter = {{static_cast<std::uint32_t>(p1 >> 32U) ^ counter.word[1] ^ k0, static_cast<std::uint32_t>(p1),
                static_cast<std::uint32_t>(p0 >> 32U) ^ counter.word[3] ^ k1, static_cast<std::uint32_t>(p0)}};
    k0 += golden_ratio;
    k1 += root_of_3_minus_1;
  }
  return counter;
}

// 16 of the bits: half i, 0 to 7, the least significant first.
constexpr std::uint32_t philox_half(const Philox4x32& draws, unsigned i) {
  return (draws.word[i / 2] >> (16U * (i % 2))) & 0xFFFFU;
}

}  // namespace bitloom::nn
