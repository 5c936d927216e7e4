// The dynamic programme of (7). Private to src/nn.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "nn/moments.h"

namespace bitloom::nn {

// The integrals of (8) from the first cell up to each edge, so that T(j, i) takes constant time.
class PartitionCost {
 public:
  explicit PartitionCost(std::span<const Moments> cells);

  std::size_t cells() const { return weight_.size() - 1; }
  // T(j, i) of (8): the error of one constant on cells j..i-1.
  double operator()(std::size_t j, std::size_t i) const {
    const double weight = weight_[i] - weight_[j];
    if (!(weight > 0)) return 0;
    const double product = product_[i] - product_[j];
    return square_[i] - square_[j] - product * product / weight;
  }

 private:
  std::vector<double> weight_, product_, square_;  // W, FW, F2; n + 1 each
};

// The inner edges (parts - 1 of them, ascending, in 1..n-1) that divide the n cells into `parts` <= n intervals with the least
// sum of costs. O(n) space in place of a table of n * parts choices: errors from the left and from the right meet at the edge
// in the middle of the best path, and each side is solved again by itself (Hirschberg 1975); that at most doubles the time.
std::vector<std::size_t> best_partition(const PartitionCost& cost, std::size_t parts);

}  // namespace bitloom::nn
