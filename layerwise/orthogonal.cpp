#include "layerwise/orthogonal.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "layerwise/gemm_pairs.h"
#include "optim/newton_schulz.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {
namespace {

// Columns of the second factor and rows of the first of which products are made at a time; kernels read 64 columns at once.
constexpr std::size_t panel_width = 64;
constexpr std::size_t rows_of_block = 48;

constexpr float singular_one = 32768.0F;
constexpr double square_one = 1 << 30;  // of sums of products of two such numbers

std::size_t parts_of(std::size_t size, std::size_t part) { return (size + part - 1) / part; }

// In parallel: visit(i) for 0 <= i < n.
template <typename Visit>
void for_each_index(std::size_t n, Visit&& visit) {
#pragma omp parallel for schedule(dynamic, 1)
  for (std::ptrdiff_t i = 0; i < static_cast<std::ptrdiff_t>(n); ++i) visit(static_cast<std::size_t>(i));
}

// Sums of each row, added in the order of rows, whoever made them.
double sum_of(const std::vector<double>& rows) {
  double sum = 0;
  for (const double row : rows) sum += row;
  return sum;
}

// A panel of `width` columns of a product: c (rows, width) = a (rows, k) times columns from `column` on of b (rows of b, n),
// of which there are at most k; a is 0 in the columns beyond. Returns c, which the next call on this thread overwrites.
const std::int32_t* panel_of_product(std::size_t rows, std::size_t k, const std::int16_t* a, std::size_t rows_of_b,
                                     std::size_t n, std::size_t column, std::size_t width, const std::int16_t* b) {
  thread_local Buffer<std::int16_t> pairs;
  thread_local Buffer<std::int32_t> product;
  if (pairs.size() < k * width) pairs = Buffer<std::int16_t>(k * width);
  if (product.size() < rows * width) product = Buffer<std::int32_t>(rows * width);
  for (std::size_t r = 0; r < rows_of_b; r += 2) {
    const std::int16_t* const even = b + r * n + column;
    std::int16_t* const out = pairs.data() + r * width;
    if (r + 1 < rows_of_b) {
      for (std::size_t i = 0; i < width; ++i) out[2 * i] = even[i], out[2 * i + 1] = even[n + i];
    } else {
      for (std::size_t i = 0; i < width; ++i) out[2 * i] = even[i], out[2 * i + 1] = 0;
    }
  }
  std::fill_n(product.data(), rows * width, 0);
  simd::kernels().gemm_s16(rows, width, k, a, k, pairs.data(), product.data(), width);
  return product.data();
}

}  // namespace

Orthogonaliser::Orthogonaliser(std::size_t rows, std::size_t columns)
    : rows_(rows),
      columns_(columns),
      short_(std::min(rows, columns)),
      long_(std::max(rows, columns)),
      short_padded_(round_up(short_, 16)),
      long_padded_(round_up(long_, 16)),
      x_(short_ * long_padded_),
      transpose_(short_padded_ * long_padded_),
      square_(short_ * short_padded_),
      narrow_(short_ * short_padded_),
      polynomial_(short_ * short_padded_),
      row_squares_(short_) {}

void Orthogonaliser::apply(std::span<float> x) {
  for_each_index(short_, [&](std::size_t r) {
    double squares = 0;
    for (std::size_t c = 0; c < long_; ++c) {
      const auto value = static_cast<double>(element(x, r, c));
      squares += value * value;
    }
    row_squares_[r] = squares;
  });
  const double norm = std::sqrt(sum_of(row_squares_));
  if (!(norm > 0)) return;
  // The largest singular value is at most 1 now, and mostly far less. That of X X^T, its square, is at most the norm of X X^T.
  quantise(x, 1 / norm);
  square();
  for_each_index(short_, [&](std::size_t r) {
    double squares = 0;
    for (std::size_t c = 0; c < short_; ++c) {
      const auto value = static_cast<double>(square_[r * short_padded_ + c]);
      squares += value * value;
    }
    row_squares_[r] = squares;
  });
  const double bound = std::sqrt(sum_of(row_squares_)) / square_one;
  quantise(x, 1 / (norm * std::sqrt(bound)));
  step(static_cast<float>(1 / bound));
  for (std::size_t i = 1; i < optim::newton_schulz_steps_of_binary; ++i) {
    square();
    step(1);
  }
  for_each_index(short_, [&](std::size_t r) {
    for (std::size_t c = 0; c < long_; ++c) element(x, r, c) = static_cast<float>(x_[r * long_padded_ + c]) / singular_one;
  });
}

// The element of the shape (S, L).
float& Orthogonaliser::element(std::span<float> x, std::size_t r, std::size_t c) const {
  return x[rows_ > columns_ ? c * columns_ + r : r * columns_ + c];
}

// x_ = x * scale.
void Orthogonaliser::quantise(std::span<float> x, double scale) {
  const float factor = static_cast<float>(scale) * singular_one;
  for_each_index(short_, [&](std::size_t r) {
    for (std::size_t c = 0; c < long_; ++c) {
      const float value = std::max(-32768.0F, std::min(32767.0F, element(x, r, c) * factor));
      x_[r * long_padded_ + c] = static_cast<std::int16_t>(value + std::copysign(0.5F, value));
    }
  });
}

// square_ = X X^T. By the inequality of Cauchy and Schwarz no sum leaves 32 bits while singular values stay below 1.4.
void Orthogonaliser::square() {
  // Two columns of a row make a word of pairs over columns, which are the transpose of these words.
  constexpr std::size_t word = 2, tile = 16;
  const auto width_of = [&](std::size_t panel) { return std::min(panel_width, short_padded_ - panel * panel_width); };
  for_each_index(parts_of(long_padded_ / word, tile), [&](std::size_t part) {
    for (std::size_t r = 0; r < short_; ++r) {
      const std::size_t panel = r / panel_width;
      std::int16_t* const to = transpose_.data() + panel * panel_width * long_padded_ + r % panel_width * word;
      for (std::size_t c = part * tile; c < std::min((part + 1) * tile, long_padded_ / word); ++c) {
        std::memcpy(to + c * width_of(panel) * word, x_.data() + r * long_padded_ + c * word, word * sizeof(std::int16_t));
      }
    }
  });
  // It is symmetric: for each panel of columns the rows down to the diagonal.
  const std::size_t panels = parts_of(short_padded_, panel_width);
  const std::size_t blocks = parts_of(short_, rows_of_block);
  for_each_index(panels * blocks, [&](std::size_t i) {
    const std::size_t panel = panels - 1 - i / blocks, column = panel * panel_width;  // the longest first
    const std::size_t width = width_of(panel), first = i % blocks * rows_of_block;
    if (first >= column + width) return;
    const std::size_t rows = std::min(rows_of_block, short_ - first);
    std::int32_t* const c = square_.data() + first * short_padded_ + column;
    for (std::size_t r = 0; r < rows; ++r) std::fill_n(c + r * short_padded_, width, 0);
    simd::kernels().gemm_s16(rows, width, long_padded_, x_.data() + first * long_padded_, long_padded_,
                             transpose_.data() + column * long_padded_, c, short_padded_);
  });
  for_each_index(short_, [&](std::size_t r) {
    for (std::size_t c = 0; c < r; ++c) square_[r * short_padded_ + c] = square_[c * short_padded_ + r];
  });
}

// X = a X + (b A + c A^2) X with A = square_ * square_scale.
void Orthogonaliser::step(float square_scale) {
  const simd::Kernels& kernels = simd::kernels();
  for_each_index(short_, [&](std::size_t r) {
    const std::size_t row = r * short_padded_;
    kernels.combine_s16(narrow_.data() + row, square_.data() + row, short_, 0, square_scale * 0x1p-16F, narrow_.data() + row);
  });
  const auto each_panel = [&](std::size_t n, auto&& visit) {
    for_each_index(parts_of(n, panel_width),
                   [&](std::size_t panel) { visit(panel * panel_width, std::min(panel_width, n - panel * panel_width)); });
  };
  each_panel(short_padded_, [&](std::size_t column, std::size_t width) {
    const std::int32_t* const sums =
        panel_of_product(short_, short_padded_, narrow_.data(), short_, short_padded_, column, width, narrow_.data());
    constexpr auto b = static_cast<float>(optim::newton_schulz_b) * 0x1p-1F;
    constexpr auto c = static_cast<float>(optim::newton_schulz_c) * 0x1p-15F;
    for (std::size_t r = 0; r < short_; ++r) {
      const std::size_t row = r * short_padded_ + column;
      kernels.combine_s16(narrow_.data() + row, sums + r * width, width, b, c, polynomial_.data() + row);
    }
  });
  each_panel(long_padded_, [&](std::size_t column, std::size_t width) {
    const std::int32_t* const sums =
        panel_of_product(short_, short_padded_, polynomial_.data(), short_, long_padded_, column, width, x_.data());
    constexpr auto a = static_cast<float>(optim::newton_schulz_a);
    for (std::size_t r = 0; r < short_; ++r) {
      std::int16_t* const x = x_.data() + r * long_padded_ + column;
      kernels.combine_s16(x, sums + r * width, width, a, 0x1p-13F, x);
    }
  });
}

}  // namespace bitloom::layerwise
