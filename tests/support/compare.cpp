#include "tests/support/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace bitloom::test {
namespace {

template <typename T>
std::string compare_any(std::span<const T> actual, std::span<const T> expected, double limit) {
  if (actual.size() != expected.size()) return fmt::format("{} elements, expected {}", actual.size(), expected.size());
  if (expected.empty()) return "nothing to compare: no elements";
  double sum_of_squares = 0;
  bool actual_is_zero = true;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (!std::isfinite(actual[i])) return fmt::format("element {} is {}, expected {}", i, actual[i], expected[i]);
    if (!std::isfinite(expected[i])) return fmt::format("element {} of the reference is {}", i, expected[i]);
    sum_of_squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
    actual_is_zero = actual_is_zero && actual[i] == 0;
  }
  const double scale = std::sqrt(sum_of_squares / static_cast<double>(expected.size()));
  if (actual_is_zero && scale > 0) return "zero throughout, the reference is not";
  double worst = -1;
  std::size_t where = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double wanted = static_cast<double>(expected[i]);
    const double difference = std::abs(static_cast<double>(actual[i]) - wanted);
    const double error = scale > 0 ? difference / std::max(std::abs(wanted), scale) : difference;
    if (!(error <= worst)) {
      worst = error;
      where = i;
    }
  }
  if (!(worst < limit)) {
    return fmt::format("element {} is {}, expected {}: error {:.3g} is not below {:.3g}", where, actual[where], expected[where],
                       worst, limit);
  }
  return "";
}

}  // namespace

std::string compare(std::span<const float> actual, std::span<const float> expected, double limit) {
  return compare_any(actual, expected, limit);
}

std::string compare(std::span<const double> actual, std::span<const double> expected, double limit) {
  return compare_any(actual, expected, limit);
}

}  // namespace bitloom::test
