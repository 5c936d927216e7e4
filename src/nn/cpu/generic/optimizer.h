// AdamW, with f32 masters and without.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#include "nn/cpu/generic/elements.h"
#include "nn/cpu/generic/random_bits.h"

namespace bitloom::nn {
namespace {

template <typename Isa>
struct AdamWUpdate {
  using Float = typename Isa::Float;
  Float gradient_scale, beta1, rest1, beta2, rest2, variance_limit, variance_factor, epsilon, rate, decay;

  explicit BITLOOM_INLINE AdamWUpdate(const AdamWFactors& f)
      : gradient_scale(Isa::splat(f.gradient_scale)),
        beta1(Isa::splat(f.beta1)),
        rest1(Isa::splat(f.rest1)),
        beta2(Isa::splat(f.beta2)),
        rest2(Isa::splat(f.rest2)),
        variance_limit(Isa::splat(f.variance_limit)),
        variance_factor(Isa::splat(f.variance_factor)),
        epsilon(Isa::splat(f.epsilon)),
        rate(Isa::splat(f.rate * f.mean_factor)),
        decay(Isa::splat(f.decay)) {}

  // The new value; the moments are stored.
  template <typename Part>
  BITLOOM_INLINE Float operator()(Part part, Float old, const float* gradient, float* mean, float* variance) const {
    const Float g = part.load(gradient) * gradient_scale;
    const Float m = Isa::fma(beta1, part.load(mean), rest1 * g);
    const Float v = Isa::min(variance_limit, Isa::fma(beta2, part.load(variance), rest2 * (g * g)));  // NaN stays NaN
    part.store(mean, m);
    part.store(variance, v);
    // The decay is formed apart from the value: 1 - decay would be rounded to a multiple of 2^-24, often coarser than decay.
    const Float step = (rate * m) / (Isa::sqrt(v * variance_factor) + epsilon);
    return old - Isa::fma(decay, old, step);
  }
};

template <typename Isa, typename V>
void adamw(const AdamWFactors& f, float* value, const float* gradient, float* mean, float* variance, V* copy, std::size_t n) {
  const AdamWUpdate<Isa> update(f);
  for_vectors<Isa>(
      n, [=](std::size_t i, auto part) __attribute__((always_inline)) {
        const auto fresh = update(part, part.load(value + i), gradient + i, mean + i, variance + i);
        part.store(value + i, fresh);
        if (copy != nullptr) part.store(copy + i, fresh);
      });
}

inline constexpr std::size_t rounded_at_once = 8 * random_at_once;  // elements
// Those that begin within a group of 8 read up to 7 draws further.
using RoundingDraws = bf16[rounded_at_once + 8];

// draws[i]: the 16 random bits of element 8 first_group + i, for `groups` groups at least.
template <typename Isa>
BITLOOM_INLINE void draw_roundings(const PhiloxVectors<Isa>& philox, std::uint64_t step, std::uint64_t first_group,
                                   std::size_t groups, RoundingDraws& draws) {
  constexpr std::size_t vectors = PhiloxVectors<Isa>::vectors;
  for (std::size_t begin = 0; begin < groups; begin += vectors * Isa::width) {
    typename Isa::Word c[vectors][4];
    philox.draw(
        [=](std::size_t lane) __attribute__((always_inline)) { return first_group + begin + lane; }, step, c);
    for (std::size_t v = 0; v < vectors; ++v) {
      alignas(64) float words[4][Isa::width];
      for (std::size_t word = 0; word < 4; ++word) Isa::store(words[word], Isa::as_float(c[v][word]));
      for (std::size_t lane = 0; lane < Isa::width; ++lane) {
        for (std::size_t word = 0; word < 4; ++word) {
          __builtin_memcpy(static_cast<void*>(draws + 8 * (begin + v * Isa::width + lane) + 2 * word), &words[word][lane], 4);
        }
      }
    }
  }
}

// Rounds as nn/stochastic_rounding.h says; tests compare with that. Upper halves are cut off outside vectors, since an
// instruction set's own conversion may take numbers that are too small to be normal for 0.
template <typename Isa>
void adamw_rounding(const AdamWFactors& f, const RoundingKey& key, std::uint64_t first, bf16* value, const float* gradient,
                    float* mean, float* variance, std::size_t n) {
  const AdamWUpdate<Isa> update(f);
  const PhiloxVectors<Isa> philox(key.key);
  const auto infinity = Isa::splat(std::numeric_limits<float>::infinity());
  alignas(64) RoundingDraws draws;
  alignas(64) float sums[rounded_at_once];
  std::size_t here;
  for (std::size_t begin = 0; begin < n; begin += here) {
    const std::size_t skipped = (first + begin) % 8;  // 0 from the second turn on
    here = n - begin < rounded_at_once - skipped ? n - begin : rounded_at_once - skipped;
    draw_roundings<Isa>(philox, key.step, (first + begin) / 8, (skipped + here + 7) / 8, draws);
    const bf16* const draw = draws + skipped;
    for_vectors<Isa>(
        here, [ =, &sums ](std::size_t i, auto part) __attribute__((always_inline)) {
          const std::size_t at = begin + i;
          const auto fresh = update(part, part.load(value + at), gradient + at, mean + at, variance + at);
          const auto bits = Isa::as_word(fresh);
          const auto sum = bits + Isa::template shift_right<16>(Isa::as_word(Isa::load(draw + i)));
          const auto quiet = Isa::as_float(bits | Isa::word_splat(0x400000));
          // Only NaN is neither at most infinity nor more.
          Isa::store(sums + i, Isa::select(Isa::beats(fresh, infinity), quiet, Isa::as_float(sum)));
        });
    for (std::size_t i = 0; i < here; ++i) {
      std::uint32_t bits;
      __builtin_memcpy(&bits, sums + i, sizeof bits);
      value[begin + i].bits = static_cast<std::uint16_t>(bits >> 16U);
    }
  }
}

}  // namespace
}  // namespace bitloom::nn
