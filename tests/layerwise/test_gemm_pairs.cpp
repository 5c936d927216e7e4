#include "layerwise/gemm_pairs.h"

#include <numeric>
#include <vector>

#include "simd/kernels.h"
#include "tests/support/catch.h"
#include "tests/support/guarded.h"

using namespace bitloom;

namespace {

// Product by gemm_s16 of the identity and `pairs`: the matrix (k, 16) that they hold.
std::vector<std::int32_t> unpacked(const test::Guarded<std::int16_t>& pairs, std::size_t k) {
  const std::size_t depth = layerwise::round_up(k, 2);
  std::vector<std::int16_t> identity(k * depth);
  for (std::size_t i = 0; i < k; ++i) identity[i * depth + i] = 1;
  std::vector<std::int32_t> matrix(k * 16);
  simd::kernels("ref").gemm_s16(k, 16, depth, identity.data(), depth, pairs.data(), matrix.data(), 16);
  return matrix;
}

std::vector<std::int16_t> numbered(std::size_t size) {
  std::vector<std::int16_t> matrix(size);
  std::iota(matrix.begin(), matrix.end(), std::int16_t{1});
  return matrix;
}

}  // namespace

TEST_CASE("a matrix in pairs of rows is that matrix to gemm_s16", "[layerwise][gemm_pairs]") {
  for (const std::size_t rows : {std::size_t{1}, std::size_t{2}, std::size_t{5}}) {
    CAPTURE(rows);
    const std::vector<std::int16_t> matrix = numbered(rows * 16);
    test::Guarded<std::int16_t> pairs(layerwise::round_up(rows, 2) * 16);
    layerwise::pack_pairs(matrix.data(), rows, 16, 16, pairs.data());
    REQUIRE(pairs.guards_intact());
    CHECK(unpacked(pairs, rows) == std::vector<std::int32_t>(matrix.begin(), matrix.end()));
  }
}

TEST_CASE("the transpose of a matrix in pairs, padded, is its transpose to gemm_s16", "[layerwise][gemm_pairs]") {
  for (const std::size_t rows : {std::size_t{1}, std::size_t{10}, std::size_t{16}}) {
    constexpr std::size_t columns = 6;
    CAPTURE(rows);
    const std::vector<std::int16_t> matrix = numbered(rows * columns);
    test::Guarded<std::int16_t> pairs(columns * 16);
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = 0;  // the padding stays as it is
    layerwise::pack_transposed(matrix.data(), rows, columns, 16, pairs.data());
    REQUIRE(pairs.guards_intact());
    std::vector<std::int32_t> expected(columns * 16);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < columns; ++c) expected[c * 16 + r] = matrix[r * columns + c];
    }
    CHECK(unpacked(pairs, columns) == expected);
  }
}
