// What few-bit training keeps of an activation's input: b bits per element, the number of the interval it lies in (listing 1 of
// Novikov et al. 2022). Plain loops: the oracle of faster ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
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

// Forward: y_n = f(x_n), exactly what apply() gives, and the indices of x_n, packed (nn/bit_pack.h) into `stash` of
// packed_bytes(n, bits) bytes. x_n and y_n may be the same. Throws a usage error if sizes do not agree.
void few_bit_forward(const Activation& activation, const FewBitLookup& lookup, std::span<const float> x_n, std::span<float> y_n,
                     std::span<std::uint8_t> stash);

// Backward: grad_x_n[i] = levels[index i] * grad_y_n[i], (1) with q in place of f'. grad_y_n and grad_x_n may be the same.
// Throws a usage error if sizes do not agree.
void few_bit_backward(const FewBitLookup& lookup, std::span<const std::uint8_t> stash, std::span<const float> grad_y_n,
                      std::span<float> grad_x_n);

}  // namespace bitloom::nn
