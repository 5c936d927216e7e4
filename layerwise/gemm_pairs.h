// Matrices in the layout of the second factor of simd::Kernels::gemm_s16: pairs of rows, `padded` columns wide. Private to
// heads and orthogonal.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bitloom::layerwise {

constexpr std::size_t round_up(std::size_t n, std::size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// (count, columns) row-major; rows are padded to even with zeros.
void pack_pairs(const std::int16_t* rows, std::size_t count, std::size_t columns, std::size_t padded, std::int16_t* pairs);
// The transpose of (rows, columns): pairs over columns, `padded` >= rows wide.
void pack_transposed(const std::int16_t* matrix, std::size_t rows, std::size_t columns, std::size_t padded,
                     std::int16_t* pairs);

}  // namespace bitloom::layerwise
