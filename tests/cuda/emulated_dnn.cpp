// Convolutions for src/nn/cuda on the CPU: plain loops, for what cuDNN does on a GPU.
#include "nn/cuda/dnn.h"

#include <vector>

#include "core/half.h"

namespace bitloom::nn::cuda {
namespace {

std::vector<double> load(Number number, const void* x, std::size_t n) {
  std::vector<double> values(n);
  for (std::size_t i = 0; i < n; ++i) {
    switch (number) {
      case Number::bf16: values[i] = to_float(static_cast<const bf16*>(x)[i]); break;
      case Number::f16: values[i] = to_float(static_cast<const f16*>(x)[i]); break;
      default: values[i] = static_cast<const float*>(x)[i];
    }
  }
  return values;
}

void store(Number number, void* x, const std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    switch (number) {
      case Number::bf16: static_cast<bf16*>(x)[i] = to_bf16(value); break;
      case Number::f16: static_cast<f16*>(x)[i] = to_f16(value); break;
      default: static_cast<float*>(x)[i] = value;
    }
  }
}

std::size_t x_size(const Convolution& c) { return c.images * c.rows * c.columns * c.inputs; }
std::size_t w_size(const Convolution& c) { return c.outputs * c.kernel_rows * c.kernel_columns * c.inputs; }
std::size_t y_size(const Convolution& c) { return c.images * c.out_rows * c.out_columns * c.outputs; }

// It has none for some shapes, so that tests see the kernels that take its place.
bool has_algorithm(const Convolution& c) { return c.outputs % 4 != 1 && c.images <= Dnn::most_images(c); }

// Calls visit(element of x, of w, of y) for all products.
template <typename Visit>
void for_each_product(const Convolution& c, Visit visit) {
  for (std::size_t y = 0; y < y_size(c); ++y) {
    const std::size_t o = y % c.outputs;
    const std::size_t column = y / c.outputs % c.out_columns;
    const std::size_t row = y / c.outputs / c.out_columns % c.out_rows;
    const std::size_t n = y / c.outputs / c.out_columns / c.out_rows;
    for (std::size_t ky = 0; ky < c.kernel_rows; ++ky) {
      for (std::size_t kx = 0; kx < c.kernel_columns; ++kx) {
        const std::size_t in_row = row * c.stride + ky - c.padding;  // huge if it is negative
        const std::size_t in_column = column * c.stride + kx - c.padding;
        if (in_row >= c.rows || in_column >= c.columns) continue;
        for (std::size_t i = 0; i < c.inputs; ++i) {
          visit(((n * c.rows + in_row) * c.columns + in_column) * c.inputs + i,
                ((o * c.kernel_rows + ky) * c.kernel_columns + kx) * c.inputs + i, y);
        }
      }
    }
  }
}

}  // namespace

struct Dnn::State {};

Dnn::Dnn(Runtime& /*runtime*/, Notes& /*notes*/) {}
Dnn::~Dnn() = default;

// Few, so that tests see convolutions in pieces, and none of some width.
std::size_t Dnn::most_images(const Convolution& c) { return c.columns % 64 == 61 ? 0 : 16; }

bool Dnn::forward(const Convolution& c, const void* x, const void* w, void* y) {
  if (!has_algorithm(c)) return false;
  const std::vector<double> xs = load(c.number, x, x_size(c));
  const std::vector<double> ws = load(c.number, w, w_size(c));
  std::vector<double> ys(y_size(c));
  for_each_product(c, [&](std::size_t i, std::size_t j, std::size_t out) { ys[out] += xs[i] * ws[j]; });
  store(c.number, y, ys);
  return true;
}

bool Dnn::backward_data(const Convolution& c, const void* dy, const void* w, void* dx) {
  if (!has_algorithm(c)) return false;
  const std::vector<double> dys = load(c.number, dy, y_size(c));
  const std::vector<double> ws = load(c.number, w, w_size(c));
  std::vector<double> dxs(x_size(c));
  for_each_product(c, [&](std::size_t i, std::size_t j, std::size_t out) { dxs[i] += dys[out] * ws[j]; });
  store(c.number, dx, dxs);
  return true;
}

bool Dnn::backward_weights(const Convolution& c, const void* x, const void* dy, void* dw) {
  if (!has_algorithm(c)) return false;
  const std::vector<double> xs = load(c.number, x, x_size(c));
  const std::vector<double> dys = load(c.number, dy, y_size(c));
  std::vector<double> dws(w_size(c));
  for_each_product(c, [&](std::size_t i, std::size_t j, std::size_t out) { dws[j] += xs[i] * dys[out]; });
  store(c.number, dw, dws);
  return true;
}

}  // namespace bitloom::nn::cuda
