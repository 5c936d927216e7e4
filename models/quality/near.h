// Pairs of images that are the same or nearly so, by how near their features are.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace bitloom::models {

struct NearPair {
  std::size_t a = 0, b = 0;  // which images
  double similarity = 0;     // cosine of their features
};
// All pairs of a row of a (N,E) and one of b (M,E), of length 1 each, whose cosine is at least `least`; the nearest first, then
// by their numbers. Takes time by N times M, and memory by the pairs that are found.
std::vector<NearPair> near_pairs(std::span<const double> a, std::span<const double> b, std::size_t columns, double least);
// The same among the rows of one set, each pair once, a < b.
std::vector<NearPair> near_pairs(std::span<const double> rows, std::size_t columns, double least);

}  // namespace bitloom::models
