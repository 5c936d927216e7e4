// Pooling and upsampling: loops over memory, one thread per row of pixels. Sums of a window run in raster order, so results do
// not depend on the number of threads.
#include <algorithm>
#include <cstdint>

#include "nn/cpu/cpu_backend.h"
#include "nn/cpu/elements.h"
#include "nn/cpu/parallel.h"

namespace bitloom::nn {
namespace {

// Channels whose sums a thread has at hand.
constexpr std::size_t chunk = 256;

// (rows, x, C) with rows = N Y: the smaller of two images; the larger is k times as high and wide.
struct Sizes {
  std::size_t k, rows, x, c;
  Sizes(std::size_t factor, const Shape& small) : k(factor), rows(small[0] * small[1]), x(small[2]), c(small[3]) {}
  // Whether there is work for threads: bytes of the larger image.
  bool is_long() const { return rows * k * row() * k * sizeof(bf16) >= parallel_bytes; }
  std::size_t row() const { return x * c; }  // elements of a row of the smaller image
};

// y (rows,x,C) and which, of large (k rows, k x, C).
template <typename T>
void max_pool_rows(const Sizes& sizes, const T* large, T* y, std::uint8_t* which) {
#pragma omp parallel for schedule(static) if (sizes.is_long())
  for (std::size_t r = 0; r < sizes.rows; ++r) {
    for (std::size_t x = 0; x < sizes.x; ++x) {
      T* y_c = y + (r * sizes.x + x) * sizes.c;
      std::uint8_t* which_c = which + (r * sizes.x + x) * sizes.c;
      for (std::size_t place = 0; place < sizes.k * sizes.k; ++place) {
        const std::size_t row = r * sizes.k + place / sizes.k;
        const T* x_c = large + (row * sizes.x * sizes.k + x * sizes.k + place % sizes.k) * sizes.c;
        if (place == 0) {
          std::copy_n(x_c, sizes.c, y_c);
          std::fill_n(which_c, sizes.c, std::uint8_t{0});
          continue;
        }
        for (std::size_t c = 0; c < sizes.c; ++c) {
          const float value = to_float(x_c[c]);
          const float best = to_float(y_c[c]);
          // A NaN wins, so that it is not hidden from those who look for one.
          const bool wins = value > best || (value != value && best == best);
          y_c[c] = wins ? x_c[c] : y_c[c];
          which_c[c] = wins ? static_cast<std::uint8_t>(place) : which_c[c];
        }
      }
    }
  }
}

// Every element of large is dy where it was the largest of its window, else 0.
template <typename T>
void max_pool_backward_rows(const Sizes& sizes, const T* dy, const std::uint8_t* which, T* large) {
#pragma omp parallel for schedule(static) if (sizes.is_long())
  for (std::size_t row = 0; row < sizes.rows * sizes.k; ++row) {
    const std::size_t r = row / sizes.k;
    for (std::size_t column = 0; column < sizes.x * sizes.k; ++column) {
      const auto place = static_cast<std::uint8_t>(row % sizes.k * sizes.k + column % sizes.k);
      const std::size_t first = (r * sizes.x + column / sizes.k) * sizes.c;
      T* dx_c = large + (row * sizes.x * sizes.k + column) * sizes.c;
      for (std::size_t c = 0; c < sizes.c; ++c) dx_c[c] = which[first + c] == place ? dy[first + c] : T{};
    }
  }
}

template <typename T>
void upsample_rows(const Sizes& sizes, const T* small, T* large) {
#pragma omp parallel for schedule(static) if (sizes.is_long())
  for (std::size_t r = 0; r < sizes.rows; ++r) {
    const std::size_t large_row = sizes.row() * sizes.k;
    T* first = large + r * sizes.k * large_row;
    for (std::size_t column = 0; column < sizes.x * sizes.k; ++column) {
      std::copy_n(small + (r * sizes.x + column / sizes.k) * sizes.c, sizes.c, first + column * sizes.c);
    }
    for (std::size_t copy = 1; copy < sizes.k; ++copy) std::copy_n(first, large_row, first + copy * large_row);
  }
}

template <typename T>
void upsample_backward_rows(const Sizes& sizes, const T* large, T* small) {
#pragma omp parallel for schedule(static) if (sizes.is_long())
  for (std::size_t r = 0; r < sizes.rows; ++r) {
    for (std::size_t x = 0; x < sizes.x; ++x) {
      for (std::size_t begin = 0; begin < sizes.c; begin += chunk) {
        const std::size_t size = std::min(chunk, sizes.c - begin);
        float sum_c[chunk] = {};
        for (std::size_t place = 0; place < sizes.k * sizes.k; ++place) {
          const std::size_t row = r * sizes.k + place / sizes.k;
          const T* dy_c = large + (row * sizes.x * sizes.k + x * sizes.k + place % sizes.k) * sizes.c + begin;
          for (std::size_t c = 0; c < size; ++c) sum_c[c] += to_float(dy_c[c]);
        }
        T* dx_c = small + (r * sizes.x + x) * sizes.c + begin;
        for (std::size_t c = 0; c < size; ++c) dx_c[c] = from_float<T>(sum_c[c]);
      }
    }
  }
}

}  // namespace

void CpuBackend::max_pool(std::size_t k, const Tensor& x, Tensor& y, Tensor& which) {
  with_type(x.dtype(), [&]<typename T>(T) {
    max_pool_rows(Sizes(k, y.shape()), elements<T>(x), elements<T>(y), elements<std::uint8_t>(which));
  });
}

void CpuBackend::max_pool_backward(std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) {
  with_type(dy.dtype(), [&]<typename T>(T) {
    max_pool_backward_rows(Sizes(k, dy.shape()), elements<T>(dy), elements<std::uint8_t>(which), elements<T>(dx));
  });
}

void CpuBackend::upsample(std::size_t k, const Tensor& x, Tensor& y) {
  with_type(x.dtype(), [&]<typename T>(T) { upsample_rows(Sizes(k, x.shape()), elements<T>(x), elements<T>(y)); });
}

void CpuBackend::upsample_backward(std::size_t k, const Tensor& dy, Tensor& dx) {
  with_type(dx.dtype(), [&]<typename T>(T) { upsample_backward_rows(Sizes(k, dx.shape()), elements<T>(dy), elements<T>(dx)); });
}

}  // namespace bitloom::nn
