#include "mpi/tree.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::mpi {

Tree::Tree(int rank, int size, int fan_in) : rank_(rank), size_(size), fan_in_(fan_in) {
  if (fan_in < 1) fail_field(ErrorKind::usage, "fan_in", "{}; expected at least 1", fan_in);
  if (rank < 0 || rank >= size) fail(ErrorKind::usage, "tree: rank {} of {}; expected one in [0, {})", rank, size, size);
  const std::int64_t first = std::int64_t{rank} * fan_in + 1;
  for (std::int64_t child = first; child < std::min<std::int64_t>(first + fan_in, size); ++child) {
    children_.push_back(static_cast<int>(child));
  }
}

std::vector<int> Tree::subtree() const {
  std::vector<int> ranks = {rank_};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Tree below(ranks[i], size_, fan_in_);
    ranks.insert(ranks.end(), below.children_.begin(), below.children_.end());
  }
  return ranks;
}

int Tree::level() const {
  int level = 0;
  for (int rank = rank_; rank > 0; rank = (rank - 1) / fan_in_) ++level;
  return level;
}

// The first rank below another has the most levels below it.
int Tree::height_of(int rank) const {
  int height = 0;
  for (std::int64_t first = std::int64_t{rank} * fan_in_ + 1; first < size_; first = first * fan_in_ + 1) ++height;
  return height;
}

}  // namespace bitloom::mpi
