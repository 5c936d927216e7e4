// Which elements of a full tensor a process has: what makes checkpoints the same whatever the layout of processes.
#pragma once

#include <cstddef>
#include <vector>

#include "nn/parameter.h"

namespace bitloom::train {

// Own element i, 0 <= i < count, is element numbers(i) of the full tensor; numbers ascend.
struct Holding {
  nn::ElementNumbers numbers;
  std::size_t count = 0;

  static Holding whole(std::size_t elements) { return {{}, elements}; }

  // Number of own elements whose number is below n.
  std::size_t below(std::size_t n) const;

  bool operator==(const Holding&) const = default;
};

// The elements that this process has of a parameter.
Holding holding_of(const nn::Parameter& parameter);
// Shape of the full tensor that it is part of.
std::vector<std::size_t> full_shape_of(const nn::Parameter& parameter);

}  // namespace bitloom::train
