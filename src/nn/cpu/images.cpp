// Pooling and upsampling, one thread per row of windows. Sums of a window run in raster order, so results do not depend on the
// number of threads.
#include <algorithm>
#include <cstdint>

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/kernel_tables.h"
#include "nn/cpu/parallel.h"

namespace bitloom::nn {
namespace {

// (rows, x, C) with rows = N Y: the smaller of two images; the larger is k times as high and wide.
struct Sizes {
  std::size_t k, rows, x, c;
  Sizes(std::size_t factor, const Shape& small) : k(factor), rows(small[0] * small[1]), x(small[2]), c(small[3]) {}
  // Whether there is work for threads: bytes of the larger image.
  bool is_long() const { return rows * k * row() * k * sizeof(bf16) >= parallel_bytes; }
  // Elements of a row of pixels.
  std::size_t row() const { return x * c; }
  std::size_t large_row() const { return k * row(); }
};

template <typename T>
void upsample_rows(const Sizes& sizes, const T* small, T* large) {
#pragma omp parallel for schedule(static) if (sizes.is_long())
  for (std::size_t r = 0; r < sizes.rows; ++r) {
    const std::size_t large_row = sizes.large_row();
    T* first = large + r * sizes.k * large_row;
    for (std::size_t column = 0; column < sizes.x * sizes.k; ++column) {
      std::copy_n(small + (r * sizes.x + column / sizes.k) * sizes.c, sizes.c, first + column * sizes.c);
    }
    for (std::size_t copy = 1; copy < sizes.k; ++copy) std::copy_n(first, large_row, first + copy * large_row);
  }
}

}  // namespace

void CpuBackend::max_pool(std::size_t k, const Tensor& x, Tensor& y, Tensor& which) {
  const Sizes sizes(k, y.shape());
  std::uint8_t* const places = elements<std::uint8_t>(which);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().max_pool_row;
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_pieces(sizes.rows, sizes.is_long(), [=](std::size_t r) {
      kernel(k, from + r * sizes.large_row() * k, to + r * sizes.row(), places + r * sizes.row(), sizes.x, sizes.c);
    });
  });
}

void CpuBackend::max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) {
  const Sizes sizes(k, dy.shape());
  const std::uint8_t* const places = elements<std::uint8_t>(which);
  with_type(dy.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().max_pool_backward_row;
    const V* const slope = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_pieces(sizes.rows, sizes.is_long(), [=](std::size_t r) {
      kernel(k, slope + r * sizes.row(), places + r * sizes.row(), to + r * sizes.large_row() * k, sizes.x, sizes.c);
    });
  });
}

void CpuBackend::upsample(std::size_t k, const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) { upsample_rows(Sizes(k, x.shape()), elements<T>(x), elements<T>(y)); });
}

void CpuBackend::upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) {
  const Sizes sizes(k, dx.shape());
  with_type(dx.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().sum_windows_row;
    const V* const slope = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_pieces(sizes.rows, sizes.is_long(),
               [=](std::size_t r) { kernel(k, slope + r * sizes.large_row() * k, to + r * sizes.row(), sizes.x, sizes.c); });
  });
}

}  // namespace bitloom::nn
