#include "train/parallel/holding.h"

#include <algorithm>

namespace bitloom::train {

std::uint64_t Holding::below(std::uint64_t n) const {
  if (n <= first || count == 0) return 0;
  const std::uint64_t rows = (n - first) / stride;
  const std::uint64_t in_part = rows * run + std::min(run, (n - first) % stride);
  return std::clamp(in_part, begin, begin + count) - begin;
}

}  // namespace bitloom::train
