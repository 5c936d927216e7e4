// Elements that a worker sends of a vector of integers where nobody tells it a threshold: the largest of every chunk, coarsely
// rounded, the rest being kept for later (chunked top k with error feedback: Sarfi et al. 2025, SparseLoCo). How many bytes a
// message has follows from the sizes alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "mpi/sparse.h"

namespace bitloom::mpi {

struct TopFilter {
  std::size_t chunk = 4096;  // neighbouring elements among which the largest are chosen
  std::size_t count = 256;   // of a chunk; of the last one, which may be shorter, the same share, rounded up
  unsigned value_bits = 1;   // of values, sign included: those of levels_of()

  double share() const { return static_cast<double>(count) / static_cast<double>(chunk); }
};

// Throws Error(usage).
void check(const TopFilter& filter);

// Adds `fresh` to `pending`, within largest_kept, and takes the largest elements out of every chunk: as multiples, up to
// levels_of(value_bits), of one power of two that is near their mean magnitude times 2 / (levels + 1). Where a vector has
// several workers' such messages, their sum has few different values. Elements below half of the power stay. Of equal
// magnitudes the first are chosen. With OpenMP. Throws Error(usage) if sizes differ.
SparseVector add_and_take_largest(std::span<const std::int32_t> fresh, std::span<std::int32_t> pending,
                                  const TopFilter& filter);

// The largest elements of every chunk of a vector, as they are; `count` of a chunk.
SparseVector largest_of(const SparseVector& vector, std::size_t chunk, std::size_t count);

}  // namespace bitloom::mpi
