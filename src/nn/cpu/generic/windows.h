// Pooling: windows of k x k pixels that do not overlap. A row of them is k rows of pixels, each `windows` k pixels of C
// channels, or more of which the first count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/elements.h"

namespace bitloom::nn {
namespace {

// Calls body(elements from the window's first pixel to this one, number of the pixel) for its pixels in raster order.
template <typename Body>
BITLOOM_INLINE void for_pixels(std::size_t k, std::size_t row, std::size_t channels, Body body) {
  float number = 0;
  for (std::size_t y = 0; y < k; ++y) {
    for (std::size_t x = 0; x < k; ++x, number += 1) body(y * row + x * channels, number);
  }
}

// A NaN is the largest, so that it is not hidden from those who look for one.
template <typename Isa, typename V>
void max_pool_row(std::size_t k, const V* x, std::size_t pitch, V* y, std::uint8_t* which, std::size_t windows,
                  std::size_t channels) {
  using Float = typename Isa::Float;
  for (std::size_t window = 0; window < windows; ++window, x += k * channels, y += channels, which += channels) {
    const V* from = x;
    V* to = y;
    std::uint8_t* places = which;
    for_vectors<Isa>(
        channels, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          Float best = part.load(from + i), place = Isa::splat(0);
          for_pixels(
              k, pitch, channels, [&](std::size_t at, float number) __attribute__((always_inline)) {
                const Float value = part.load(from + at + i);
                const auto wins = Isa::beats(value, best);
                best = Isa::select(wins, value, best);
                place = Isa::select(wins, Isa::splat(number), place);
              });
          part.store(to + i, best);
          part.store_small(places + i, place);
        });
  }
}

template <typename Isa, typename V>
void max_pool_backward_row(std::size_t k, const V* dy, const std::uint8_t* which, V* dx, std::size_t pitch, std::size_t windows,
                           std::size_t channels) {
  for (std::size_t window = 0; window < windows; ++window, dx += k * channels, dy += channels, which += channels) {
    const V* from = dy;
    const std::uint8_t* places = which;
    V* to = dx;
    for_vectors<Isa>(
        channels, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          const auto slope = part.load(from + i);
          const auto place = part.load_small(places + i);
          for_pixels(
              k, pitch, channels, [&](std::size_t at, float number) __attribute__((always_inline)) {
                const auto is_here = Isa::less(Isa::abs(place - Isa::splat(number)), Isa::splat(0.5F));
                part.store(to + at + i, Isa::select(is_here, slope, Isa::splat(0)));
              });
        });
  }
}

// y = the sum of each window.
template <typename Isa, typename V>
void sum_windows_row(std::size_t k, const V* x, V* y, std::size_t windows, std::size_t channels) {
  const std::size_t row = windows * k * channels;
  for (std::size_t window = 0; window < windows; ++window, x += k * channels, y += channels) {
    const V* from = x;
    V* to = y;
    for_vectors<Isa>(
        channels, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          auto sum = Isa::splat(0);
          for_pixels(
              k, row,
              channels, [&](std::size_t at, float) __attribute__((always_inline)) { sum = sum + part.load(from + at + i); });
          part.store(to + i, sum);
        });
  }
}

}  // namespace
}  // namespace bitloom::nn
