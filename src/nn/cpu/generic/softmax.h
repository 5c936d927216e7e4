// Softmax of rows and the cross-entropy made from it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/math.h"
#include "nn/cpu/generic/norm.h"

namespace bitloom::nn {
namespace {

struct Denominator {
  float most = 0;  // the largest element
  float sum = 0;   // sum of exp(x - most)
};

// Elements whose exponentials are summed before they are added to the sum so far.
inline constexpr std::size_t softmax_piece = 1024;

// Stands for "none yet": unlike -infinity it can be subtracted from -infinity.
inline constexpr float lowest_float = -3.402823466e38F;

template <typename Isa, typename V>
BITLOOM_INLINE float largest_of(const V* x, std::size_t n) {
  using Float = typename Isa::Float;
  Float m0 = Isa::splat(lowest_float), m1 = m0;
  std::size_t i = 0;
  for (; i + 2 * Isa::width <= n; i += 2 * Isa::width) {
    m0 = Isa::max(m0, Isa::load(x + i));
    m1 = Isa::max(m1, Isa::load(x + i + Isa::width));
  }
  if (i + Isa::width <= n) {
    m0 = Isa::max(m0, Isa::load(x + i));
    i += Isa::width;
  }
  if (i < n) m1 = Isa::max(m1, Isa::load_part(x + i, n - i, lowest_float));
  return Isa::largest(Isa::max(m0, m1));
}

// The sum of exp(x - most).
template <typename Isa, typename V>
BITLOOM_INLINE float sum_of_exponentials(const V* x, std::size_t n, float most) {
  const auto shift = Isa::splat(most);
  const auto term = [=](std::size_t k, auto part) __attribute__((always_inline)) {
    const auto e = exp<Isa>(part.load(x + k) - shift);
    if constexpr (decltype(part)::is_whole) {
      return e;
    } else {
      return Isa::first_lanes(e, part.n);
    }
  };
  return sum_over<Isa>(n, term);
}

// In one reading of memory (Milakov, Gimelshein 2018, algorithm 3), a piece at a time: the second look at a piece, for the
// exponentials, finds it in the cache, and the sum so far is scaled once per piece.
template <typename Isa, typename V>
BITLOOM_INLINE Denominator denominator(const V* x, std::size_t n) {
  constexpr std::size_t piece = softmax_piece;
  Denominator d = {lowest_float, 0};
  for (std::size_t begin = 0; begin < n; begin += piece) {
    const std::size_t here = n - begin < piece ? n - begin : piece;
    const V* from = x + begin;
    const float most = largest_of<Isa>(from, here);
    if (most > d.most) {
      d.sum *= __builtin_expf(d.most - most);
      d.most = most;
    }
    d.sum += sum_of_exponentials<Isa>(from, here, d.most);
  }
  return d;
}

template <typename Isa, typename V>
void softmax(const V* x, V* y, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row, x += columns, y += columns) {
    const V* from = x;
    V* to = y;
    const Denominator d = denominator<Isa>(from, columns);
    const auto shift = Isa::splat(d.most);
    const auto factor = Isa::splat(1 / d.sum);
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part)
                     __attribute__((always_inline)) { part.store(to + i, exp<Isa>(part.load(from + i) - shift) * factor); });
  }
}

template <typename Isa, typename V>
void softmax_backward(const V* y, const V* dy, V* dx, std::size_t rows, std::size_t columns) {
  for (std::size_t row = 0; row < rows; ++row, y += columns, dy += columns, dx += columns) {
    const V* y_row = y;
    const V* dy_row = dy;
    V* dx_row = dx;
    const auto mean = Isa::splat(sum_over<Isa>(
        columns, [=](std::size_t i, auto part)
                     __attribute__((always_inline)) { return part.load(y_row + i) * part.load(dy_row + i); }));
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          part.store(dx_row + i, part.load(y_row + i) * (part.load(dy_row + i) - mean));
        });
  }
}

template <typename Isa, typename V>
void clear_values(V* to, std::size_t n) {
  __builtin_memset(static_cast<void*>(to), 0, n * sizeof(V));
}

template <typename Isa, typename V>
BITLOOM_INLINE float value_at(const V* x) {
  alignas(64) float lane[Isa::width];
  Isa::store(lane, Isa::load_part(x, 1));
  return lane[0];
}

template <typename Isa, typename V>
double mean_of(const V* x, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(value_at<Isa>(x + i));
  return sum / static_cast<double>(n);
}

template <typename Isa, typename V>
void cross_entropy(const V* logits, const std::int32_t* targets, std::size_t classes, std::size_t pitch,
                   const TargetFactors& factors, float* loss, V* dlogits, std::size_t rows) {
  const float scale = factors.scale;
  for (std::size_t row = 0; row < rows; ++row) {
    const V* x = logits + row * pitch;
    V* dx = dlogits == nullptr ? nullptr : dlogits + row * pitch;
    if (targets[row] < 0) {
      loss[row] = 0;
      if (dx != nullptr) clear_values<Isa>(dx, pitch);
      continue;
    }
    const auto target = static_cast<std::size_t>(targets[row]);
    const Denominator d = denominator<Isa>(x, classes);
    const double distance = static_cast<double>(d.most) - static_cast<double>(value_at<Isa>(x + target));
    const double entropy = __builtin_log(static_cast<double>(d.sum)) + distance;
    const bool is_smooth = factors.smoothing != 0;
    // How far the target's logit is above the mean of all.
    const double lead = is_smooth ? static_cast<double>(value_at<Isa>(x + target)) - mean_of<Isa>(x, classes) : 0;
    loss[row] = static_cast<float>(is_smooth ? entropy + static_cast<double>(factors.smoothing) * lead : entropy);
    if (dx == nullptr) continue;
    const auto shift = Isa::splat(d.most);
    const auto factor = Isa::splat(scale / d.sum);
    // 0 without smoothing, which leaves the bits of a product that is not negative alone.
    const float share = factors.smoothing / static_cast<float>(classes);
    const auto less = Isa::splat(scale * share);
    for_vectors<Isa>(
        classes, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          part.store(dx + i, exp<Isa>(part.load(x + i) - shift) * factor - less);
        });
    // 1 - p without the difference of numbers that are nearly equal: the loss is -log p.
    const double rest = __builtin_expm1(-entropy) + static_cast<double>(factors.smoothing - share);
    Isa::store_part(dx + target, Isa::splat(static_cast<float>(static_cast<double>(scale) * rest)), 1);
    clear_values<Isa>(dx + classes, pitch - classes);
  }
}

template <typename Isa, typename V>
void cross_entropy_maxima(const V* logits, const ClassColumns& columns, float* maxima, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) maxima[row] = largest_of<Isa>(logits + row * columns.pitch, columns.classes);
}

template <typename Isa, typename V>
void cross_entropy_terms(const V* logits, const std::int32_t* targets, const ClassColumns& columns, const float* maxima,
                         float* sums, float* of_target, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    const V* x = logits + row * columns.pitch;
    float sum = 0;
    for (std::size_t begin = 0; begin < columns.classes; begin += softmax_piece) {
      const std::size_t left = columns.classes - begin;
      sum += sum_of_exponentials<Isa>(x + begin, left < softmax_piece ? left : softmax_piece, maxima[row]);
    }
    sums[row] = sum;
    const std::size_t target = static_cast<std::size_t>(targets[row]) - columns.first;
    of_target[row] = targets[row] >= 0 && target < columns.classes ? value_at<Isa>(x + target) - maxima[row] : 0;
  }
}

template <typename Isa, typename V>
void cross_entropy_gradient(const V* logits, const std::int32_t* targets, const ClassColumns& columns, const float* maxima,
                            const float* sums, const float* loss, float scale, V* dlogits, std::size_t rows) {
  for (std::size_t row = 0; row < rows; ++row) {
    const V* x = logits + row * columns.pitch;
    V* dx = dlogits + row * columns.pitch;
    if (targets[row] < 0) {
      clear_values<Isa>(dx, columns.pitch);
      continue;
    }
    const auto shift = Isa::splat(maxima[row]);
    const auto factor = Isa::splat(scale / sums[row]);
    for_vectors<Isa>(
        columns.classes, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          part.store(dx + i, exp<Isa>(part.load(x + i) - shift) * factor);
        });
    const std::size_t target = static_cast<std::size_t>(targets[row]) - columns.first;
    if (target < columns.classes) {
      // 1 - p without the difference of numbers that are nearly equal, as in cross_entropy().
      const double rest = __builtin_expm1(-static_cast<double>(loss[row]));
      Isa::store_part(dx + target, Isa::splat(static_cast<float>(static_cast<double>(scale) * rest)), 1);
    }
    clear_values<Isa>(dx + columns.classes, columns.pitch - columns.classes);
  }
}

}  // namespace
}  // namespace bitloom::nn
