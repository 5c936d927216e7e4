// AdamW, with f32 masters and without, and its moments of 16 bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "nn/cpu/generic/elements.h"
#include "nn/cpu/generic/random_bits.h"
#include "nn/stochastic_rounding.h"

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

// The upper halves of words (n) are cut off outside vectors, since an instruction
// set's own conversion may take numbers that are too small to be normal for 0.
template <typename T>
BITLOOM_INLINE void store_upper_halves(const float* words, T* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, words + i, sizeof bits);
    to[i].bits = static_cast<std::uint16_t>(bits >> 16U);
  }
}

// visit(begin, count, draws) for pieces of n elements, of which the first has the number `first`: draws[i] is that of element
// begin + i.
template <typename Isa, typename Visit>
BITLOOM_INLINE void for_draws(const RoundingKey& key, std::uint64_t first, std::size_t n, Visit visit) {
  const PhiloxVectors<Isa> philox(key.key);
  alignas(64) RoundingDraws draws;
  std::size_t here;
  for (std::size_t begin = 0; begin < n; begin += here) {
    const std::size_t skipped = (first + begin) % 8;  // 0 from the second turn on
    here = n - begin < rounded_at_once - skipped ? n - begin : rounded_at_once - skipped;
    draw_roundings<Isa>(philox, key.step, (first + begin) / 8, (skipped + here + 7) / 8, draws);
    visit(begin, here, draws + skipped);
  }
}

// Rounds as nn/stochastic_rounding.h says; tests compare with that.
template <typename Isa>
void adamw_rounding(const AdamWFactors& f, const RoundingKey& key, std::uint64_t first, bf16* value, const float* gradient,
                    float* mean, float* variance, std::size_t n) {
  const AdamWUpdate<Isa> update(f);
  const auto infinity = Isa::splat(std::numeric_limits<float>::infinity());
  for_draws<Isa>(
      key, first, n, [=](std::size_t begin, std::size_t here, const bf16* draw) __attribute__((always_inline)) {
        alignas(64) float sums[rounded_at_once];
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
        store_upper_halves(sums, value + begin, here);
      });
}

// Codes of T in the upper halves of words -> floats. The code's bits at the places that f32's have make a number of f32 when
// the exponent is made up for: one more than that doubles normal numbers, and adds 2^(1 - bias) to those that are too small to
// be normal, so that no f32 is one of these, which some instruction sets take for 0 and others are slow with.
template <typename Isa, typename T>
BITLOOM_INLINE typename Isa::Float widened(typename Isa::Float codes) {
  using Rounding = NarrowRounding<T::fraction_bits, T::bias>;
  constexpr bool has_sign = std::is_same_v<T, f1_6_9>;
  const auto float_of = [](std::uint32_t bits) __attribute__((always_inline)) { return Isa::as_float(Isa::word_splat(bits)); };
  const auto words = Isa::as_word(codes);
  const auto fraction =
      Isa::template shift_right<16 - Rounding::dropped>(has_sign ? words & Isa::word_splat(0x7FFF0000) : words);
  const auto raised = Isa::as_float(fraction + Isa::word_splat(Rounding::least_normal));
  const auto number = Isa::select(Isa::less(raised, float_of(Rounding::least_normal + (1U << 23U))),
                                  raised - float_of(Rounding::least_normal), raised * Isa::splat(0.5F));
  const auto special = Isa::as_float(Isa::as_word(number) | Isa::word_splat(0x7F800000));  // infinity and NaN
  const auto magnitude = Isa::select(Isa::less(raised, float_of(Rounding::least_normal + (63U << 23U))), number, special);
  if (!has_sign) return magnitude;
  return Isa::as_float(Isa::as_word(magnitude) | (words & Isa::word_splat(0x80000000)));
}

template <typename Isa>
void widen_moments(const f1_6_9* from_mean, const f0_6_10* from_variance, float* mean, float* variance, std::size_t n) {
  // Loaded as bf16, their bits are the upper halves of words.
  const auto* const means = reinterpret_cast<const bf16*>(from_mean);
  const auto* const variances = reinterpret_cast<const bf16*>(from_variance);
  for_vectors<Isa>(
      n, [=](std::size_t i, auto part) __attribute__((always_inline)) {
        part.store(mean + i, widened<Isa, f1_6_9>(part.load(means + i)));
        part.store(variance + i, widened<Isa, f0_6_10>(part.load(variances + i)));
      });
}

// Floats -> codes of T in the upper halves of words, as NarrowRounding::code() has them; tests compare with that. draws: 16
// random bits in the upper half of each.
template <typename Isa, typename T>
BITLOOM_INLINE typename Isa::Float rounded(typename Isa::Float x, typename Isa::Float draws) {
  using Rounding = NarrowRounding<T::fraction_bits, T::bias>;
  const auto float_of = [](std::uint32_t bits) __attribute__((always_inline)) { return Isa::as_float(Isa::word_splat(bits)); };
  const auto infinity = Isa::splat(std::numeric_limits<float>::infinity());
  const auto size = Isa::abs(x);
  const auto magnitude = Isa::min(float_of(Rounding::largest), size);
  const auto raised = Isa::as_word(magnitude + float_of(Rounding::least_normal)) - Isa::word_splat(1U << 23U);
  const auto number = Isa::select(Isa::less(magnitude, float_of(Rounding::least_normal)), Isa::as_float(raised), magnitude);
  const auto bits =
      Isa::as_word(Isa::select(Isa::beats(size, infinity), float_of(Rounding::nan), number));  // only NaN beats it
  const auto draw = Isa::template shift_right<32 - Rounding::dropped>(Isa::as_word(draws));
  const auto code = Isa::template shift_left<16 - Rounding::dropped>(bits + draw - Isa::word_splat(Rounding::exponents << 23U));
  if (!std::is_same_v<T, f1_6_9>) return Isa::as_float(code);
  return Isa::as_float((code & Isa::word_splat(0x7FFFFFFF)) | (Isa::as_word(x) & Isa::word_splat(0x80000000)));
}

template <typename Isa, typename T>
BITLOOM_INLINE void round_all(const RoundingKey& key, std::uint64_t first, const float* from, T* to, std::size_t n) {
  for_draws<Isa>(
      key, first, n, [=](std::size_t begin, std::size_t here, const bf16* draw) __attribute__((always_inline)) {
        alignas(64) float codes[rounded_at_once];
        for_vectors<Isa>(
            here, [ =, &codes ](std::size_t i, auto part) __attribute__((always_inline)) {
              Isa::store(codes + i, rounded<Isa, T>(part.load(from + begin + i), Isa::load(draw + i)));
            });
        store_upper_halves(codes, to + begin, here);
      });
}

template <typename Isa>
void round_moments(const RoundingKey& of_mean, const RoundingKey& of_variance, std::uint64_t first, const float* mean,
                   const float* variance, f1_6_9* to_mean, f0_6_10* to_variance, std::size_t n) {
  round_all<Isa>(of_mean, first, mean, to_mean, n);
  round_all<Isa>(of_variance, first, variance, to_variance, n);
}

}  // namespace
}  // namespace bitloom::nn
