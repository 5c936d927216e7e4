// Cuts of a net's layers into the parts that the stages of a pipeline have.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace bitloom::train {

// Layers first .. last - 1.
struct LayerRange {
  std::size_t first = 0, last = 0;

  std::size_t size() const { return last - first; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};
using Partition = std::vector<LayerRange>;

// The split of layers into `parts` neighbouring, non-empty parts whose costs have the least variance (Huang et al. 2019,
// section 2.2). The mean of the parts is the same for every split, so the least variance is the least sum of squares, and that
// of a split is the square of its first part plus the sum of a split of the rest: dynamic programming over where the rest
// begins and how many parts it has finds the best of all. Of several best splits it is the one whose first part has the fewest
// layers, then the second, and so on: the first stages of a pipeline have the most micro-batches in flight. Costs count in
// whole multiples of a power of two, about 2^-31 of their sum, so that sums are exact: equal layers make equal parts, and all
// machines find the same split. Integers of a sum below 2^31 stay what they are. Throws Error(usage), which names the field
// `partition`, for costs that are negative or not finite, or fewer than parts.
Partition partition(std::span<const double> costs, std::size_t parts);

// A split given by hand, as numbers of layers: "3,4,5". Throws Error(usage), which names the field `partition`.
Partition parse_partition(const std::string& text, std::size_t layers, std::size_t parts);
// "3,4,5"
std::string to_text(const Partition& partition);

}  // namespace bitloom::train
