// Convolutions by plain sums in f32, for shapes of which cuDNN has no algorithm that gives the same bits every time. Much
// slower than its own: a warp per element of an image, a block per weight. C++17.
#include "nn/cuda/numbers.cuh"
#include "nn/cuda/reduce.cuh"

namespace bitloom::nn::cuda {
namespace {

constexpr unsigned threads = 256;

// Place of an element in a tensor (..., rows, columns, channels).
struct Element {
  std::size_t image, row, column, channel;
  __device__ Element(std::size_t at, std::size_t rows, std::size_t columns, std::size_t channels)
      : image(at / channels / columns / rows),
        row(at / channels / columns % rows),
        column(at / channels % columns),
        channel(at % channels) {}
};

// The row of x that a row of y sees with row `of_kernel` of the kernel; huge if there is none. So for columns.
__device__ std::size_t seen(std::size_t of_y, std::size_t of_kernel, const Convolution& c) {
  return of_y * c.stride + of_kernel - c.padding;
}

template <typename T>
__global__ void __launch_bounds__(threads) forward(std::size_t n, const Convolution c, const T* x, const T* w, T* y) {
  const std::size_t terms = c.kernel_rows * c.kernel_columns * c.inputs;
  for (std::size_t at = first_piece() / warp_size; at < n; at += piece_stride() / warp_size) {
    const Element to(at, c.out_rows, c.out_columns, c.outputs);
    float sum = 0;
    for (std::size_t term = threadIdx.x % warp_size; term < terms; term += warp_size) {
      const Element k(term, c.kernel_rows, c.kernel_columns, c.inputs);
      const std::size_t row = seen(to.row, k.row, c), column = seen(to.column, k.column, c);
      if (row >= c.rows || column >= c.columns) continue;
      sum += to_float(x[((to.image * c.rows + row) * c.columns + column) * c.inputs + k.channel]) *
             to_float(w[to.channel * terms + term]);
    }
    sum = group_sum<warp_size>(sum);
    if (threadIdx.x % warp_size == 0) y[at] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(threads) backward_data(std::size_t n, const Convolution c, const T* dy, const T* w, T* dx) {
  const std::size_t terms = c.kernel_rows * c.kernel_columns * c.outputs;
  for (std::size_t at = first_piece() / warp_size; at < n; at += piece_stride() / warp_size) {
    const Element to(at, c.rows, c.columns, c.inputs);
    float sum = 0;
    for (std::size_t term = threadIdx.x % warp_size; term < terms; term += warp_size) {
      const Element k(term, c.kernel_rows, c.kernel_columns, c.outputs);
      // Row and column of y, times the stride; huge, or no multiple of it, if there is none.
      const std::size_t row = to.row + c.padding - k.row, column = to.column + c.padding - k.column;
      if (row % c.stride != 0 || row / c.stride >= c.out_rows) continue;
      if (column % c.stride != 0 || column / c.stride >= c.out_columns) continue;
      const std::size_t pixel = (to.image * c.out_rows + row / c.stride) * c.out_columns + column / c.stride;
      const std::size_t weight = ((k.channel * c.kernel_rows + k.row) * c.kernel_columns + k.column) * c.inputs + to.channel;
      sum += to_float(dy[pixel * c.outputs + k.channel]) * to_float(w[weight]);
    }
    sum = group_sum<warp_size>(sum);
    if (threadIdx.x % warp_size == 0) dx[at] = from_float<T>(sum);
  }
}

template <typename T>
__global__ void __launch_bounds__(threads)
    backward_weights(std::size_t n, const Convolution c, const T* x, const T* dy, T* dw) {
  const std::size_t pixels = c.images * c.out_rows * c.out_columns;
  for (std::size_t at = blockIdx.x; at < n; at += gridDim.x) {
    const Element k(at, c.kernel_rows, c.kernel_columns, c.inputs);  // place in output channel k.image
    float sum = 0;
    for (std::size_t pixel = threadIdx.x; pixel < pixels; pixel += threads) {
      const Element of_y(pixel, c.out_rows, c.out_columns, 1);
      const std::size_t row = seen(of_y.row, k.row, c), column = seen(of_y.column, k.column, c);
      if (row >= c.rows || column >= c.columns) continue;
      sum += to_float(x[((of_y.image * c.rows + row) * c.columns + column) * c.inputs + k.channel]) *
             to_float(dy[pixel * c.outputs + k.image]);
    }
    sum = group_sum<threads>(sum);
    if (threadIdx.x == 0) dw[at] = from_float<T>(sum);
  }
}

// A warp for each of n elements.
LaunchShape shape_for(std::size_t n) { return {blocks_for(n * warp_size, threads), threads}; }

}  // namespace

void convolve(Stream stream, const Convolution& c, const void* x, const void* w, void* y) {
  const std::size_t n = c.images * c.out_rows * c.out_columns * c.outputs;
  with_number(c.number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "conv2d", shape_for(n), forward<T>, n, c, static_cast<const T*>(x), static_cast<const T*>(w),
           static_cast<T*>(y));
  });
}

void convolve_backward_data(Stream stream, const Convolution& c, const void* dy, const void* w, void* dx) {
  const std::size_t n = c.images * c.rows * c.columns * c.inputs;
  with_number(c.number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "conv2d_backward_data", shape_for(n), backward_data<T>, n, c, static_cast<const T*>(dy),
           static_cast<const T*>(w), static_cast<T*>(dx));
  });
}

void convolve_backward_weights(Stream stream, const Convolution& c, const void* x, const void* dy, void* dw) {
  const std::size_t n = c.outputs * c.kernel_rows * c.kernel_columns * c.inputs;
  with_number(c.number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "conv2d_backward_weights", {blocks_for(n * threads, threads), threads}, backward_weights<T>, n, c,
           static_cast<const T*>(x), static_cast<const T*>(dy), static_cast<T*>(dw));
  });
}

}  // namespace bitloom::nn::cuda
