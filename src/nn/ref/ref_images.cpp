#include <cmath>
#include <cstdint>

#include "nn/ref/numbers.h"
#include "nn/ref/ref_backend.h"

namespace bitloom::nn::ref {
namespace {

// Where element (n, y, x, c) of a tensor (N,Y,X,C) stands.
std::size_t place(const Shape& shape, std::size_t n, std::size_t y, std::size_t x, std::size_t c) {
  return ((n * shape[1] + y) * shape[2] + x) * shape[3] + c;
}

// Calls visit(element of x, element of w, element of y) for all products of a convolution of x (N,Y,X,I) with w (O,I,KY,KX) to
// y (N,Y',X',O). Forward and both backward passes are sums over the same triples.
template <typename Visit>
void for_each_product(const Conv2d& conv, const Shape& x, const Shape& w, const Shape& y, Visit visit) {
  for (std::size_t n = 0; n < y[0]; ++n) {
    for (std::size_t row = 0; row < y[1]; ++row) {
      for (std::size_t column = 0; column < y[2]; ++column) {
        for (std::size_t o = 0; o < w[0]; ++o) {
          for (std::size_t i = 0; i < w[1]; ++i) {
            for (std::size_t ky = 0; ky < w[2]; ++ky) {
              for (std::size_t kx = 0; kx < w[3]; ++kx) {
                const std::size_t padded_row = row * conv.stride + ky;
                const std::size_t padded_column = column * conv.stride + kx;
                if (padded_row < conv.padding || padded_row >= x[1] + conv.padding) continue;
                if (padded_column < conv.padding || padded_column >= x[2] + conv.padding) continue;
                visit(place(x, n, padded_row - conv.padding, padded_column - conv.padding, i),
                      ((o * w[1] + i) * w[2] + ky) * w[3] + kx, place(y, n, row, column, o));
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace

void RefBackend::conv2d(const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  const std::vector<double> x_values = load(x);
  const std::vector<double> w_values = load(w);
  const std::vector<double> bias_o = bias ? load(bias) : std::vector<double>(w.shape()[0]);
  std::vector<double> result(y.size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = bias_o[i % bias_o.size()];
  for_each_product(conv, x.shape(), w.shape(), y.shape(),
                   [&](std::size_t i, std::size_t j, std::size_t out) { result[out] += x_values[i] * w_values[j]; });
  store(y, result);
}

void RefBackend::conv2d_backward_data(const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) {
  const std::vector<double> dy_values = load(dy);
  const std::vector<double> w_values = load(w);
  std::vector<double> result(dx.size());
  for_each_product(conv, dx.shape(), w.shape(), dy.shape(),
                   [&](std::size_t in, std::size_t j, std::size_t out) { result[in] += dy_values[out] * w_values[j]; });
  store(dx, result);
}

void RefBackend::conv2d_backward_weights(const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  const std::vector<double> x_values = load(x);
  const std::vector<double> dy_values = load(dy);
  std::vector<double> result = load(dw);
  for_each_product(conv, x.shape(), dw.shape(), dy.shape(),
                   [&](std::size_t i, std::size_t weight, std::size_t out) { result[weight] += dy_values[out] * x_values[i]; });
  store(dw, result);
}

namespace {

// Calls visit(element of the large tensor, its place in the window, element of the small one) for all pairs of a window of
// k x k and its element in a tensor (N,Y/k,X/k,C): row by row in a window.
template <typename Visit>
void for_each_in_window(std::size_t k, const Shape& large, const Shape& small, Visit visit) {
  for (std::size_t n = 0; n < small[0]; ++n) {
    for (std::size_t row = 0; row < small[1]; ++row) {
      for (std::size_t column = 0; column < small[2]; ++column) {
        for (std::size_t c = 0; c < small[3]; ++c) {
          for (std::size_t i = 0; i < k * k; ++i) {
            visit(place(large, n, row * k + i / k, column * k + i % k, c), i, place(small, n, row, column, c));
          }
        }
      }
    }
  }
}

}  // namespace

void RefBackend::max_pool(std::size_t k, const Tensor& x, Tensor& y, Tensor& which) {
  const std::vector<double> x_values = load(x);
  const std::span<std::uint8_t> which_values = which.as<std::uint8_t>();
  std::vector<double> result(y.size());
  for_each_in_window(k, x.shape(), y.shape(), [&](std::size_t in, std::size_t i, std::size_t out) {
    const bool beats = x_values[in] > result[out] || (std::isnan(x_values[in]) && !std::isnan(result[out]));
    if (i != 0 && !beats) return;
    result[out] = x_values[in];
    which_values[out] = static_cast<std::uint8_t>(i);
  });
  store(y, result);
}

void RefBackend::max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) {
  const std::vector<double> dy_values = load(dy);
  const std::span<const std::uint8_t> which_values = which.as<std::uint8_t>();
  std::vector<double> result(dx.size());
  for_each_in_window(k, dx.shape(), dy.shape(), [&](std::size_t in, std::size_t i, std::size_t out) {
    result[in] = which_values[out] == i ? dy_values[out] : 0;
  });
  store(dx, result);
}

void RefBackend::upsample(std::size_t k, const Tensor& x, Tensor& y) {
  const std::vector<double> x_values = load(x);
  std::vector<double> result(y.size());
  for_each_in_window(k, y.shape(), x.shape(),
                     [&](std::size_t out, std::size_t, std::size_t in) { result[out] = x_values[in]; });
  store(y, result);
}

void RefBackend::upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) {
  const std::vector<double> dy_values = load(dy);
  std::vector<double> result(dx.size());
  for_each_in_window(k, dy.shape(), dx.shape(),
                     [&](std::size_t out, std::size_t, std::size_t in) { result[in] += dy_values[out]; });
  store(dx, result);
}

}  // namespace bitloom::nn::ref
