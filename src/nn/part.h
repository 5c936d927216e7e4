// Part of a tensor that several processes divide between them, and which elements of the whole it has: what follows from the
// number of an element (its initial value, how it is rounded) goes by the whole, so that it is the same however it is divided.
#pragma once

#include <algorithm>
#include <cstddef>

#include "nn/shape.h"

namespace bitloom::nn {

// Element i of a tensor is element k = begin + i of a part (begin > 0: processes divide the part once more), which is element
// first + k / run * stride + k % run of the whole; run 0: element k.
struct ElementNumbers {
  std::size_t first = 0, run = 0, stride = 0, begin = 0;

  std::size_t operator()(std::size_t i) const {
    const std::size_t k = begin + i;
    return run == 0 ? k : first + k / run * stride + k % run;
  }
  // Calls visit(i, its number, count) for elements i .. end - 1, as runs whose numbers follow each other.
  template <typename Visit>
  void for_runs(std::size_t i, std::size_t end, const Visit& visit) const {
    while (i < end) {
      const std::size_t count = run == 0 ? end - i : std::min(end - i, run - (begin + i) % run);
      visit(i, (*this)(i), count);
      i += count;
    }
  }

  bool operator==(const ElementNumbers&) const = default;
};

// The axis `axis` of the whole, `full`, is `blocks` equal blocks one after the other (weights of queries, keys and values in
// one matrix: three), of each of which the part has elements begin .. end - 1 of the block.
struct Part {
  Shape full;
  std::size_t axis = 0, blocks = 1, begin = 0, end = 0;

  // Shape of the part.
  Shape shape() const { return full.with(axis, blocks * (end - begin)); }
  ElementNumbers numbers() const;
};

}  // namespace bitloom::nn
