// How the rows of a matrix product are divided into tiles whose sums fit registers. Private to simd/.
#pragma once

#include <cstddef>

namespace bitloom::simd {
namespace {

// Calls tile.operator()<R>(first) for tiles of R <= 6 rows, from `first` on. The last two share what is left: a tile of a row
// or two loads as many columns as a full one.
template <typename Tile>
inline __attribute__((always_inline)) void for_each_row_tile(std::size_t rows, const Tile& tile) {
  for (std::size_t first = 0, left = rows; left > 0;) {
    const std::size_t these = left > 11 ? 6 : left > 6 ? (left + 1) / 2 : left;
    switch (these) {
      case 6: tile.template operator()<6>(first); break;
      case 5: tile.template operator()<5>(first); break;
      case 4: tile.template operator()<4>(first); break;
      case 3: tile.template operator()<3>(first); break;
      case 2: tile.template operator()<2>(first); break;
      default: tile.template operator()<1>(first);
    }
    first += these;
    left -= these;
  }
}

}  // namespace
}  // namespace bitloom::simd
