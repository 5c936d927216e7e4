// Which elements dropout drops: the one place that knows. Eight neighbours share a call of Philox, so that vector kernels need
// one for 16 bytes of random bits. C++17: CUDA includes this too.
#pragma once

#include <cstdint>

#include "nn/philox.h"

namespace bitloom::nn {

inline constexpr unsigned dropout_group = 8;  // elements of one call of Philox

// The rate in units of 2^-16, to the nearest; 0 <= rate <= 1. An element whose draw is below it is dropped.
constexpr std::uint32_t dropout_threshold(double rate) { return static_cast<std::uint32_t>(rate * 65536 + 0.5); }

// By which elements that are kept grow: 1 / (1 - the rate after rounding). threshold < 65536.
constexpr double dropout_factor(std::uint32_t threshold) { return 65536.0 / (65536.0 - threshold); }

// The draws of elements 8 group .. 8 group + 7, element 8 group + i in bits 16 (i % 2) .. 16 (i % 2) + 15 of word i / 2.
constexpr Philox4x32 dropout_draws(std::uint64_t seed, std::uint64_t site, std::uint64_t group) {
  return philox(philox_words(group, site), seed);
}

constexpr std::uint32_t dropout_draw(const Philox4x32& draws, unsigned i) { return philox_half(draws, i); }

constexpr bool is_dropped(std::uint64_t seed, std::uint64_t site, std::uint32_t threshold, std::uint64_t element) {
  const Philox4x32 draws = dropout_draws(seed, site, element / dropout_group);
  return dropout_draw(draws, static_cast<unsigned>(element % dropout_group)) < threshold;
}

}  // namespace bitloom::nn
