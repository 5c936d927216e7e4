// Relaxed categorical variables and their divergence from the uniform distribution. Which draw an element has is said in
// nn/gumbel.h; tests compare with that.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/random_bits.h"
#include "nn/cpu/generic/softmax.h"

namespace bitloom::nn {
namespace {

// Noise of elements 4 first_group, ... in numbers that are a multiple of what is drawn at once, at least n.
template <typename Isa>
void gumbel_noise(const GumbelKey& key, std::uint64_t first_group, std::size_t n, float* noise) {
  using Word = typename Isa::Word;
  constexpr std::size_t vectors = PhiloxVectors<Isa>::vectors, words = 4;
  const PhiloxVectors<Isa> philox(key.seed);
  const auto unit = Isa::splat(1.0F / 8388608.0F);
  const auto zero = Isa::splat(0);
  alignas(64) float lanes[words][Isa::width];
  for (std::size_t begin = 0; begin < n; begin += vectors * Isa::width * words) {
    Word c[vectors][words];
    philox.draw(
        [=](std::size_t lane) __attribute__((always_inline)) { return first_group + begin / words + lane; }, key.site, c);
#pragma GCC unroll 2
    for (std::size_t v = 0; v < vectors; ++v) {
#pragma GCC unroll 4
      for (std::size_t word = 0; word < words; ++word) {
        const auto uniform = (Isa::to_float(Isa::template shift_right<9>(c[v][word])) + Isa::splat(0.5F)) * unit;
        Isa::store(lanes[word], zero - log<Isa>(zero - log<Isa>(uniform)));
      }
      float* to = noise + begin + v * Isa::width * words;
      for (std::size_t lane = 0; lane < Isa::width; ++lane) {
        for (std::size_t word = 0; word < words; ++word) to[lane * words + word] = lanes[word][lane];
      }
    }
  }
}

template <typename Isa, typename V>
void gumbel_softmax(const GumbelKey& key, std::uint64_t first, const V* x, V* y, float* scratch, std::size_t rows,
                    std::size_t columns) {
  constexpr std::size_t group = 4;
  const auto inverse = Isa::splat(key.inverse_temperature);
  for (std::size_t row = 0; row < rows; ++row, first += columns, x += columns, y += columns) {
    const std::size_t before = first % group;
    gumbel_noise<Isa>(key, first / group, before + columns, scratch);
    float* const values = scratch + before;
    const V* const from = x;
    V* const to = y;
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          part.store(values + i, (part.load(from + i) + part.load(values + i)) * inverse);
        });
    const Denominator d = denominator<Isa>(static_cast<const float*>(values), columns);
    const auto shift = Isa::splat(d.most);
    const auto factor = Isa::splat(1 / d.sum);
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part)
                     __attribute__((always_inline)) { part.store(to + i, exp<Isa>(part.load(values + i) - shift) * factor); });
  }
}

// Logarithms of p are clamped to this: p is 0 there, and the product with -infinity would be NaN.
inline constexpr float least_log_p = -200;

template <typename Isa, typename V>
void categorical_kl(const V* logits, float scale, float* kl, V* dlogits, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row) {
    const V* const x = logits + row * columns;
    const Denominator d = denominator<Isa>(x, columns);
    const auto shift = Isa::splat(d.most);
    const auto least = Isa::splat(least_log_p);
    // The sum of exp(x - most) (x - most).
    const float products = sum_over<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          const auto distance = Isa::max(least, part.load(x + i) - shift);
          const auto product = exp<Isa>(distance) * distance;
          if constexpr (decltype(part)::is_whole) {
            return product;
          } else {
            return Isa::first_lanes(product, part.n);
          }
        });
    const double log_sum = __builtin_log(static_cast<double>(d.sum));
    const double mean = static_cast<double>(products) / static_cast<double>(d.sum) - log_sum;  // of log p
    kl[row] = static_cast<float>(__builtin_log(static_cast<double>(columns)) + mean);
    if (dlogits == nullptr) continue;
    V* const dx = dlogits + row * columns;
    const auto factor = Isa::splat(scale / d.sum);
    const auto rest = Isa::splat(static_cast<float>(-log_sum - mean));
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          const auto distance = Isa::max(least, part.load(x + i) - shift);
          part.store(dx + i, Isa::fma(exp<Isa>(distance) * factor, distance + rest, part.load(dx + i)));
        });
  }
}

}  // namespace
}  // namespace bitloom::nn
