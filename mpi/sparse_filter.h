// Splits a vector of integers into what a worker sends and what it keeps for later. Always, what is sent plus what is kept
// equals what was there, exactly (error feedback: Stich et al. 2018; the essay "Distributed training": "thresholded
// gradients"); a worker that does not want feedback clears what was kept.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "mpi/sparse.h"

namespace bitloom::mpi {

struct SparseFilter {
  std::uint64_t threshold = 0;  // values that are not larger stay
  // Values are rounded to multiples of it, not to 0; at most 2^30 for elements of 32 bits, 2^62 for 64.
  std::uint64_t step = 1;
  std::uint64_t levels = 0;  // most steps that are sent at once: 1 for the sign alone; 0 for any number
};

// Levels of values of 1, 2, 4, 8 or 16 bits, sign included; of 0 bits, which stands for exact values, 0. Throws Error(usage)
// for others.
std::uint64_t levels_of(unsigned value_bits);

// Takes what passes the filter out of `pending`.
template <typename T>
SparseVector take(std::span<T> pending, const SparseFilter& filter);

// The kept part of an element lies between -largest_kept and largest_kept.
template <typename T>
inline constexpr T largest_kept = std::numeric_limits<T>::max() / 4;

// The kept part of an element with more of it.
template <typename T>
constexpr T kept_sum(T kept, T more) {
  constexpr T limit = largest_kept<T>;
  const T sum = static_cast<T>(kept + std::clamp<T>(more, -limit, limit));
  return std::clamp<T>(sum, -limit, limit);
}

// Adds `fresh` to `pending` and takes what then passes the filter. An element that would go beyond largest_kept stays there;
// how many are there is added to *at_limit, if that is not null. With OpenMP.
template <typename T>
SparseVector add_and_take(std::span<const T> fresh, std::span<T> pending, const SparseFilter& filter,
                          std::uint64_t* at_limit = nullptr);

// Element by element, what the worker of number `worker` gets of a sum of what workers had kept: each as much as it may keep,
// before the next one gets any.
template <typename T>
T share_of_kept(std::int64_t sum, std::uint64_t worker);

extern template SparseVector take(std::span<std::int32_t>, const SparseFilter&);
extern template SparseVector take(std::span<std::int64_t>, const SparseFilter&);
extern template SparseVector add_and_take(std::span<const std::int32_t>, std::span<std::int32_t>, const SparseFilter&,
                                          std::uint64_t*);
extern template SparseVector add_and_take(std::span<const std::int64_t>, std::span<std::int64_t>, const SparseFilter&,
                                          std::uint64_t*);
extern template std::int32_t share_of_kept(std::int64_t, std::uint64_t);
extern template std::int64_t share_of_kept(std::int64_t, std::uint64_t);

}  // namespace bitloom::mpi
