// Softmax of rows.
#include "nn/cuda/online_sum.cuh"

namespace bitloom::nn::cuda {
namespace {

template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads) softmax_rows(std::size_t rows, Rows<const T> x, Rows<T> y) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= rows) return;
  float v[Layout::packs][pack_size];
  float largest = -infinity;
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
    x.load(row, (p * width + threadIdx.x % width) * pack_size, v[p], -infinity);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) largest = fmaxf(largest, v[p][j]);
  }
  largest = group_max<width>(largest);
  float sum = 0;
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum += v[p][j] = __expf(v[p][j] - largest);
  }
  const float factor = 1 / group_sum<width>(sum);
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[p][j] *= factor;
    y.store(row, (p * width + threadIdx.x % width) * pack_size, v[p]);
  }
}

// A block reads its row twice.
template <typename T>
__global__ void __launch_bounds__(long_row_threads) softmax_long_rows(Rows<const T> x, Rows<T> y) {
  constexpr unsigned width = long_row_threads;
  const std::size_t row = blockIdx.x;
  float v[pack_size];
  OnlineSum all;
#pragma unroll 4
  for (std::size_t first = threadIdx.x * pack_size; first < x.columns; first += width * pack_size) {
    x.load(row, first, v, -infinity);
    all.add(v);
  }
  all.merge_group<width>();
  const float factor = 1 / all.sum;
#pragma unroll 2
  for (std::size_t first = threadIdx.x * pack_size; first < x.columns; first += width * pack_size) {
    x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = __expf(v[j] - all.largest) * factor;
    y.store(row, first, v);
  }
}

// dx = y (dy - sum(y dy)).
template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads)
    softmax_backward_rows(std::size_t rows, Rows<const T> y, Rows<const T> dy, Rows<T> dx) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= rows) return;
  float p_r[Layout::packs][pack_size];
  float g_r[Layout::packs][pack_size];
  float product = 0;
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
    y.load(row, (p * width + threadIdx.x % width) * pack_size, p_r[p]);
    dy.load(row, (p * width + threadIdx.x % width) * pack_size, g_r[p]);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) product += p_r[p][j] * g_r[p][j];
  }
  product = group_sum<width>(product);
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
#pragma unroll
    for (int j = 0; j < pack_size; ++j) g_r[p][j] = p_r[p][j] * (g_r[p][j] - product);
    dx.store(row, (p * width + threadIdx.x % width) * pack_size, g_r[p]);
  }
}

template <typename T>
__global__ void __launch_bounds__(long_row_threads) softmax_backward_long_rows(Rows<const T> y, Rows<const T> dy, Rows<T> dx) {
  constexpr unsigned width = long_row_threads;
  const std::size_t row = blockIdx.x;
  float p[pack_size];
  float g[pack_size];
  float product = 0;
#pragma unroll 2
  for (std::size_t first = threadIdx.x * pack_size; first < y.columns; first += width * pack_size) {
    y.load(row, first, p);
    dy.load(row, first, g);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) product += p[j] * g[j];
  }
  product = group_sum<width>(product);
  for (std::size_t first = threadIdx.x * pack_size; first < y.columns; first += width * pack_size) {
    y.load(row, first, p);
    dy.load(row, first, g);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) g[j] = p[j] * (g[j] - product);
    dx.store(row, first, g);
  }
}

}  // namespace

void softmax(Stream stream, Number number, const void* x, void* y, std::size_t rows, std::size_t columns) {
  if (rows == 0 || columns == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto x_rows = rows_of(static_cast<const T*>(x), columns);
    const auto y_rows = rows_of(static_cast<T*>(y), columns);
    const bool is_held = with_row_layout(columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "softmax", launch_of<Layout>(rows), softmax_rows<T, Layout>, rows, x_rows, y_rows);
    });
    if (is_held) return;
    launch(stream, "softmax", {static_cast<unsigned>(rows), long_row_threads}, softmax_long_rows<T>, x_rows, y_rows);
  });
}

void softmax_backward(Stream stream, Number number, const void* y, const void* dy, void* dx, std::size_t rows,
                      std::size_t columns) {
  if (rows == 0 || columns == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto y_rows = rows_of(static_cast<const T*>(y), columns);
    const auto dy_rows = rows_of(static_cast<const T*>(dy), columns);
    const auto dx_rows = rows_of(static_cast<T*>(dx), columns);
    const bool is_held = with_row_layout(columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "softmax_backward", launch_of<Layout>(rows), softmax_backward_rows<T, Layout>, rows, y_rows, dy_rows,
             dx_rows);
    });
    if (is_held) return;
    launch(stream, "softmax_backward", {static_cast<unsigned>(rows), long_row_threads}, softmax_backward_long_rows<T>, y_rows,
           dy_rows, dx_rows);
  });
}

}  // namespace bitloom::nn::cuda
