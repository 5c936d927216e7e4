// The loss of rows of logits, whole or in the parts of a slice of their classes.
#include "nn/cuda/online_sum.cuh"

namespace bitloom::nn::cuda {
namespace {

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

template <typename T>
struct SliceRows {
  ClassColumns shape;
  Rows<const T> logits;

  // Eight of a row from a column on; -infinity for what is no class.
  __device__ void load(std::size_t row, std::size_t first, float (&v)[pack_size]) const {
    logits.load(row, first, v, -infinity);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = first + j < shape.classes ? v[j] : -infinity;
  }
  // Column of a row's target; shape.columns if it is another slice's or none.
  __device__ std::size_t target_column(std::int32_t target) const {
    const std::size_t column = static_cast<std::size_t>(target) - shape.first;
    return target >= 0 && column < shape.classes ? column : shape.columns;
  }
};

// The target of a row, -1 after it was reported if it is none.
__device__ inline std::int32_t checked_target(const ClassColumns& shape, const std::int32_t* targets, std::size_t row,
                                              bool reports, FaultWord* fault) {
  const std::int32_t target = targets[row];
  if (target >= -1 && target < static_cast<std::int64_t>(shape.all)) return target;
  if (reports) atomicMin(fault, static_cast<FaultWord>(row) << 8U | static_cast<FaultWord>(Fault::target));
  return -1;
}

template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads) cross_entropy_maxima_rows(SliceRows<T> a, float* maxima) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= a.shape.rows) return;
  const std::size_t lane = threadIdx.x % width;
  float largest = std::numeric_limits<float>::lowest();
#pragma unroll 4
  for (std::size_t first = lane * pack_size; first < a.shape.classes; first += width * pack_size) {
    float v[pack_size];
    a.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) largest = fmaxf(largest, v[j]);
  }
  largest = group_max<width>(largest);
  if (lane == 0) maxima[row] = largest;
}

template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads)
    cross_entropy_term_rows(SliceRows<T> a, const std::int32_t* targets, const float* maxima, float* terms, FaultWord* fault) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= a.shape.rows) return;
  const std::size_t lane = threadIdx.x % width;
  const float most = maxima[row];
  float sum = 0;
#pragma unroll 4
  for (std::size_t first = lane * pack_size; first < a.shape.classes; first += width * pack_size) {
    float v[pack_size];
    a.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum += __expf(v[j] - most);
  }
  sum = group_sum<width>(sum);
  if (lane != 0) return;
  const std::size_t column = a.target_column(checked_target(a.shape, targets, row, true, fault));
  terms[row] = sum;
  terms[a.shape.rows + row] = column < a.shape.classes ? to_float(a.logits.data[row * a.shape.columns + column]) - most : 0;
}

template <typename T, typename Gradient>
struct TermRows {
  SliceRows<T> slice;
  const std::int32_t* targets;
  const float *maxima, *terms;
  float scale;
  float* loss;
  Rows<Gradient> dlogits;  // or none
  FaultWord* fault;
};

template <typename T, typename Gradient, typename Layout>
__global__ void __launch_bounds__(Layout::threads) cross_entropy_of_term_rows(TermRows<T, Gradient> a) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= a.slice.shape.rows) return;
  const std::size_t lane = threadIdx.x % width;
  const std::int32_t target = checked_target(a.slice.shape, a.targets, row, lane == 0, a.fault);
  const float sum = a.terms[row];
  if (lane == 0) a.loss[row] = target < 0 ? 0 : logf(sum) - a.terms[a.slice.shape.rows + row];
  if (a.dlogits.data == nullptr) return;
  const std::size_t column = a.slice.target_column(target);
  const float most = a.maxima[row];
  const float factor = a.scale / sum;
#pragma unroll 2
  for (std::size_t first = lane * pack_size; first < a.slice.shape.columns; first += width * pack_size) {
    float v[pack_size];
    a.slice.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const float wanted = first + j == column ? a.scale : 0;
      v[j] = target >= 0 && first + j < a.slice.shape.classes ? __expf(v[j] - most) * factor - wanted : 0;
    }
    a.dlogits.store(row, first, v);
  }
}

// work(layout) for a loss of rows of `columns` columns: a warp per row, or a block.
template <typename Work>
void with_loss_layout(std::size_t columns, Work&& work) {
  constexpr std::size_t most_of_a_warp = 1024;
  if (columns <= most_of_a_warp) {
    work(RowLayout<32, 1>{});
  } else {
    work(RowLayout<long_row_threads, 1>{});
  }
}

}  // namespace

void cross_entropy(Stream stream, const CrossEntropy& shape, const void* logits, const std::int32_t* targets, float* loss,
                   void* dlogits, FaultWord* fault) {
  if (shape.rows == 0) return;
  const auto run = [&](auto type, auto gradient_type) {
    using T = typename decltype(type)::type;
    using Gradient = typename decltype(gradient_type)::type;
    const CrossEntropyRows<T, Gradient> all{
        shape.rows,      shape.classes, rows_of(static_cast<const T*>(logits), shape.columns),   targets, shape.scale,
        shape.smoothing, loss,          rows_of(static_cast<Gradient*>(dlogits), shape.columns), fault};
    with_loss_layout(shape.columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "cross_entropy", launch_of<Layout>(shape.rows), cross_entropy_rows<T, Gradient, Layout>, all);
    });
  };
  with_number(shape.gradient_number, [&](auto type) {
    if (shape.number == shape.gradient_number) return run(type, type);
    run(Type<float>{}, type);
  });
}

void cross_entropy_maxima(Stream stream, const ClassColumns& shape, const void* logits, float* maxima) {
  if (shape.rows == 0) return;
  with_number(shape.number, [&](auto type) {
    using T = typename decltype(type)::type;
    const SliceRows<T> slice{shape, rows_of(static_cast<const T*>(logits), shape.columns)};
    with_loss_layout(shape.columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "cross_entropy_maxima", launch_of<Layout>(shape.rows), cross_entropy_maxima_rows<T, Layout>, slice,
             maxima);
    });
  });
}

void cross_entropy_terms(Stream stream, const ClassColumns& shape, const void* logits, const std::int32_t* targets,
                         const float* maxima, float* terms, FaultWord* fault) {
  if (shape.rows == 0) return;
  with_number(shape.number, [&](auto type) {
    using T = typename decltype(type)::type;
    const SliceRows<T> slice{shape, rows_of(static_cast<const T*>(logits), shape.columns)};
    with_loss_layout(shape.columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "cross_entropy_terms", launch_of<Layout>(shape.rows), cross_entropy_term_rows<T, Layout>, slice, targets,
             maxima, terms, fault);
    });
  });
}

void cross_entropy_of_terms(Stream stream, const ClassColumns& shape, const void* logits, const std::int32_t* targets,
                            const float* maxima, const float* terms, float scale, float* loss, void* dlogits,
                            FaultWord* fault) {
  if (shape.rows == 0) return;
  const auto run = [&](auto type, auto gradient_type) {
    using T = typename decltype(type)::type;
    using Gradient = typename decltype(gradient_type)::type;
    const TermRows<T, Gradient> all{{shape, rows_of(static_cast<const T*>(logits), shape.columns)},
                                    targets,
                                    maxima,
                                    terms,
                                    scale,
                                    loss,
                                    rows_of(static_cast<Gradient*>(dlogits), shape.columns),
                                    fault};
    with_loss_layout(shape.columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "cross_entropy_of_terms", launch_of<Layout>(shape.rows), cross_entropy_of_term_rows<T, Gradient, Layout>,
             all);
    });
  };
  with_number(shape.gradient_number, [&](auto type) {
    if (shape.number == shape.gradient_number) return run(type, type);
    run(Type<float>{}, type);
  });
}

}  // namespace bitloom::nn::cuda
