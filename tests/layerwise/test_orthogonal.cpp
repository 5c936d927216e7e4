// Orthogonal factors in whole numbers, beside plain code in double precision.
#include "layerwise/orthogonal.h"

#include <omp.h>

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "core/random.h"
#include "optim/newton_schulz.h"
#include "tests/support/catch.h"

using namespace bitloom;
using layerwise::Orthogonaliser;

namespace {

// Rows and columns of uneven size, so that singular values are far apart.
std::vector<float> uneven(std::size_t rows, std::size_t columns, std::uint64_t seed) {
  Random random(seed, Stream::test);
  std::vector<float> x(rows * columns);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const double size = std::pow(0.93, static_cast<double>(r % 40)) * (c % 3 == 0 ? 5 : 1);
      x[r * columns + c] = static_cast<float>(size * (2 * random.uniform() - 1));
    }
  }
  return x;
}

// a (rows, inner) b (inner, columns)
std::vector<double> product(const std::vector<double>& a, const std::vector<double>& b, std::size_t inner) {
  const std::size_t rows = a.size() / inner, columns = b.size() / inner;
  std::vector<double> c(rows * columns, 0.0);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t i = 0; i < inner; ++i) {
      for (std::size_t k = 0; k < columns; ++k) c[r * columns + k] += a[r * inner + i] * b[i * columns + k];
    }
  }
  return c;
}

double squares_of(const std::vector<double>& x) { return std::inner_product(x.begin(), x.end(), x.begin(), 0.0); }

// x (rows, columns) in double precision: over the root of the norm of X X^T, then a X + b X X^T X + c X X^T X X^T X and so on.
std::vector<double> expected_factor(const std::vector<float>& from, std::size_t rows, std::size_t columns) {
  std::vector<double> x(from.begin(), from.end());
  const auto square = [&] {
    std::vector<double> transpose(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) transpose[i % columns * rows + i / columns] = x[i];
    return product(x, transpose, columns);
  };
  const double size = std::pow(squares_of(square()), 0.25);
  for (double& value : x) value /= size;
  for (std::size_t step = 0; step < optim::newton_schulz_steps_of_binary; ++step) {
    const std::vector<double> a = square();
    const std::vector<double> ax = product(a, x, rows);
    const std::vector<double> aax = product(a, ax, rows);
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = optim::newton_schulz_a * x[i] + optim::newton_schulz_b * ax[i] + optim::newton_schulz_c * aax[i];
    }
  }
  return x;
}

}  // namespace

TEST_CASE("the orthogonal factor of gradients is that of their singular values", "[muon]") {
  for (const auto& [rows, columns] : {std::pair(1U, 70U), std::pair(20U, 64U), std::pair(64U, 192U), std::pair(50U, 33U),
                                      std::pair(192U, 64U), std::pair(100U, 150U), std::pair(150U, 101U)}) {
    CAPTURE(rows, columns);
    std::vector<float> x = uneven(rows, columns, rows);
    const std::vector<double> expected = expected_factor(x, rows, columns);
    Orthogonaliser(rows, columns).apply(x);
    std::vector<double> off(expected);
    for (std::size_t i = 0; i < off.size(); ++i) off[i] -= static_cast<double>(x[i]);
    CHECK(squares_of(off) < 0.02 * 0.02 * squares_of(expected));
  }
}

TEST_CASE("the factor does not depend on the size of gradients, nor on threads or an earlier matrix", "[muon]") {
  constexpr std::size_t rows = 50, columns = 130;
  const std::vector<float> start = uneven(rows, columns, 3);
  std::vector<float> expected = start;
  Orthogonaliser(rows, columns).apply(expected);
  for (const float size : {0x1p-100F, 0x1p60F}) {
    std::vector<float> x = start;
    for (float& value : x) value *= size;
    Orthogonaliser(rows, columns).apply(x);
    CHECK(x == expected);
  }
  const int threads = omp_get_max_threads();
  Orthogonaliser used(rows, columns);
  std::vector<float> other = uneven(rows, columns, 4);
  for (const int count : {1, 2, 3, 7}) {
    omp_set_num_threads(count);
    used.apply(other);
    std::vector<float> x = start;
    used.apply(x);
    CHECK(x == expected);
  }
  omp_set_num_threads(threads);
}

TEST_CASE("without gradient there is no factor, and dead rows have none", "[muon]") {
  std::vector<float> none(20 * 64, 0.0F);
  Orthogonaliser(20, 64).apply(none);
  CHECK(none == std::vector<float>(20 * 64, 0.0F));
  std::vector<float> x = uneven(20, 64, 5);
  std::fill_n(x.begin() + 7 * 64, 64, 0.0F);
  Orthogonaliser(20, 64).apply(x);
  double squares[2] = {0, 0};
  for (std::size_t i = 0; i < 64; ++i) {
    squares[0] += static_cast<double>(x[7 * 64 + i]) * static_cast<double>(x[7 * 64 + i]);
    squares[1] += static_cast<double>(x[6 * 64 + i]) * static_cast<double>(x[6 * 64 + i]);
  }
  CHECK(squares[0] == 0);
  CHECK(squares[1] > 0.4);
}
