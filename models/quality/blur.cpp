#include "models/quality/blur.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace bitloom::models {
namespace {

// Weights of the pixels 0, 1, ... away.
std::vector<double> weights_of(double radius) {
  std::vector<double> weights(static_cast<std::size_t>(4 * radius + 0.5) + 1);
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double distance = static_cast<double>(i) / radius;
    weights[i] = std::exp(-0.5 * distance * distance);
    sum += (i == 0 ? 1 : 2) * weights[i];
  }
  for (double& weight : weights) weight /= sum;
  return weights;
}

// Pixel `i` of a row that goes on as its mirror, the pixels at its ends twice: ... 1 0 0 1 2 ... side-1 side-1 ...
std::size_t mirrored(std::ptrdiff_t i, std::size_t side) {
  const auto period = static_cast<std::ptrdiff_t>(2 * side);
  const auto place = static_cast<std::size_t>((i % period + period) % period);
  return place < side ? place : 2 * side - 1 - place;
}

// Rows of `side` numbers, `step` apart, of an image (side,side,3), which begin at every pixel of the other axis.
void blur_axis(const std::vector<double>& from, std::vector<double>& to, std::size_t side, std::size_t step,
               std::size_t other_step, const std::vector<double>& weights) {
  for (std::size_t line = 0; line < side; ++line) {
    for (std::size_t c = 0; c < 3; ++c) {
      const std::size_t begin = line * other_step + c;
      for (std::size_t x = 0; x < side; ++x) {
        const auto at = static_cast<std::ptrdiff_t>(x);
        double sum = weights[0] * from[begin + x * step];
        for (std::size_t d = 1; d < weights.size(); ++d) {
          const auto away = static_cast<std::ptrdiff_t>(d);
          sum += weights[d] * (from[begin + mirrored(at - away, side) * step] + from[begin + mirrored(at + away, side) * step]);
        }
        to[begin + x * step] = sum;
      }
    }
  }
}

}  // namespace

void blur(std::span<std::uint8_t> images, std::size_t side, double radius) {
  if (radius <= 0) return;
  const std::vector<double> weights = weights_of(radius);
  const std::size_t size = 3 * side * side;
  std::vector<double> numbers(size), blurred(size);
  for (std::size_t first = 0; first < images.size(); first += size) {
    const std::span<std::uint8_t> image = images.subspan(first, size);
    std::ranges::copy(image, numbers.begin());
    blur_axis(numbers, blurred, side, 3, 3 * side, weights);
    blur_axis(blurred, numbers, side, 3 * side, 3, weights);
    std::ranges::transform(numbers, image.begin(),
                           [](double x) { return static_cast<std::uint8_t>(std::clamp(std::lround(x), 0L, 255L)); });
  }
}

}  // namespace bitloom::models
