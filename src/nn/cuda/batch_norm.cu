// Normalisation of columns.
#include "nn/cuda/norm_gradients.cuh"

namespace bitloom::nn::cuda {
namespace {

// Moments of numbers of a column.
struct Moments {
  float count, mean, squares;  // squares: of distances from the mean, summed
  // Chan, Golub, LeVeque 1983.
  __device__ void merge(const Moments& other) {
    if (other.count == 0) return;
    const float all = count + other.count;
    const float distance = other.mean - mean;
    const float share = other.count / all;
    mean += distance * share;
    squares += other.squares + distance * distance * count * share;
    count = all;
  }
};

template <typename T>
struct ColumnMoments {
  using Sum = Moments;
  Rows<const T> x;
  float *mean, *variance;

  // Welford 1962.
  struct Running {
    float count, mean[pack_size], squares[pack_size];
  };
  __device__ Running start(std::size_t /*first*/) const { return {}; }
  __device__ void add(Running& running, std::size_t row, std::size_t first) const {
    float v[pack_size];
    x.load(row, first, v);
    running.count += 1;
    const float share = 1 / running.count;
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const float distance = v[j] - running.mean[j];
      running.mean[j] += distance * share;
      running.squares[j] += distance * (v[j] - running.mean[j]);
    }
  }
  __device__ Moments sum(const Running& running, int j) const { return {running.count, running.mean[j], running.squares[j]}; }
  __device__ void finish(std::size_t column, const Moments& moments) const {
    mean[column] = moments.mean;
    variance[column] = moments.squares / moments.count;
  }
};

template <typename T>
struct NormaliseColumns {
  Rows<const T> x;
  Rows<const float> gain, bias, mean, variance;
  float epsilon;
  Rows<T> y;

  struct Columns {
    float mean[pack_size], scale[pack_size], bias[pack_size];
  };
  __device__ Columns start(std::size_t first) const {
    Columns columns;
    float v[pack_size];
    mean.load(0, first, columns.mean);
    bias.load(0, first, columns.bias);
    gain.load(0, first, columns.scale);
    variance.load(0, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) columns.scale[j] *= rsqrtf(v[j] + epsilon);
    return columns;
  }
  __device__ void apply(const Columns& columns, std::size_t row, std::size_t first) const {
    float v[pack_size];
    x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = (v[j] - columns.mean[j]) * columns.scale[j] + columns.bias[j];
    y.store(row, first, v);
  }
};

template <typename T>
struct BatchNormGradients : AddGradients {
  Rows<const T> dy, x;
  Rows<const float> mean, variance;
  float epsilon;

  struct Running {
    float mean[pack_size], rstd[pack_size];
    GradientSums sums[pack_size];
  };
  __device__ Running start(std::size_t first) const {
    Running running = {};
    mean.load(0, first, running.mean);
    variance.load(0, first, running.rstd);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) running.rstd[j] = rsqrtf(running.rstd[j] + epsilon);
    return running;
  }
  __device__ void add(Running& running, std::size_t row, std::size_t first) const {
    float g[pack_size];
    float v[pack_size];
    dy.load(row, first, g);
    x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) running.sums[j].merge({g[j] * (v[j] - running.mean[j]) * running.rstd[j], g[j]});
  }
  __device__ GradientSums sum(const Running& running, int j) const { return running.sums[j]; }
};

// dx = gain rstd (dy - mean(dy) - xhat mean(dy xhat)).
template <typename T>
struct BatchNormBackward {
  Rows<const T> dy, x;
  Rows<const float> gain, mean, variance;
  float epsilon, rows;
  const GradientSums* totals;
  Rows<T> dx;

  struct Columns {
    float mean[pack_size], scale[pack_size], dy_mean[pack_size], slope[pack_size];
  };
  __device__ Columns start(std::size_t first) const {
    Columns columns;
    mean.load(0, first, columns.mean);
    gain.load(0, first, columns.scale);
    variance.load(0, first, columns.slope);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const GradientSums sums = first + j < dx.columns ? totals[first + j] : GradientSums{};
      const float rstd = rsqrtf(columns.slope[j] + epsilon);
      columns.scale[j] *= rstd;
      columns.dy_mean[j] = sums.bias / rows;
      columns.slope[j] = rstd * (sums.gain / rows);
    }
    return columns;
  }
  __device__ void apply(const Columns& columns, std::size_t row, std::size_t first) const {
    float g[pack_size];
    float v[pack_size];
    dy.load(row, first, g);
    x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      g[j] = columns.scale[j] * (g[j] - columns.dy_mean[j] - (v[j] - columns.mean[j]) * columns.slope[j]);
    }
    dx.store(row, first, g);
  }
};

}  // namespace

std::size_t batch_norm_workspace(std::size_t rows, std::size_t columns) {
  if (rows == 0 || columns == 0) return 0;
  return columns * (sizeof(GradientSums) + tiles_of(rows, columns).chunks * sizeof(Moments));
}

void batch_norm_moments(Stream stream, const NormShape& shape, const void* x, float* mean, float* variance, void* workspace) {
  if (shape.rows == 0 || shape.columns == 0) return;
  with_number(shape.number, [&](auto type) {
    using T = typename decltype(type)::type;
    reduce_columns(stream, "batch_norm", ColumnMoments<T>{rows_of(static_cast<const T*>(x), shape.columns), mean, variance},
                   tiles_of(shape.rows, shape.columns), workspace);
  });
}

void batch_norm(Stream stream, const NormShape& shape, const void* x, const float* gain, const float* bias, const float* mean,
                const float* variance, void* y) {
  if (shape.rows == 0 || shape.columns == 0) return;
  with_number(shape.number, [&](auto type) {
    using T = typename decltype(type)::type;
    const NormaliseColumns<T> norm{rows_of(static_cast<const T*>(x), shape.columns),
                                   vector_of(gain, shape.columns),
                                   vector_of(bias, shape.columns),
                                   vector_of(mean, shape.columns),
                                   vector_of(variance, shape.columns),
                                   shape.epsilon,
                                   rows_of(static_cast<T*>(y), shape.columns)};
    apply_columns(stream, "batch_norm", norm, tiles_of(shape.rows, shape.columns));
  });
}

void batch_norm_backward(Stream stream, const NormShape& shape, const void* dy, const void* x, const float* gain,
                         const float* mean, const float* variance, void* dx, float* dgain, float* dbias, void* workspace) {
  if (shape.rows == 0 || shape.columns == 0) return;
  const ColumnTiles tiles = tiles_of(shape.rows, shape.columns);
  auto* totals = static_cast<GradientSums*>(workspace);
  with_number(shape.number, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto dy_rows = rows_of(static_cast<const T*>(dy), shape.columns);
    const auto x_rows = rows_of(static_cast<const T*>(x), shape.columns);
    const auto means = vector_of(mean, shape.columns);
    const auto variances = vector_of(variance, shape.columns);
    const BatchNormGradients<T> sums{{dgain, dbias, totals}, dy_rows, x_rows, means, variances, shape.epsilon};
    reduce_columns(stream, "batch_norm_backward", sums, tiles, totals + shape.columns);
    const BatchNormBackward<T> norm{dy_rows,
                                    x_rows,
                                    vector_of(gain, shape.columns),
                                    means,
                                    variances,
                                    shape.epsilon,
                                    static_cast<float>(shape.rows),
                                    totals,
                                    rows_of(static_cast<T*>(dx), shape.columns)};
    apply_columns(stream, "batch_norm_backward", norm, tiles);
  });
}

}  // namespace bitloom::nn::cuda
