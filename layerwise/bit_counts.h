// Set bits per channel of a whole map, however large: the kernels count in 16 bits, which a map of 182 x 182 pixels exceeds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layerwise/bit_map.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// Pixels whose bits one call of simd::Kernels::pool_counts can count.
inline constexpr std::size_t most_counted_pixels = 32767;

// sums[c] += number of pixels of the map (without its border) whose bit c is set, for c < sums.size() <= words * 64.
// bits: the map with its border; map.width <= most_counted_pixels. `scratch` is one thread's.
void add_bit_counts(const simd::Kernels& kernels, const MapShape& map, const std::uint64_t* bits,
                    std::vector<std::int16_t>& scratch, std::span<std::int64_t> sums);

}  // namespace bitloom::layerwise
