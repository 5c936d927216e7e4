// What a worker sends of a vector of integers, and what it keeps for later. In all of this, what is sent plus what is kept
// equals what was there, exactly (error feedback: Stich et al. 2018; seed 004: "thresholded gradients"); a worker that does not
// want feedback clears what was kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "mpi/sparse.h"

namespace bitloom::mpi {

struct SparseFilter {
  std::uint64_t threshold = 0;  // what is not larger than this stays
  std::uint64_t step = 1;       // values are rounded to multiples of it, not to 0; at most 2^30
  std::uint64_t levels = 0;     // at most so many steps are sent at once: 1 for the sign alone; 0: any number
};

// Levels of values of 1, 4, 8 or 16 bits, sign included; of 0 bits, which stands for exact values, 0. Throws Error(usage) for
// others.
std::uint64_t levels_of(unsigned value_bits);

// Takes what passes the filter out of `pending`.
template <typename T>
SparseVector take(std::span<T> pending, const SparseFilter& filter);

// The smallest threshold that at most `count` elements exceed.
template <typename T>
std::uint64_t threshold_for(std::span<const T> values, std::size_t count);

// A filter that makes a message of at most `bytes` bytes (or of none: the largest threshold) out of the largest elements; the
// step is chosen so that the largest of them takes all levels, or, with one level, to their mean.
template <typename T>
SparseFilter filter_for(std::span<const T> values, std::size_t bytes, unsigned value_bits);

extern template SparseVector take(std::span<std::int32_t>, const SparseFilter&);
extern template SparseVector take(std::span<std::int64_t>, const SparseFilter&);
extern template std::uint64_t threshold_for(std::span<const std::int32_t>, std::size_t);
extern template std::uint64_t threshold_for(std::span<const std::int64_t>, std::size_t);
extern template SparseFilter filter_for(std::span<const std::int32_t>, std::size_t, unsigned);
extern template SparseFilter filter_for(std::span<const std::int64_t>, std::size_t, unsigned);

}  // namespace bitloom::mpi
