#include "nn/few_bit_stash.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"

namespace bitloom::nn {

std::uint32_t FewBitLookup::index(double x) const {
  const double key = even ? std::abs(x) : x;
  return static_cast<std::uint32_t>(std::lower_bound(boundaries.begin(), boundaries.end(), key) - boundaries.begin());
}

FewBitLookup few_bit_lookup(const StepFunction& steps) {
  const std::size_t levels = steps.levels.size();
  if (levels < 2 || levels > 256 || !std::has_single_bit(levels) || steps.boundaries.size() + 1 != levels) {
    fail(ErrorKind::usage, "table: {} levels and {} boundaries; expected a power of two from 2 to 256, and one fewer", levels,
         steps.boundaries.size());
  }
  FewBitLookup lookup;
  lookup.bits = steps.bits();
  lookup.even = steps.even;
  for (const double s : steps.boundaries) lookup.boundaries.push_back(static_cast<float>(s));
  for (const double y : steps.levels) lookup.levels.push_back(static_cast<float>(y));
  return lookup;
}

}  // namespace bitloom::nn
