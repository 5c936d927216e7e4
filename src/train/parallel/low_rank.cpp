#include "train/parallel/low_rank.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <vector>

namespace bitloom::train {
namespace {

// Columns of n numbers each, one after the other.
class Columns {
 public:
  Columns(std::size_t n, std::size_t r) : n_(n), r_(r), numbers_(n * r, 0.0) {}
  double* operator[](std::size_t column) { return numbers_.data() + column * n_; }
  const double* operator[](std::size_t column) const { return numbers_.data() + column * n_; }
  std::size_t rows() const { return n_; }
  std::size_t columns() const { return r_; }

 private:
  std::size_t n_, r_;
  std::vector<double> numbers_;
};

double dot(const double* a, const double* b, std::size_t n) {
  // Four sums, so that one addition need not wait for the last.
  double sums[4] = {0, 0, 0, 0};
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (std::size_t k = 0; k < 4; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// columns[first ...] -= 2 v (v^T columns) from row `begin` on, where v is a unit vector, or 0, which changes nothing.
void reflect(Columns& columns, std::size_t first, const double* v, std::size_t begin) {
  const std::size_t n = columns.rows() - begin;
  const auto last = static_cast<std::int64_t>(columns.columns());
#pragma omp parallel for schedule(static) if (n * (columns.columns() - first) > 65536)
  for (auto j = static_cast<std::int64_t>(first); j < last; ++j) {
    double* column = columns[static_cast<std::size_t>(j)] + begin;
    const double factor = 2 * dot(v, column, n);
    for (std::size_t i = 0; i < n; ++i) column[i] -= factor * v[i];
  }
}

// The unit vector, written over x (n), whose reflection takes x to its length times the first axis, or minus that, whichever is
// farther from x; and whether it is minus.
bool make_reflection(double* x, std::size_t n) {
  const double largest = std::abs(*std::max_element(x, x + n, [](double a, double b) { return std::abs(a) < std::abs(b); }));
  if (largest == 0) return false;
  for (std::size_t i = 0; i < n; ++i) x[i] /= largest;  // squares neither overflow nor vanish
  const bool is_negative = x[0] >= 0;
  const double length = std::sqrt(dot(x, x, n));
  x[0] += is_negative ? length : -length;
  const double norm = std::sqrt(dot(x, x, n));
  for (std::size_t i = 0; i < n; ++i) x[i] /= norm;
  return is_negative;
}

}  // namespace

void orthogonalise(std::span<float> p, std::size_t n, std::size_t r, double epsilon) {
  assert(p.size() == n * r && n >= r);
  Columns a(n, r);
  double largest = 0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < r; ++k) {
      a[k][i] = static_cast<double>(p[i * r + k]);
      largest = std::max(largest, std::abs(a[k][i]));
    }
  }
  for (std::size_t k = 0; k < r; ++k) a[k][k] += epsilon * (largest > 0 ? largest : 1);
  std::vector<char> is_negative(r);
  for (std::size_t k = 0; k < r; ++k) {
    is_negative[k] = make_reflection(a[k] + k, n - k) ? 1 : 0;
    reflect(a, k + 1, a[k] + k, k);
  }
  // The reflections, the last first, of the first axes.
  Columns q(n, r);
  for (std::size_t k = r; k-- > 0;) {
    q[k][k] = 1;
    reflect(q, k, a[k] + k, k);
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < r; ++k) p[i * r + k] = static_cast<float>(is_negative[k] != 0 ? -q[k][i] : q[k][i]);
  }
}

void multiply_factors(std::span<const float> left, std::span<const float> right, std::size_t r, std::span<float> out) {
  const std::size_t n = left.size() / r;
  const std::size_t m = right.size() / r;
  assert(out.size() == n * m);
  std::vector<float> rows(r * m);  // right^T, whose rows are read one after the other
  for (std::size_t j = 0; j < m; ++j) {
    for (std::size_t k = 0; k < r; ++k) rows[k * m + j] = right[j * r + k];
  }
#pragma omp parallel for schedule(static) if (n * m * r > 65536)
  for (std::int64_t row = 0; row < static_cast<std::int64_t>(n); ++row) {
    const float* factors = left.data() + static_cast<std::size_t>(row) * r;
    float* sums = out.data() + static_cast<std::size_t>(row) * m;
    std::fill_n(sums, m, 0.0F);
    std::size_t k = 0;
    for (; k + 4 <= r; k += 4) {  // four terms each time that sums are read and written; added one by one
      const float* x = rows.data() + k * m;
      const float f0 = factors[k], f1 = factors[k + 1], f2 = factors[k + 2], f3 = factors[k + 3];
      for (std::size_t j = 0; j < m; ++j) {
        sums[j] = (((sums[j] + f0 * x[j]) + f1 * x[m + j]) + f2 * x[2 * m + j]) + f3 * x[3 * m + j];
      }
    }
    for (; k < r; ++k) {
      for (std::size_t j = 0; j < m; ++j) sums[j] += factors[k] * rows[k * m + j];
    }
  }
}

double sum_of_squares(std::span<const float> values) {
  constexpr std::size_t width = 8;  // sums, so that one addition need not wait for the last
  double sums[width] = {};
  std::size_t i = 0;
  for (; i + width <= values.size(); i += width) {
    for (std::size_t k = 0; k < width; ++k) {
      const auto x = static_cast<double>(values[i + k]);
      sums[k] += x * x;
    }
  }
  for (; i < values.size(); ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

bool all_finite(std::span<const float> values) {
  constexpr std::uint32_t exponent = 0x7F800000U;  // all of its bits are set in infinity and NaN alone
  std::uint32_t found = 0;
  for (const float x : values) found |= static_cast<std::uint32_t>((std::bit_cast<std::uint32_t>(x) & exponent) == exponent);
  return found == 0;
}

}  // namespace bitloom::train
