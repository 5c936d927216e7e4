// Shapes and options of cases at random. Their bounds must leave something to compare: outputs of a few elements, or of a
// single key, are what is left of larger numbers.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/random.h"

namespace bitloom::test {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed, Stream::test) {}

  // From low to high, 1 <= low, both included; small ones as often as large ones. Half of them are rounded up to multiples of
  // 8, where high allows it: those are what vectors and tensor cores take.
  std::size_t size(std::size_t low, std::size_t high) {
    const double ratio = static_cast<double>(high + 1) / static_cast<double>(low);
    const auto drawn = static_cast<std::size_t>(static_cast<double>(low) * std::pow(ratio, random_.uniform()));
    const std::size_t n = std::clamp(drawn, low, high);
    const std::size_t multiple = (n + 7) / 8 * 8;
    return coin() && multiple <= high ? multiple : n;
  }
  bool coin() { return random_.below(2) == 1; }
  // Any of at least one.
  template <typename T>
  T any_of(std::initializer_list<T> choices) {
    return choices.begin()[random_.below(static_cast<std::uint32_t>(choices.size()))];
  }

 private:
  Random random_;
};

}  // namespace bitloom::test
