// Normalisation of rows (Ba, Kiros, Hinton 2016) and the sums and maps over columns that batch norm is made of.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nn/cpu/generic/elements.h"

namespace bitloom::nn {
namespace {

// The sum over i of value(i, part): four vectors of partial sums, since one would wait for each addition. value() of a part
// must be 0 in lanes beyond the end.
template <typename Isa, typename Value>
BITLOOM_INLINE float sum_over(std::size_t n, Value value) {
  using Float = typename Isa::Float;
  Float s0 = Isa::splat(0), s1 = s0, s2 = s0, s3 = s0;
  std::size_t i = 0;
  const WholeVector<Isa> whole;
  for (; i + 4 * Isa::width <= n; i += 4 * Isa::width) {
    s0 = s0 + value(i, whole);
    s1 = s1 + value(i + Isa::width, whole);
    s2 = s2 + value(i + 2 * Isa::width, whole);
    s3 = s3 + value(i + 3 * Isa::width, whole);
  }
  for (; i + Isa::width <= n; i += Isa::width) s0 = s0 + value(i, whole);
  if (i < n) s1 = s1 + value(i, PartOfVector<Isa>{n - i});
  return Isa::sum((s0 + s1) + (s2 + s3));
}

// Mean and variance in two passes over a row that the first brings into the cache: no cancellation of large means.
template <typename Isa, typename V>
void layer_norm(const V* x, const float* gain, const float* bias, float epsilon, V* y, float* mean, float* rstd,
                std::size_t rows, std::size_t columns) {
  using Float = typename Isa::Float;
  const float share = 1 / static_cast<float>(columns);
  for (std::size_t row = 0; row < rows; ++row, x += columns, y += columns) {
    const V* from = x;
    const float centre =
        share * sum_over<Isa>(
                    columns, [=](std::size_t i, auto part) __attribute__((always_inline)) { return part.load(from + i); });
    const Float shift = Isa::splat(centre);
    const auto square = [=](std::size_t i, auto part) __attribute__((always_inline)) {
      Float d = part.load(from + i) - shift;
      if constexpr (!decltype(part)::is_whole) d = Isa::first_lanes(d, part.n);
      return d * d;
    };
    const float variance = share * sum_over<Isa>(columns, square);
    const float scale = 1 / __builtin_sqrtf(variance + epsilon);
    const Float factor = Isa::splat(scale);
    V* to = y;
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          __builtin_prefetch(from + columns + i);
          const Float z = (part.load(from + i) - shift) * factor;
          part.store(to + i, Isa::fma(z, part.load(gain + i), part.load(bias + i)));
        });
    mean[row] = centre;
    rstd[row] = scale;
  }
}

// With z = (x - mean) rstd and g = dy gain: dx = rstd (g - mean of g - z mean of g z); dgain = sum of dy z, dbias = sum of dy.
// `kRows` rows at a time share the loads and stores of the sums.
template <typename Isa, typename V, std::size_t kRows>
BITLOOM_INLINE void layer_norm_backward_rows(const V* dy, const V* x, const float* gain, const float* mean, const float* rstd,
                                             V* dx, float* dgain, float* dbias, std::size_t columns, bool accumulate) {
  using Float = typename Isa::Float;
  Float centre[kRows], scale[kRows], g_mean[kRows], gz_mean[kRows];
#pragma GCC unroll 4
  for (std::size_t r = 0; r < kRows; ++r) {
    centre[r] = Isa::splat(mean[r]);
    scale[r] = Isa::splat(rstd[r]);
    Float g_sum[2] = {Isa::splat(0), Isa::splat(0)}, gx_sum[2] = {Isa::splat(0), Isa::splat(0)};
    const Float shift = centre[r];
    const V* dy_row = dy + r * columns;
    const V* x_row = x + r * columns;
    const auto add = [&](std::size_t i, std::size_t k, auto part) __attribute__((always_inline)) {
      __builtin_prefetch(dx + r * columns + i, 1, 2);
      const Float g = part.load(dy_row + i) * part.load(gain + i);  // 0 beyond the end
      g_sum[k] = g_sum[k] + g;
      gx_sum[k] = Isa::fma(g, part.load(x_row + i) - shift, gx_sum[k]);
    };
    std::size_t i = 0;
    for (; i + 2 * Isa::width <= columns; i += 2 * Isa::width) {
      add(i, 0, WholeVector<Isa>());
      add(i + Isa::width, 1, WholeVector<Isa>());
    }
    for_vectors<Isa>(
        columns - i, [&, i ](std::size_t k, auto part) __attribute__((always_inline)) { add(i + k, 0, part); });
    const float share = 1 / static_cast<float>(columns);
    g_mean[r] = Isa::splat(Isa::sum(g_sum[0] + g_sum[1]) * share);
    gz_mean[r] = Isa::splat(Isa::sum(gx_sum[0] + gx_sum[1]) * share * rstd[r]);
  }
  for_vectors<Isa>(
      columns, [&](std::size_t i, auto part) __attribute__((always_inline)) {
        const Float gains = part.load(gain + i);
        Float gain_sum = part.load(dgain + i), bias_sum = part.load(dbias + i);
#pragma GCC unroll 4
        for (std::size_t r = 0; r < kRows; ++r) {
          const std::size_t at = r * columns + i;
          // Rows that come next: they begin where a prefetcher that follows these ends.
          __builtin_prefetch(dy + at + kRows * columns, 0, 2);
          __builtin_prefetch(x + at + kRows * columns, 0, 2);
          const Float slope = part.load(dy + at);
          const Float z = (part.load(x + at) - centre[r]) * scale[r];
          gain_sum = Isa::fma(slope, z, gain_sum);
          bias_sum = bias_sum + slope;
          Float d = scale[r] * Isa::fnma(z, gz_mean[r], slope * gains - g_mean[r]);
          if (accumulate) d = d + part.load(dx + at);
          part.store(dx + at, d);
        }
        part.store(dgain + i, gain_sum);
        part.store(dbias + i, bias_sum);
      });
}

BITLOOM_INLINE void clear(float* x, std::size_t n) { __builtin_memset(x, 0, n * sizeof(float)); }

template <typename Isa, typename V>
void layer_norm_backward(const V* dy, const V* x, const float* gain, const float* mean, const float* rstd, V* dx, float* dgain,
                         float* dbias, std::size_t rows, std::size_t columns, bool accumulate) {
  clear(dgain, columns);
  clear(dbias, columns);
  std::size_t row = 0;
  for (; row + 2 <= rows; row += 2) {
    const std::size_t at = row * columns;
    layer_norm_backward_rows<Isa, V, 2>(dy + at, x + at, gain, mean + row, rstd + row, dx + at, dgain, dbias, columns,
                                        accumulate);
  }
  for (; row < rows; ++row) {
    const std::size_t at = row * columns;
    layer_norm_backward_rows<Isa, V, 1>(dy + at, x + at, gain, mean + row, rstd + row, dx + at, dgain, dbias, columns,
                                        accumulate);
  }
}

// sums (C) += the sum of value(offset of the element, part, column) over rows; four rows at a time share loads and stores.
template <typename Isa, typename Value>
BITLOOM_INLINE void add_columns(std::size_t rows, std::size_t columns, float* sums, Value value) {
  std::size_t row = 0;
  for (; row + 4 <= rows; row += 4) {
    const std::size_t at = row * columns;
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          const auto upper = value(at + i, part, i) + value(at + columns + i, part, i);
          const auto lower = value(at + 2 * columns + i, part, i) + value(at + 3 * columns + i, part, i);
          part.store(sums + i, part.load(sums + i) + (upper + lower));
        });
  }
  for (; row < rows; ++row) {
    const std::size_t at = row * columns;
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part)
                     __attribute__((always_inline)) { part.store(sums + i, part.load(sums + i) + value(at + i, part, i)); });
  }
}

template <typename Isa, typename V>
void column_sums(const V* x, std::size_t rows, std::size_t columns, float* sums) {
  clear(sums, columns);
  add_columns<Isa>(
      rows, columns,
      sums, [=](std::size_t at, auto part, std::size_t) __attribute__((always_inline)) { return part.load(x + at); });
}

// Two passes: callers give rows that fit into a cache.
template <typename Isa, typename V>
void column_moments(const V* x, std::size_t rows, std::size_t columns, float* mean, float* squares) {
  column_sums<Isa, V>(x, rows, columns, mean);
  const auto share = Isa::splat(1 / static_cast<float>(rows));
  for_vectors<Isa>(
      columns, [=](std::size_t i, auto part)
                   __attribute__((always_inline)) { part.store(mean + i, part.load(mean + i) * share); });
  clear(squares, columns);
  add_columns<Isa>(
      rows, columns, squares, [=](std::size_t at, auto part, std::size_t i) __attribute__((always_inline)) {
        const auto d = part.load(x + at) - part.load(mean + i);
        return d * d;
      });
}

template <typename Isa, typename V>
void column_products(const V* dy, const V* x, const float* mean, std::size_t rows, std::size_t columns, float* dy_sum,
                     float* product_sum) {
  column_sums<Isa, V>(dy, rows, columns, dy_sum);
  clear(product_sum, columns);
  add_columns<Isa>(
      rows, columns, product_sum, [=](std::size_t at, auto part, std::size_t i) __attribute__((always_inline)) {
        return part.load(dy + at) * (part.load(x + at) - part.load(mean + i));
      });
}

template <typename Isa, typename V>
void normalise_columns(const V* x, const float* mean, const float* factor, const float* bias, V* y, std::size_t rows,
                       std::size_t columns) {
  for (std::size_t at = 0; at < rows * columns; at += columns) {
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          const auto d = part.load(x + at + i) - part.load(mean + i);
          part.store(y + at + i, Isa::fma(d, part.load(factor + i), part.load(bias + i)));
        });
  }
}

template <typename Isa, typename V>
void combine_columns(const V* dy, const V* x, const float* mean, const float* factor, const float* slope, const float* shift,
                     V* dx, std::size_t rows, std::size_t columns) {
  for (std::size_t at = 0; at < rows * columns; at += columns) {
    for_vectors<Isa>(
        columns, [=](std::size_t i, auto part) __attribute__((always_inline)) {
          const auto d = part.load(x + at + i) - part.load(mean + i);
          const auto sum = Isa::fma(d, part.load(slope + i), part.load(shift + i));
          part.store(dx + at + i, Isa::fma(part.load(dy + at + i), part.load(factor + i), sum));
        });
  }
}

}  // namespace
}  // namespace bitloom::nn
