#include "mpi/tree.h"

#include <algorithm>
#include <cstdint>

#include "core/error.h"

namespace bitloom::mpi {

Tree::Tree(int rank, int size, int fan_in) : rank_(rank), fan_in_(fan_in) {
  if (fan_in < 1) fail(ErrorKind::usage, "--tree: a fan-in of {}; expected at least 1", fan_in);
  if (rank < 0 || rank >= size) fail(ErrorKind::usage, "tree: rank {} of {}; expected one in [0, {})", rank, size, size);
  const std::int64_t first = std::int64_t{rank} * fan_in + 1;
  for (std::int64_t child = first; child < std::min<std::int64_t>(first + fan_in, size); ++child) {
    children_.push_back(static_cast<int>(child));
  }
}

}  // namespace bitloom::mpi
