// Counter-based random numbers: a draw is a pure function of (seed, stream, counters), so that any number of threads or
// ranks sees the same stream, and resuming needs no generator state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bitloom {

// The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// Purpose of a stream; part of the key, so that two uses of one seed never share numbers. Values are stored in no file,
// but changing one changes every result: append only.
enum class Stream : std::uint64_t {
  shuffle = 1,
  augment = 2,
  weight_init = 3,
  head_init = 4,
  gradient_rounding = 5,
  synthetic_data = 6,
  validation_split = 7,
  encoder_fit = 8,
  flips = 9,
  test = 10,
  augment_copy = 11,
  dropout = 12,
  workers = 13,
  cluster = 14,
  sampling = 16,
  merge_dropout = 20,
  chunk_order = 21,
  text_split = 22,
  weight_rounding = 23,
  image_flip = 24,
};

// A sequence of random numbers keyed by (seed, stream, a, b). Cheap to construct: make one per example or per channel.
class Random {
 public:
  constexpr Random(std::uint64_t seed, Stream stream, std::uint64_t a = 0, std::uint64_t b = 0)
      : key_(mix64(mix64(mix64(mix64(seed) ^ static_cast<std::uint64_t>(stream)) ^ a) ^ b)) {}

  constexpr std::uint64_t next() { return mix64(key_ + 0xd1342543de82ef95ULL * counter_++); }
  // Uniform in [0, bound), bound > 0 (multiply-shift; the bias is below bound / 2^32).
  constexpr std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(((next() >> 32) * bound) >> 32); }
  // Uniform in [0, 1), a multiple of 2^-53.
  constexpr double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  // Roughly normal, mean 0, variance 1: the sum of 12 uniforms, so that no library function's rounding matters.
  constexpr double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

 private:
  std::uint64_t key_;
  std::uint64_t counter_ = 0;
};

// Fisher-Yates over any random-access range of `size` elements.
template <typename T>
void shuffle(T* items, std::size_t size, Random random) {
  for (std::size_t i = size; i > 1; --i) {
    const std::size_t j = random.below(static_cast<std::uint32_t>(i));
    T held = items[i - 1];
    items[i - 1] = items[j];
    items[j] = held;
  }
}

}  // namespace bitloom
