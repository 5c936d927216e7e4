// Which elements of a full tensor a process has: what makes checkpoints the same whatever the layout of processes.
#pragma once

#include <cstdint>
#include <vector>

#include "nn/parameter.h"

namespace bitloom::train {

// Parts along an axis are runs of equal length at equal distances; shards are a range of what is left then. Own element i,
// 0 <= i < count, is element number_of(i) of the full tensor, and numbers ascend.
struct Holding {
  std::uint64_t first = 0, run = 1, stride = 1;  // of the part along an axis
  std::uint64_t begin = 0, count = 0;            // the range of the part's elements

  static Holding whole(std::uint64_t elements) { return {0, elements, elements, 0, elements}; }

  std::uint64_t number_of(std::uint64_t i) const { return first + (begin + i) / run * stride + (begin + i) % run; }
  // Number of own elements whose number is below n.
  std::uint64_t below(std::uint64_t n) const;
  // Calls f(own, full, length) for each run of own elements begin .. end - 1: elements full .. full + length - 1 of the full
  // tensor are own elements own .. own + length - 1.
  template <typename F>
  void for_each_run(std::uint64_t from, std::uint64_t to, F&& f) const {
    for (std::uint64_t i = from; i < to;) {
      const std::uint64_t rest = run - (begin + i) % run;
      const std::uint64_t length = rest < to - i ? rest : to - i;
      f(i, number_of(i), length);
      i += length;
    }
  }

  bool operator==(const Holding&) const = default;
};

// The elements that this process has of a parameter.
Holding holding_of(const nn::Parameter& parameter);
// Shape of the full tensor that it is part of.
std::vector<std::size_t> full_shape_of(const nn::Parameter& parameter);

}  // namespace bitloom::train
