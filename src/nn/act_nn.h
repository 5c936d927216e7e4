// ActNN's quantiser (Chen et al. 2021, as described in section 4 of Novikov et al. 2022): the baseline for few-bit tables. It
// keeps b bits of every element of any saved tensor, and two floats per group of 256. Plain loops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "nn/bit_pack.h"

namespace bitloom::nn {

inline constexpr std::size_t act_nn_group = 256;  // G

struct ActNNStash {
  unsigned bits = 0;
  std::size_t size = 0;                // n
  std::vector<std::uint8_t> packed;    // (packed_bytes(n, bits)), nn/bit_pack.h
  std::vector<float> lowest, highest;  // (groups) each, groups = ceil(n / 256); the last group may be short

  std::size_t bytes() const { return packed.size() + sizeof(float) * (lowest.size() + highest.size()); }
};

// With u = (2^b - 1) (x - min) / (max - min) per group, each u is rounded up with probability u - floor(u), else down, so that
// the mean of what comes back is x. (Novikov et al. print 2^b where Chen et al. have 2^b - 1; 2^b + 1 values would not fit b
// bits.) The random numbers are a function of (seed, use, group) alone: `use` counts the tensors that one seed quantises, such
// as step * layers + layer. A group with a value that is not finite comes back as NaN. Throws a usage error unless bits
// is 1..8.
ActNNStash act_nn_quantise(std::span<const float> x_n, unsigned bits, std::uint64_t seed, std::uint64_t use);

// What the stash says x was. Throws a usage error if sizes do not agree.
void act_nn_restore(const ActNNStash& stash, std::span<float> x_n);

}  // namespace bitloom::nn
