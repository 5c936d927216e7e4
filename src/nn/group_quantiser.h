// ActNN's quantiser (Chen et al. 2021, section 4, with as many bits for every group): the one place that knows it. A saved
// tensor is cut into groups of 256 elements; with u = (2^b - 1) (x - lowest) / (highest - lowest) of a group, each u is rounded
// up with probability u - floor(u), else down, so that the mean of what comes back is x. (Novikov et al. 2022, section 4, who
// compare their tables with it, print 2^b for 2^b - 1; 2^b + 1 values would not fit b bits.) Computed in f32, in steps that no
// compiler can round otherwise, so that every backend keeps the same bits. C++17: CUDA includes this too.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/philox.h"

namespace bitloom::nn {

inline constexpr std::size_t quantiser_group = 256;  // G
inline constexpr unsigned quantiser_draws = 8;       // elements of one call of Philox

constexpr std::size_t quantiser_groups(std::size_t elements) { return (elements + quantiser_group - 1) / quantiser_group; }

// The draws of elements 8 group .. 8 group + 7: philox_half(draws, i) is that of element 8 group + i.
constexpr Philox4x32 quantiser_rounding(std::uint64_t seed, std::uint64_t site, std::uint64_t group) {
  return philox(philox_words(group, site), seed);
}

// Numbers of a group between its ends; where these are NaN, 0.
struct GroupScale {
  float lowest, highest;
  float factor;  // 2^16 steps per half of the distance, which does not overflow; 0 for a group of equal values
  std::uint32_t steps;

  constexpr GroupScale(float low, float high, unsigned bits) : lowest(low), highest(high), factor(0), steps((1U << bits) - 1) {
    constexpr float least = 1e-30F;  // of half a distance: below it the factor would be infinite
    const float half = 0.5F * high - 0.5F * low;
    if (half > least) factor = static_cast<float>(steps << 16U) / half;
  }

  // A group's lowest and highest value become numbers that stand for them exactly. draw: 16 random bits.
  constexpr std::uint32_t number(float x, std::uint32_t draw) const {
    if (factor == 0) return 0;
    if (x >= highest) return steps;
    const auto parts = static_cast<std::uint32_t>((0.5F * x - 0.5F * lowest) * factor);  // 2^16 of a step
    const std::uint32_t rounded = (parts + draw) >> 16U;
    return rounded < steps ? rounded : steps;
  }
};

// The x that a number of b bits stands for; NaN where an end is.
constexpr float group_value(float lowest, float highest, std::uint32_t number, unsigned bits) {
  const float part = static_cast<float>(number) / static_cast<float>((1U << bits) - 1);
  return lowest * (1 - part) + highest * part;
}

}  // namespace bitloom::nn
