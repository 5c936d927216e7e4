#include "nn/few_bit_partition.h"

#include <limits>

namespace bitloom::nn {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// DP(i, parts) of (7) for i = 0..length; `cost(j, i)` is T. Infinite where i < parts: no interval is empty.
//
// T(j, i) is the least error on j..i, so it can only grow as j moves away from i, and DP is not negative: once T alone reaches
// the best sum, no j further away can be better. That prunes whatever f' and w are. (Faster schemes, such as SMAWK, need
// T's quadrangle inequality, which holds for monotone f' only; GELU' is not.)
template <typename Cost>
std::vector<double> sweep(std::size_t length, std::size_t parts, const Cost& cost) {
  std::vector<double> error(length + 1, infinity);
  for (std::size_t i = 1; i <= length; ++i) error[i] = cost(0, i);
  for (std::size_t k = 2; k <= parts; ++k) {
    for (std::size_t i = length; i >= k; --i) {  // downwards: error[j], j < i, is still that of k - 1 parts
      double best = infinity;
      for (std::size_t j = i - 1; j >= k - 1; --j) {
        const double last = cost(j, i);
        if (last >= best) break;
        const double sum = error[j] + last;
        if (sum < best) best = sum;
      }
      error[i] = best;
    }
    error[k - 1] = infinity;
  }
  return error;
}

// Appends the inner edges of the best division of cells begin..end-1 to `edges`.
void divide(const PartitionCost& cost, std::size_t begin, std::size_t end, std::size_t parts, std::vector<std::size_t>& edges) {
  if (parts < 2) return;
  const std::size_t length = end - begin, left_parts = parts / 2, right_parts = parts - left_parts;
  const std::vector<double> left =
      sweep(length, left_parts, [&](std::size_t j, std::size_t i) { return cost(begin + j, begin + i); });
  const std::vector<double> right =
      sweep(length, right_parts, [&](std::size_t j, std::size_t i) { return cost(end - i, end - j); });
  std::size_t middle = left_parts;
  for (std::size_t i = left_parts; i + right_parts <= length; ++i) {
    if (left[i] + right[length - i] < left[middle] + right[length - middle]) middle = i;
  }
  divide(cost, begin, begin + middle, left_parts, edges);
  edges.push_back(begin + middle);
  divide(cost, begin + middle, end, right_parts, edges);
}

}  // namespace

PartitionCost::PartitionCost(std::span<const Moments> cells) : weight_{0}, product_{0}, square_{0} {
  for (const Moments& cell : cells) {
    weight_.push_back(weight_.back() + cell.weight);
    product_.push_back(product_.back() + cell.weight * cell.mean);
    square_.push_back(square_.back() + cell.scatter + cell.weight * cell.mean * cell.mean);
  }
}

std::vector<std::size_t> best_partition(const PartitionCost& cost, std::size_t parts) {
  std::vector<std::size_t> edges;
  divide(cost, 0, cost.cells(), parts, edges);
  return edges;
}

}  // namespace bitloom::nn
