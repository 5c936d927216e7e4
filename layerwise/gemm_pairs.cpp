#include "layerwise/gemm_pairs.h"

namespace bitloom::layerwise {

void pack_pairs(const std::int16_t* rows, std::size_t count, std::size_t columns, std::size_t padded, std::int16_t* pairs) {
  for (std::size_t r = 0; r < round_up(count, 2); r += 2) {
    const std::int16_t* even = rows + r * columns;
    const std::int16_t* odd = r + 1 < count ? even + columns : nullptr;
    std::int16_t* out = pairs + r * padded;
    for (std::size_t c = 0; c < columns; ++c) {
      out[2 * c] = even[c];
      out[2 * c + 1] = odd != nullptr ? odd[c] : std::int16_t{0};
    }
  }
}

void pack_transposed(const std::int16_t* matrix, std::size_t rows, std::size_t columns, std::size_t padded,
                     std::int16_t* pairs) {
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) pairs[c / 2 * 2 * padded + 2 * r + c % 2] = matrix[r * columns + c];
  }
}

}  // namespace bitloom::layerwise
