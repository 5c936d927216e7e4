// Factors of PowerSGD: orthonormal columns, products in a fixed order, and how many bytes they take.
#include "train/parallel/low_rank.h"

#include <cmath>
#include <limits>
#include <vector>

#include "core/random.h"
#include "tests/support/catch.h"
#include "train/parallel/power_sgd.h"

namespace bitloom::train {
namespace {

std::vector<float> random_matrix(std::size_t n, std::size_t r, double size, std::uint64_t seed) {
  Random random(seed, Stream::test);
  std::vector<float> values(n * r);
  for (float& x : values) x = static_cast<float>(size * random.normal());
  return values;
}

// The largest element of |q^T q - I|, or NaN.
double lack_of_orthogonality(const std::vector<float>& q, std::size_t n, std::size_t r) {
  double largest = 0;
  for (std::size_t a = 0; a < r; ++a) {
    for (std::size_t b = 0; b < r; ++b) {
      double dot = a == b ? -1 : 0;
      for (std::size_t i = 0; i < n; ++i) dot += static_cast<double>(q[i * r + a]) * static_cast<double>(q[i * r + b]);
      if (!(std::abs(dot) <= largest)) largest = std::abs(dot);
    }
  }
  return largest;
}

// Gram-Schmidt in double precision, twice, so that rounding is lost.
std::vector<double> gram_schmidt(const std::vector<float>& p, std::size_t n, std::size_t r) {
  std::vector<double> q(p.begin(), p.end());
  const auto dot = [&](std::size_t a, std::size_t b) {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += q[i * r + a] * q[i * r + b];
    return sum;
  };
  for (std::size_t k = 0; k < r; ++k) {
    for (int pass = 0; pass < 2; ++pass) {
      for (std::size_t before = 0; before < k; ++before) {
        const double part = dot(before, k);
        for (std::size_t i = 0; i < n; ++i) q[i * r + k] -= part * q[i * r + before];
      }
    }
    const double norm = std::sqrt(dot(k, k));
    for (std::size_t i = 0; i < n; ++i) q[i * r + k] /= norm;
  }
  return q;
}

// The shards that one of eight GPUs has of a block's four attention matrices and two of its MLP (table 2 of the paper), by a
// rank of an eighth of the total.
std::vector<PowerSgdShape> paper_shapes(std::size_t d, std::size_t total_rank) {
  const std::size_t m = 8;
  std::vector<PowerSgdShape> shapes;
  for (int i = 0; i < 4; ++i) shapes.push_back({"attention", d, d / m, total_rank / m});
  shapes.push_back({"mlp 1", d, 4 * d / m, total_rank / m});
  shapes.push_back({"mlp 2", 4 * d / m, d, total_rank / m});
  return shapes;
}

}  // namespace

TEST_CASE("columns become orthonormal, with the signs of Gram-Schmidt", "[power_sgd]") {
  for (const auto& [n, r] :
       std::vector<std::pair<std::size_t, std::size_t>>{{1, 1}, {2, 1}, {3, 3}, {17, 5}, {64, 64}, {333, 31}}) {
    for (const double size : {1e-30, 1.0, 1e30}) {
      CAPTURE(n, r, size);
      const std::vector<float> p = random_matrix(n, r, size, n);
      std::vector<float> q = p;
      orthogonalise(q, n, r, 0);
      CHECK(lack_of_orthogonality(q, n, r) < 1e-6);
      const std::vector<double> expected = gram_schmidt(p, n, r);
      double largest = 0;
      for (std::size_t i = 0; i < q.size(); ++i) {
        const double difference = std::abs(static_cast<double>(q[i]) - expected[i]);
        if (!(difference <= largest)) largest = difference;
      }
      CHECK(largest < 1e-5);
    }
  }
}

TEST_CASE("columns that depend on one another become orthonormal, too", "[power_sgd]") {
  const std::size_t n = 100;
  const std::size_t r = 12;
  std::vector<float> one_direction = random_matrix(n, r, 1, 3);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < r; ++k) one_direction[i * r + k] = one_direction[i * r] * static_cast<float>(k);
  }
  std::vector<float> nearly = random_matrix(n, r, 1, 4);
  for (std::size_t i = 0; i < n; ++i) nearly[i * r + 1] = nearly[i * r] * (1 + 1e-6F * nearly[i * r + 2]);
  std::vector<float> subnormal(n * r, std::numeric_limits<float>::denorm_min());
  for (std::vector<float> p : {std::vector<float>(n * r, 0.0F), one_direction, nearly, subnormal}) {
    orthogonalise(p, n, r, 1e-6);
    CHECK(lack_of_orthogonality(p, n, r) < 1e-5);
  }
}

TEST_CASE("a share of the largest number is added to the diagonal before", "[power_sgd]") {
  const std::size_t n = 9;
  const std::size_t r = 4;
  std::vector<float> p = random_matrix(n, r, 1, 8);
  p[7] = -16;
  std::vector<float> q = p;
  orthogonalise(q, n, r, 0.25);
  for (std::size_t k = 0; k < r; ++k) p[k * r + k] += 4;
  const std::vector<double> expected = gram_schmidt(p, n, r);
  for (std::size_t i = 0; i < q.size(); ++i) CHECK(std::abs(static_cast<double>(q[i]) - expected[i]) < 1e-5);
}

// 1e-6 times the largest number is added to the diagonal: 0 becomes the first axes.
TEST_CASE("nothing becomes the first axes", "[power_sgd]") {
  std::vector<float> p(5 * 2, 0.0F);
  orthogonalise(p, 5, 2, 1e-6);
  CHECK(p == std::vector<float>{1, 0, 0, 1, 0, 0, 0, 0, 0, 0});
}

TEST_CASE("factors are multiplied in the order of their columns", "[power_sgd]") {
  for (const std::size_t r : {1U, 3U, 4U, 7U, 8U, 33U}) {
    const std::size_t n = 67;
    const std::size_t m = 131;  // enough for threads
    const std::vector<float> left = random_matrix(n, r, 1, 5);
    const std::vector<float> right = random_matrix(m, r, 1, 6);
    std::vector<float> out(n * m, -1);
    multiply_factors(left, right, r, out);
    for (std::size_t i = 0; i < n; ++i) {
      for (std::size_t j = 0; j < m; ++j) {
        float expected = 0;
        for (std::size_t k = 0; k < r; ++k) expected += left[i * r + k] * right[j * r + k];
        if (out[i * m + j] != expected) FAIL("element " << i << ", " << j << " of rank " << r);
      }
    }
  }
}

TEST_CASE("squares are summed, and what is not finite is found, wherever it is", "[power_sgd]") {
  for (const std::size_t n : {0U, 1U, 7U, 8U, 31U, 64U}) {
    std::vector<float> values = random_matrix(n, 1, 1, n + 1);
    double expected = 0;
    for (const float x : values) expected += static_cast<double>(x) * static_cast<double>(x);
    CHECK(std::abs(sum_of_squares(values) - expected) <= 1e-12 * expected);
    CHECK(all_finite(values));
    for (std::size_t i = 0; i < n; ++i) {
      for (const float x : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                            std::numeric_limits<float>::quiet_NaN()}) {
        const float before = values[i];
        values[i] = x;
        CHECK(!all_finite(values));
        values[i] = before;
      }
    }
  }
  CHECK(all_finite(std::vector<float>{std::numeric_limits<float>::max(), -std::numeric_limits<float>::max()}));
}

// Ramesh et al. 2021, table 1 and appendix E.1: r (m + 2) / (2 d m) of all numbers, which is 5 r / 8 d for m = 8.
TEST_CASE("PowerSGD is planned to send what the paper says", "[power_sgd]") {
  struct Row {
    std::size_t d, rank;
    double saved;
  };
  for (const Row& row : {Row{1920, 512, 83.3}, Row{2688, 640, 85.1}, Row{3968, 896, 85.9}}) {
    const std::vector<PowerSgdShape> shapes = paper_shapes(row.d, row.rank);
    std::uint64_t elements = 0;
    for (const PowerSgdShape& shape : shapes) elements += shape.rows * shape.columns;
    CHECK(elements == 12 * row.d * row.d / 8);
    for (const auto& [format, size] : {std::pair{FloatFormat::f32, 4U}, std::pair{FloatFormat::f1_6_9, 2U}}) {
      const PowerSgdBytes bytes = power_sgd_bytes(shapes, format);
      CHECK((bytes.p + bytes.q) * 8 * row.d == elements * size * 5 * row.rank / 8 * 8);
      const double saved = 100 * (1 - static_cast<double>(bytes.p + bytes.q) / static_cast<double>(elements * size));
      CHECK(std::round(10 * saved) / 10 == row.saved);
      CHECK(bytes.exact == 0);
      CHECK(bytes.flags == 6 * 4);
      CHECK(bytes.sum() == bytes.p + bytes.q + bytes.flags);
    }
  }
}

TEST_CASE("matrices whose factors are no smaller, and vectors, are sent as they are", "[power_sgd]") {
  CHECK(power_sgd_shape("a", 100, 100, 8).rank == 8);
  CHECK(power_sgd_shape("a", 100, 100, 49).rank == 49);
  CHECK(power_sgd_shape("a", 100, 100, 50).rank == 0);
  CHECK(power_sgd_shape("a", 100, 100, 200).rank == 0);
  CHECK(power_sgd_shape("a", 4, 100, 3).rank == 3);
  CHECK(power_sgd_shape("a", 2, 100, 8).rank == 0);
  CHECK(power_sgd_shape("a", 3, 100, 8).rank == 0);
  CHECK(power_sgd_shape("a", 1, 100, 8).rank == 0);
  const std::vector<PowerSgdShape> shapes{power_sgd_shape("a", 1, 100, 8), power_sgd_shape("b", 64, 32, 8)};
  const PowerSgdBytes bytes = power_sgd_bytes(shapes, FloatFormat::f32);
  CHECK(bytes.exact == 400);
  CHECK(bytes.p == 64 * 8 * 4);
  CHECK(bytes.q == 32 * 8 * 4);
  CHECK(bytes.flags == 4);
}

// Step 12: a buffer is lost only where it must be.
TEST_CASE("an error buffer is cleared only if it is not finite itself", "[power_sgd]") {
  CHECK(error_update(true, true) == ErrorUpdate::subtract);
  CHECK(error_update(true, false) == ErrorUpdate::subtract);
  CHECK(error_update(false, true) == ErrorUpdate::keep);
  CHECK(error_update(false, false) == ErrorUpdate::clear);
}

}  // namespace bitloom::train
