// Softmax of rows, and the loss that follows it.
#include <limits>

#include "nn/cuda/reduce.cuh"
#include "nn/cuda/row_packs.cuh"

namespace bitloom::nn::cuda {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

// The largest of numbers and the sum of exp(number - largest), taken in one pass (Milakov, Gimelshein: "Online normalizer
// calculation for softmax", 2018).
struct OnlineSum {
  float largest = std::numeric_limits<float>::lowest();  // not -infinity, from which -infinity cannot be subtracted
  float sum = 0;

  __device__ void add(const float (&v)[pack_size]) {
    float most = v[0];
#pragma unroll
    for (int j = 1; j < pack_size; ++j) most = fmaxf(most, v[j]);
    if (most > largest) {
      sum *= __expf(largest - most);
      largest = most;
    }
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum += __expf(v[j] - largest);
  }
  // Merges those of all threads of a group.
  template <unsigned Width>
  __device__ void merge_group() {
    const float own = largest;
    largest = group_max<Width>(own);
    sum = group_sum<Width>(sum * __expf(own - largest));
  }
};

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

template <typename T, typename Gradient>
struct CrossEntropyRows {
  std::size_t rows, classes;
  Rows<const T> logits;
  const std::int32_t* targets;
  float scale, smoothing;
  float* loss;
  Rows<Gradient> dlogits;  // or none
  FaultWord* fault;
};

// A group of threads per row: it reads the logits once for the loss, once more for the gradient.
template <typename T, typename Gradient, typename Layout>
__global__ void __launch_bounds__(Layout::threads) cross_entropy_rows(CrossEntropyRows<T, Gradient> a) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= a.rows) return;
  const std::size_t lane = threadIdx.x % width;
  std::int64_t target = a.targets[row];
  if (target < -1 || target >= static_cast<std::int64_t>(a.classes)) {
    if (lane == 0) atomicMin(a.fault, static_cast<FaultWord>(row) << 8U | static_cast<FaultWord>(Fault::target));
    target = -1;
  }
  OnlineSum all;
  float v[pack_size];
  float total = 0;  // of the logits
  if (target < 0) {
    if (lane == 0) a.loss[row] = 0;
  } else {
#pragma unroll 4
    for (std::size_t first = lane * pack_size; first < a.classes; first += width * pack_size) {
      a.logits.load(row, first, v, -infinity);
#pragma unroll
      for (int j = 0; j < pack_size; ++j) {
        const bool counts = first + j < a.classes;
        total += counts ? v[j] : 0;
        v[j] = counts ? v[j] : -infinity;
      }
      all.add(v);
    }
    all.merge_group<width>();
    if (a.smoothing != 0) total = group_sum<width>(total);
    // By the one thread that may write a gradient over it.
    if (lane == static_cast<std::size_t>(target) / pack_size % width) {
      const float of_target = to_float(a.logits.data[row * a.logits.columns + target]);
      const float entropy = (all.largest - of_target) + logf(all.sum);
      const float mean = total / static_cast<float>(a.classes);
      a.loss[row] = a.smoothing == 0 ? entropy : entropy + a.smoothing * (of_target - mean);
    }
  }
  if (a.dlogits.data == nullptr) return;
  const float factor = a.scale / all.sum;
  const float share = a.smoothing / static_cast<float>(a.classes);
#pragma unroll 2
  for (std::size_t first = lane * pack_size; first < a.logits.columns; first += width * pack_size) {
    a.logits.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const float wanted = (static_cast<std::int64_t>(first + j) == target ? 1 - a.smoothing : 0) + share;
      v[j] = target >= 0 && first + j < a.classes ? __expf(v[j] - all.largest) * factor - a.scale * wanted : 0;
    }
    a.dlogits.store(row, first, v);
  }
}

template <typename Layout>
LaunchShape launch_of(std::size_t rows) {
  return {static_cast<unsigned>((rows + Layout::rows - 1) / Layout::rows), Layout::threads};
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

void cross_entropy(Stream stream, const CrossEntropy& shape, const void* logits, const std::int32_t* targets, float* loss,
                   void* dlogits, FaultWord* fault) {
  if (shape.rows == 0) return;
  const auto run = [&](auto type, auto gradient_type) {
    using T = typename decltype(type)::type;
    using Gradient = typename decltype(gradient_type)::type;
    const CrossEntropyRows<T, Gradient> all{
        shape.rows,      shape.classes, rows_of(static_cast<const T*>(logits), shape.columns),   targets, shape.scale,
        shape.smoothing, loss,          rows_of(static_cast<Gradient*>(dlogits), shape.columns), fault};
    using Short = RowLayout<32, 1>;
    using Long = RowLayout<long_row_threads, 1>;
    constexpr std::size_t most_of_a_warp = 1024;
    if (shape.columns <= most_of_a_warp) {
      launch(stream, "cross_entropy", launch_of<Short>(shape.rows), cross_entropy_rows<T, Gradient, Short>, all);
    } else {
      launch(stream, "cross_entropy", launch_of<Long>(shape.rows), cross_entropy_rows<T, Gradient, Long>, all);
    }
  };
  with_number(shape.gradient_number, [&](auto type) {
    if (shape.number == shape.gradient_number) return run(type, type);
    run(Type<float>{}, type);
  });
}

}  // namespace bitloom::nn::cuda
