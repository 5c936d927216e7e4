#include "layerwise/bit_counts.h"

#include <algorithm>

namespace bitloom::layerwise {

void add_bit_counts(const simd::Kernels& kernels, const MapShape& map, const std::uint64_t* bits,
                    std::vector<std::int16_t>& scratch, std::span<std::int64_t> sums) {
  scratch.resize(map.words() * word_bits);
  const std::size_t band = most_counted_pixels / map.width;  // rows
  for (std::size_t top = 0; top < map.height; top += band) {
    const std::size_t rows = std::min(band, map.height - top);
    kernels.pool_counts(bits + map.interior() + top * map.pitch(), rows, map.width, map.words(), map.pitch(), 1,
                        scratch.data());
    for (std::size_t c = 0; c < sums.size(); ++c) sums[c] += scratch[c];
  }
}

}  // namespace bitloom::layerwise
