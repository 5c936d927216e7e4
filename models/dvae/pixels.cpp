#include "models/dvae/pixels.h"

#include <algorithm>
#include <array>
#include <cassert>

namespace bitloom::models {

void to_unit_interval(std::span<const std::uint8_t> pixels, std::span<float> out) {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(phi(static_cast<double>(i)));
    return values;
  }();
  assert(out.size() == pixels.size());
  std::ranges::transform(pixels, out.begin(), [](std::uint8_t pixel) { return table[pixel]; });
}

void reconstruct(std::span<const float> maps, std::span<float> out) {
  constexpr std::size_t channels = 3;
  assert(maps.size() == 2 * out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    const double mu = static_cast<double>(maps[i / channels * 2 * channels + i % channels]);
    out[i] = static_cast<float>(std::clamp(inverse_phi(1 / (1 + std::exp(-mu))), 0.0, 255.0));
  }
}

}  // namespace bitloom::models
