// Ops on images besides convolutions, and the layouts of a convolution's weights. All bound by memory.
#include "nn/cuda/numbers.cuh"

namespace bitloom::nn::cuda {
namespace {

constexpr unsigned threads = 256;

// work(Type<Index>{}) for one that counts n elements: 32 bits where they do, since a division of 64 takes several times as
// long.
template <typename Work>
void with_index(std::size_t n, Work&& work) {
  // With the distance to a thread's next piece, below 2^25, nothing overflows.
  if (n < std::size_t{1} << 31U) return work(Type<std::uint32_t>{});
  work(Type<std::size_t>{});
}

// Weights (O,I,P) to (O,P,I), P pixels. A thread writes an element.
template <typename Index, typename T>
__global__ void __launch_bounds__(threads) lay_out(Index n, Index inputs, Index pixels, const T* w, T* y) {
  for (auto at = static_cast<Index>(first_piece()); at < n; at += static_cast<Index>(piece_stride())) {
    const Index i = at % inputs;
    const Index p = at / inputs % pixels;
    const Index o = at / inputs / pixels;
    y[at] = w[(o * inputs + i) * pixels + p];
  }
}

// The way back, added. A thread adds to an element.
template <typename Index, typename T>
__global__ void __launch_bounds__(threads) add_back(Index n, Index inputs, Index pixels, const T* x, float* dw) {
  for (auto at = static_cast<Index>(first_piece()); at < n; at += static_cast<Index>(piece_stride())) {
    const Index p = at % pixels;
    const Index i = at / pixels % inputs;
    const Index o = at / pixels / inputs;
    dw[at] += to_float(x[(o * pixels + p) * inputs + i]);
  }
}

// Sizes of Windows as kernels count.
template <typename Index>
struct Sizes {
  Index k, rows, columns, channels, large_rows, large_columns;

  explicit Sizes(const Windows& w)
      : k(w.k),
        rows(w.rows),
        columns(w.columns),
        channels(w.channels),
        large_rows(w.large_rows),
        large_columns(w.large_columns) {}
};

// Where the window of k x k of an element of the small tensor begins in the large one, and what is between its rows and
// columns.
template <typename Index>
struct Window {
  Index first, row, column;

  __device__ Window(Index element, const Sizes<Index>& s) : row(s.large_columns * s.channels), column(s.channels) {
    const Index pixel = element / s.channels;
    const Index line = pixel / s.columns;  // counted through all images
    const Index large_line = line / s.rows * s.large_rows + line % s.rows * s.k;
    first = large_line * row + pixel % s.columns * s.k * s.channels + element % s.channels;
  }
};

// A NaN is the largest, so that it is not hidden from those who look for one.
__device__ bool beats(float value, float best) { return value > best || (value != value && best == best); }

template <typename Index, typename T>
__global__ void __launch_bounds__(threads) max_of_windows(Index n, Sizes<Index> sizes, const T* x, T* y, std::uint8_t* which) {
  const Index k = sizes.k;
  for (auto at = static_cast<Index>(first_piece()); at < n; at += static_cast<Index>(piece_stride())) {
    const Window<Index> window(at, sizes);
    T largest = x[window.first];
    Index place = 0;
    for (Index i = 1; i < k * k; ++i) {
      const T each = x[window.first + i / k * window.row + i % k * window.column];
      if (!beats(to_float(each), to_float(largest))) continue;
      largest = each;
      place = i;
    }
    y[at] = largest;
    which[at] = static_cast<std::uint8_t>(place);
  }
}

template <typename Index, typename T>
__global__ void __launch_bounds__(threads)
    spread_to_windows(Index n, Sizes<Index> sizes, const T* dy, const std::uint8_t* which, T* dx) {
  const Index k = sizes.k;
  for (auto at = static_cast<Index>(first_piece()); at < n; at += static_cast<Index>(piece_stride())) {
    const Window<Index> window(at, sizes);
    const T value = dy[at];
    const Index place = which == nullptr ? 0 : which[at];
    for (Index i = 0; i < k * k; ++i) {
      const bool has_value = which == nullptr || i == place;
      dx[window.first + i / k * window.row + i % k * window.column] = has_value ? value : from_float<T>(0);
    }
  }
}

template <typename Index, typename T>
__global__ void __launch_bounds__(threads) sum_windows(Index n, Sizes<Index> sizes, const T* dy, T* dx) {
  const Index k = sizes.k;
  for (auto at = static_cast<Index>(first_piece()); at < n; at += static_cast<Index>(piece_stride())) {
    const Window<Index> window(at, sizes);
    float sum = 0;
    for (Index i = 0; i < k * k; ++i) sum += to_float(dy[window.first + i / k * window.row + i % k * window.column]);
    dx[at] = from_float<T>(sum);
  }
}

LaunchShape shape_for(std::size_t n) { return {blocks_for(n, threads), threads}; }

}  // namespace

void lay_out_weights(Stream stream, Number number, const void* w, void* y, std::size_t outputs, std::size_t inputs,
                     std::size_t pixels) {
  const std::size_t n = outputs * inputs * pixels;
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_index(n, [&](auto index) {
      using T = typename decltype(type)::type;
      using Index = typename decltype(index)::type;
      launch(stream, "conv2d", shape_for(n), lay_out<Index, T>, n, inputs, pixels, static_cast<const T*>(w),
             static_cast<T*>(y));
    });
  });
}

void add_laid_out_weights(Stream stream, Number number, const void* x, float* dw, std::size_t outputs, std::size_t inputs,
                          std::size_t pixels) {
  const std::size_t n = outputs * inputs * pixels;
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_index(n, [&](auto index) {
      using T = typename decltype(type)::type;
      using Index = typename decltype(index)::type;
      launch(stream, "conv2d_backward_weights", shape_for(n), add_back<Index, T>, n, inputs, pixels, static_cast<const T*>(x),
             dw);
    });
  });
}

void max_pool(Stream stream, const Windows& windows, Number number, const void* x, void* y, std::uint8_t* which) {
  const std::size_t n = windows.size();
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_index(windows.large_size(), [&](auto index) {
      using T = typename decltype(type)::type;
      using Index = typename decltype(index)::type;
      launch(stream, "max_pool", shape_for(n), max_of_windows<Index, T>, n, Sizes<Index>(windows), static_cast<const T*>(x),
             static_cast<T*>(y), which);
    });
  });
}

void spread(Stream stream, const Windows& windows, Number number, const void* x, const std::uint8_t* which, void* y) {
  const std::size_t n = windows.size();
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_index(windows.large_size(), [&](auto index) {
      using T = typename decltype(type)::type;
      using Index = typename decltype(index)::type;
      launch(stream, which == nullptr ? "upsample" : "max_pool_backward", shape_for(n), spread_to_windows<Index, T>, n,
             Sizes<Index>(windows), static_cast<const T*>(x), which, static_cast<T*>(y));
    });
  });
}

void sum_of_windows(Stream stream, const Windows& windows, Number number, const void* dy, void* dx) {
  const std::size_t n = windows.size();
  if (n == 0) return;
  with_number(number, [&](auto type) {
    with_index(windows.large_size(), [&](auto index) {
      using T = typename decltype(type)::type;
      using Index = typename decltype(index)::type;
      launch(stream, "upsample_backward", shape_for(n), sum_windows<Index, T>, n, Sizes<Index>(windows),
             static_cast<const T*>(dy), static_cast<T*>(dx));
    });
  });
}

}  // namespace bitloom::nn::cuda
