#include "models/quality/near.h"

#include <Eigen/Dense>
#include <algorithm>
#include <tuple>

namespace bitloom::models {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Map = Eigen::Map<const Matrix>;

constexpr Eigen::Index block = 512;  // rows whose cosines are in memory at once

std::vector<NearPair> find(const Map& a, const Map& b, double least, bool is_same_set) {
  std::vector<NearPair> found;
  for (Eigen::Index first = 0; first < a.rows(); first += block) {
    const Eigen::Index rows = std::min(block, a.rows() - first);
    for (Eigen::Index column = is_same_set ? first : 0; column < b.rows(); column += block) {
      const Eigen::Index columns = std::min(block, b.rows() - column);
      const Matrix cosines = a.middleRows(first, rows) * b.middleRows(column, columns).transpose();
      for (Eigen::Index i = 0; i < rows; ++i) {
        for (Eigen::Index j = 0; j < columns; ++j) {
          if (!(cosines(i, j) >= least) || (is_same_set && column + j <= first + i)) continue;
          found.push_back({static_cast<std::size_t>(first + i), static_cast<std::size_t>(column + j), cosines(i, j)});
        }
      }
    }
  }
  std::ranges::sort(found, [](const NearPair& x, const NearPair& y) {
    return std::tuple(-x.similarity, x.a, x.b) < std::tuple(-y.similarity, y.a, y.b);
  });
  return found;
}

Map rows_of(std::span<const double> numbers, std::size_t columns) {
  return {numbers.data(), static_cast<Eigen::Index>(numbers.size() / columns), static_cast<Eigen::Index>(columns)};
}

}  // namespace

std::vector<NearPair> near_pairs(std::span<const double> a, std::span<const double> b, std::size_t columns, double least) {
  return find(rows_of(a, columns), rows_of(b, columns), least, false);
}

std::vector<NearPair> near_pairs(std::span<const double> rows, std::size_t columns, double least) {
  return find(rows_of(rows, columns), rows_of(rows, columns), least, true);
}

}  // namespace bitloom::models
