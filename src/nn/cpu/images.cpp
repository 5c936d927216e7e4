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
struct UpsampleSizes {
  std::size_t k, rows, x, c;
  UpsampleSizes(std::size_t factor, const Shape& small) : k(factor), rows(small[0] * small[1]), x(small[2]), c(small[3]) {}
  // Whether there is work for threads: bytes of the larger image.
  bool is_long() const { return rows * k * row() * k * sizeof(bf16) >= parallel_bytes; }
  // Elements of a row of pixels.
  std::size_t row() const { return x * c; }
  std::size_t large_row() const { return k * row(); }
};

// Whole windows of k x k in images (N,Y,X,C), counted by rows of windows through all images; what is left over at the right and
// below belongs to none.
struct Windows {
  std::size_t k, rows, columns, channels;  // of windows, in an image
  std::size_t images, large_rows, pitch;   // rows of pixels in an image, elements of such a row
  Windows(std::size_t factor, const Shape& small, const Shape& large)
      : k(factor),
        rows(small[1]),
        columns(small[2]),
        channels(small[3]),
        images(small[0]),
        large_rows(large[1]),
        pitch(large[2] * large[3]) {}
  std::size_t count() const { return images * rows; }
  bool is_long() const { return images * large_rows * pitch * sizeof(bf16) >= parallel_bytes; }
  // The first element of a row of windows, in the large images and in the small ones.
  std::size_t large_at(std::size_t r) const { return (r / rows * large_rows + r % rows * k) * pitch; }
  std::size_t small_at(std::size_t r) const { return r * columns * channels; }

  // Clears what row r of windows leaves over in dx.
  template <typename V>
  void clear_rest(std::size_t r, V* dx) const {
    const std::size_t covered = columns * k * channels;
    V* const first = dx + large_at(r);
    for (std::size_t y = 0; covered < pitch && y < k; ++y) std::fill(first + y * pitch + covered, first + (y + 1) * pitch, V{});
    if (r % rows + 1 == rows) std::fill(first + k * pitch, first + (large_rows - (rows - 1) * k) * pitch, V{});
  }
};

template <typename T>
void upsample_rows(const UpsampleSizes& sizes, const T* small, T* large) {
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
  const Windows windows(k, y.shape(), x.shape());
  std::uint8_t* const places = elements<std::uint8_t>(which);
  with_type(x.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().max_pool_row;
    const V* const from = elements<V>(x);
    V* const to = elements<V>(y);
    for_pieces(windows.count(), windows.is_long(), [=](std::size_t r) {
      const std::size_t at = windows.small_at(r);
      kernel(k, from + windows.large_at(r), windows.pitch, to + at, places + at, windows.columns, windows.channels);
    });
  });
}

void CpuBackend::max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) {
  const Windows windows(k, dy.shape(), dx.shape());
  const std::uint8_t* const places = elements<std::uint8_t>(which);
  with_type(dy.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().max_pool_backward_row;
    const V* const slope = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_pieces(windows.count(), windows.is_long(), [=](std::size_t r) {
      const std::size_t at = windows.small_at(r);
      kernel(k, slope + at, places + at, to + windows.large_at(r), windows.pitch, windows.columns, windows.channels);
      windows.clear_rest(r, to);
    });
  });
}

void CpuBackend::upsample(std::size_t k, const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) { upsample_rows(UpsampleSizes(k, x.shape()), elements<T>(x), elements<T>(y)); });
}

void CpuBackend::upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) {
  const UpsampleSizes sizes(k, dx.shape());
  with_type(dx.dtype(), [&]<typename V>(V) {
    const auto kernel = vector_kernels().of<V>().sum_windows_row;
    const V* const slope = elements<V>(dy);
    V* const to = elements<V>(dx);
    for_pieces(sizes.rows, sizes.is_long(),
               [=](std::size_t r) { kernel(k, slope + r * sizes.large_row() * k, to + r * sizes.row(), sizes.x, sizes.c); });
  });
}

}  // namespace bitloom::nn
