// An activation's input as few-bit training keeps it: b bits per element, the number of the interval it is in (listing 1 of
// Novikov et al. 2022).
#pragma once

#include <cstdint>
#include <vector>

#include "nn/bit_pack.h"
#include "nn/few_bit.h"

namespace bitloom::nn {

// A table as the passes use it, in single precision. What StepFunction says of intervals holds of the rounded boundaries.
struct FewBitLookup {
  unsigned bits = 0;              // 1..8
  bool even = false;              // looked up by |x|
  std::vector<float> boundaries;  // (2^bits - 1), ascending
  std::vector<float> levels;      // (2^bits)

  // The number of boundaries below x (below |x| if even); 0 for NaN, whose gradient is NaN from the loss on anyway.
  std::uint32_t index(double x) const;
};

// Throws a usage error unless there are 2, 4, ... 256 levels and one boundary fewer.
FewBitLookup few_bit_lookup(const StepFunction& steps);

}  // namespace bitloom::nn
