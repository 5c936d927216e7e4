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

// In one reading of memory (Milakov, Gimelshein 2018, algorithm 3), a piece at a time: the second look at a piece, for the
// exponentials, finds it in the cache, and the sum so far is scaled once per piece. The lowest finite number stands for "none
// yet": unlike -infinity it can be subtracted from -infinity.
template <typename Isa, typename V>
BITLOOM_INLINE Denominator denominator(const V* x, std::size_t n) {
  using Float = typename Isa::Float;
  constexpr std::size_t piece = 1024;
  constexpr float lowest = -3.402823466e38F;
  Denominator d = {lowest, 0};
  for (std::size_t begin = 0; begin < n; begin += piece) {
    const std::size_t here = n - begin < piece ? n - begin : piece;
    const V* from = x + begin;
    Float m0 = Isa::splat(lowest), m1 = m0;
    std::size_t i = 0;
    for (; i + 2 * Isa::width <= here; i += 2 * Isa::width) {
      m0 = Isa::max(m0, Isa::load(from + i));
      m1 = Isa::max(m1, Isa::load(from + i + Isa::width));
    }
    if (i + Isa::width <= here) {
      m0 = Isa::max(m0, Isa::load(from + i));
      i += Isa::width;
    }
    if (i < here) m1 = Isa::max(m1, Isa::load_part(from + i, here - i, lowest));
    const float most = Isa::largest(Isa::max(m0, m1));
    if (most > d.most) {
      d.sum *= __builtin_expf(d.most - most);
      d.most = most;
    }
    const Float shift = Isa::splat(d.most);
    const auto term = [=](std::size_t k, auto part) __attribute__((always_inline)) {
      const Float e = exp<Isa>(part.load(from + k) - shift);
      if constexpr (decltype(part)::is_whole) {
        return e;
      } else {
        return Isa::first_lanes(e, part.n);
      }
    };
    d.sum += sum_over<Isa>(here, term);
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

}  // namespace
}  // namespace bitloom::nn
