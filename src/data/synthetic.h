// The built-in data set: procedural 32 x 32 RGB pictures of ten classes, for first runs, tests and machines without CIFAR.
#pragma once

#include <cstddef>
#include <cstdint>

#include "data/dataset.h"

namespace bitloom::data {

inline constexpr std::size_t synthetic_classes = 10;

// Images first_index .. first_index + count - 1 of the endless series that `seed` names; an image depends on (seed, index)
// alone, so any slices of one series fit together. Training sets start at 0, test sets at synthetic_test_first.
// Integer arithmetic only: the same bytes on every platform. Uses OpenMP over images.
Dataset make_synthetic(std::uint64_t seed, std::size_t count, std::size_t first_index = 0);

inline constexpr std::size_t synthetic_test_first = std::size_t{1} << 32;

}  // namespace bitloom::data
