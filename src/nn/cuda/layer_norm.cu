// Normalisation of rows.
#include "nn/cuda/norm_gradients.cuh"
#include "nn/cuda/reduce.cuh"

namespace bitloom::nn::cuda {
namespace {

template <typename T>
struct LayerNorm {
  std::size_t rows;
  Rows<const T> x;
  Rows<const float> gain, bias;
  float epsilon;
  Rows<T> y;
  float *mean, *rstd;
};

// Moments of rows of length `columns`, from deviations from something near their mean.
struct RowMoments {
  float shift, rstd;  // x - mean = deviation - shift

  __device__ RowMoments(float deviations, float squares, float columns, float epsilon) : shift(deviations / columns) {
    float variance = squares / columns - shift * shift;
    if (variance < 0) variance = 0;  // not where it is NaN
    rstd = rsqrtf(variance + epsilon);
  }
};

// A row per group of threads, which keep it. Moments are taken twice: around 0, then around the mean that this gave.
template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads) normalise_rows(LayerNorm<T> a) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= a.rows) return;
  const std::size_t columns = a.x.columns;
  const float length = columns > 0 ? static_cast<float>(columns) : 1;
  float v[Layout::packs][pack_size];
  float sum = 0;
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
    a.x.load(row, (p * width + threadIdx.x % width) * pack_size, v[p]);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum += v[p][j];
  }
  const float centre = group_sum<width>(sum) / length;
  float deviations = 0;
  float squares = 0;
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
    const std::size_t first = (p * width + threadIdx.x % width) * pack_size;
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      v[p][j] = first + j < columns ? v[p][j] - centre : 0;
      deviations += v[p][j];
      squares += v[p][j] * v[p][j];
    }
  }
  const RowMoments moments(group_sum<width>(deviations), group_sum<width>(squares), length, a.epsilon);
#pragma unroll
  for (int p = 0; p < Layout::packs; ++p) {
    const std::size_t first = (p * width + threadIdx.x % width) * pack_size;
    float gain[pack_size];
    float bias[pack_size];
    a.gain.load(0, first, gain);
    a.bias.load(0, first, bias);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[p][j] = (v[p][j] - moments.shift) * moments.rstd * gain[j] + bias[j];
    a.y.store(row, first, v[p]);
  }
  if (threadIdx.x % width == 0) {
    a.mean[row] = centre + moments.shift;
    a.rstd[row] = moments.rstd;
  }
}

// A row per block, which reads it three times.
template <typename T>
__global__ void __launch_bounds__(long_row_threads) normalise_long_rows(LayerNorm<T> a) {
  constexpr unsigned width = long_row_threads;
  const std::size_t row = blockIdx.x;
  const std::size_t columns = a.x.columns;
  const float length = columns > 0 ? static_cast<float>(columns) : 1;
  float v[pack_size];
  float sum = 0;
  for (std::size_t first = threadIdx.x * pack_size; first < columns; first += width * pack_size) {
    a.x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sum += v[j];
  }
  const float centre = group_sum<width>(sum) / length;
  float deviations = 0;
  float squares = 0;
  for (std::size_t first = threadIdx.x * pack_size; first < columns; first += width * pack_size) {
    a.x.load(row, first, v, centre);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      deviations += v[j] - centre;
      squares += (v[j] - centre) * (v[j] - centre);
    }
  }
  const RowMoments moments(group_sum<width>(deviations), group_sum<width>(squares), length, a.epsilon);
  for (std::size_t first = threadIdx.x * pack_size; first < columns; first += width * pack_size) {
    float gain[pack_size];
    float bias[pack_size];
    a.x.load(row, first, v);
    a.gain.load(0, first, gain);
    a.bias.load(0, first, bias);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = (v[j] - centre - moments.shift) * moments.rstd * gain[j] + bias[j];
    a.y.store(row, first, v);
  }
  if (threadIdx.x == 0) {
    a.mean[row] = centre + moments.shift;
    a.rstd[row] = moments.rstd;
  }
}

template <typename T>
struct LayerNormGradient {
  std::size_t rows;
  Rows<const T> dy, x;
  Rows<const float> gain;
  const float *mean, *rstd;
  bool accumulate;
  Rows<T> dx;

  // dx where the row's g = dy gain and xhat are known, with their means.
  __device__ void finish(std::size_t row, std::size_t first, float rstd_r, float g_mean, float product_mean,
                         const float (&xhat)[pack_size], float (&g)[pack_size]) const {
    float before[pack_size];
    if (accumulate) {
      Rows<const T>{dx.data, dx.columns, dx.is_wide}.load(row, first, before);
    }
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      g[j] = rstd_r * (g[j] - g_mean - xhat[j] * product_mean);
      if (accumulate) g[j] += before[j];
    }
    dx.store(row, first, g);
  }
};

// Sums of a block in shared memory: of each group, column c at (c / 8 within the pack, c % 8). The stride keeps banks apart.
template <typename Layout>
constexpr unsigned sums_stride = Layout::width + 4;
template <typename Layout>
constexpr unsigned group_sums = Layout::packs* pack_size* sums_stride<Layout>;
template <typename Layout>
constexpr unsigned shared_sums = Layout::rows* group_sums<Layout>;

// Rows blockIdx.x rows_per_block and following, a row per group of threads, which sums gradients of gain and bias on the way.
// partial (blocks,columns)
template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads)
    normalise_rows_backward(LayerNormGradient<T> a, std::size_t rows_per_block, GradientSums* partial) {
  constexpr unsigned width = Layout::width;
  constexpr int packs = Layout::packs;
  const std::size_t columns = a.x.columns;
  const unsigned lane = threadIdx.x % width;
  const std::size_t begin = blockIdx.x * rows_per_block;
  const std::size_t end = begin + rows_per_block < a.rows ? begin + rows_per_block : a.rows;
  GradientSums sums[packs][pack_size] = {};
  for (std::size_t row = begin + threadIdx.x / width; row < end; row += Layout::rows) {
    const float mean = a.mean[row];
    const float rstd = a.rstd[row];
    float xhat[packs][pack_size];
    float g[packs][pack_size];
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      a.x.load(row, (p * width + lane) * pack_size, xhat[p], mean);
      a.dy.load(row, (p * width + lane) * pack_size, g[p]);
    }
    float g_sum = 0;
    float product = 0;
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      float gain[pack_size];
      a.gain.load(0, (p * width + lane) * pack_size, gain);
#pragma unroll
      for (int j = 0; j < pack_size; ++j) {
        xhat[p][j] = (xhat[p][j] - mean) * rstd;
        sums[p][j].merge({g[p][j] * xhat[p][j], g[p][j]});
        g[p][j] *= gain[j];
        g_sum += g[p][j];
        product += g[p][j] * xhat[p][j];
      }
    }
    const float g_mean = group_sum<width>(g_sum) / static_cast<float>(columns);
    const float product_mean = group_sum<width>(product) / static_cast<float>(columns);
#pragma unroll
    for (int p = 0; p < packs; ++p) {
      a.finish(row, (p * width + lane) * pack_size, rstd, g_mean, product_mean, xhat[p], g[p]);
    }
  }
  constexpr unsigned stride = sums_stride<Layout>;
  constexpr unsigned group_size = group_sums<Layout>;
  auto* shared = reinterpret_cast<GradientSums*>(dynamic_shared());
#pragma unroll
  for (int p = 0; p < packs; ++p) {
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      shared[threadIdx.x / width * group_size + (p * pack_size + j) * stride + lane] = sums[p][j];
    }
  }
  __syncthreads();
  for (unsigned c = threadIdx.x; c < columns; c += blockDim.x) {
    const unsigned place = (c / (width * pack_size) * pack_size + c % pack_size) * stride + c / pack_size % width;
    GradientSums sum = shared[place];
    for (unsigned group = 1; group < Layout::rows; ++group) sum.merge(shared[group * group_size + place]);
    partial[blockIdx.x * columns + c] = sum;
  }
}

template <typename T>
__global__ void __launch_bounds__(long_row_threads) normalise_long_rows_backward(LayerNormGradient<T> a) {
  constexpr unsigned width = long_row_threads;
  const std::size_t row = blockIdx.x;
  const std::size_t columns = a.x.columns;
  const float mean = a.mean[row];
  const float rstd = a.rstd[row];
  float xhat[pack_size];
  float g[pack_size];
  const auto load = [&](std::size_t first) {
    float gain[pack_size];
    a.x.load(row, first, xhat, mean);
    a.dy.load(row, first, g);
    a.gain.load(0, first, gain);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      xhat[j] = (xhat[j] - mean) * rstd;
      g[j] *= gain[j];
    }
  };
  float g_sum = 0;
  float product = 0;
  for (std::size_t first = threadIdx.x * pack_size; first < columns; first += width * pack_size) {
    load(first);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      g_sum += g[j];
      product += g[j] * xhat[j];
    }
  }
  const float g_mean = group_sum<width>(g_sum) / static_cast<float>(columns);
  const float product_mean = group_sum<width>(product) / static_cast<float>(columns);
  for (std::size_t first = threadIdx.x * pack_size; first < columns; first += width * pack_size) {
    load(first);
    a.finish(row, first, rstd, g_mean, product_mean, xhat, g);
  }
}

// The gradients of gain and bias as a reduction of columns, where what normalises is per row.
template <typename T>
struct LongRowGradients : AddGradients {
  Rows<const T> dy, x;
  const float *mean, *rstd;

  struct Running {
    GradientSums sums[pack_size];
  };
  __device__ Running start(std::size_t /*first*/) const { return {}; }
  __device__ void add(Running& running, std::size_t row, std::size_t first) const {
    float g[pack_size];
    float v[pack_size];
    dy.load(row, first, g);
    x.load(row, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) running.sums[j].merge({g[j] * (v[j] - mean[row]) * rstd[row], g[j]});
  }
  __device__ GradientSums sum(const Running& running, int j) const { return running.sums[j]; }
};

// Blocks of the backward pass, each with partial sums of all columns.
struct GradientBlocks {
  std::size_t rows_per_block, blocks;
};
GradientBlocks gradient_blocks(std::size_t rows) {
  constexpr std::size_t most = 1056;
  constexpr std::size_t least_rows = 16;
  const std::size_t share = (rows + most - 1) / most;
  const std::size_t rows_per_block = share > least_rows ? share : least_rows;
  return {rows_per_block, (rows + rows_per_block - 1) / rows_per_block};
}

template <typename T>
void start_backward(Stream stream, const LayerNormGradient<T>& norm, const AddGradients& end, void* workspace) {
  const char* const name = "layer_norm_backward";
  const std::size_t columns = norm.x.columns;
  const bool is_held = with_row_layout(columns, [&](auto layout) {
    using Layout = decltype(layout);
    const auto [rows_per_block, blocks] = gradient_blocks(norm.rows);
    auto* partial = static_cast<GradientSums*>(workspace);
    launch(stream, name, {static_cast<unsigned>(blocks), Layout::threads, shared_sums<Layout> * sizeof(GradientSums)},
           normalise_rows_backward<T, Layout>, norm, rows_per_block, partial);
    finish_columns(stream, name, end, blocks, columns, partial);
  });
  if (is_held) return;
  // First the sums: dx may take the place of dy.
  const LongRowGradients<T> sums{end, norm.dy, norm.x, norm.mean, norm.rstd};
  reduce_columns(stream, name, sums, tiles_of(norm.rows, columns), workspace);
  launch(stream, name, {static_cast<unsigned>(norm.rows), long_row_threads}, normalise_long_rows_backward<T>, norm);
}

}  // namespace

std::size_t layer_norm_workspace(std::size_t rows, std::size_t columns) {
  if (rows == 0 || columns == 0) return 0;
  const std::size_t chunks = tiles_of(rows, columns).chunks;
  const std::size_t blocks = gradient_blocks(rows).blocks;
  return columns * (chunks > blocks ? chunks : blocks) * sizeof(GradientSums);
}

void layer_norm(Stream stream, const NormShape& shape, const void* x, const float* gain, const float* bias, void* y,
                float* mean, float* rstd) {
  if (shape.rows == 0) return;
  with_number(shape.number, [&](auto type) {
    using T = typename decltype(type)::type;
    const LayerNorm<T> norm{shape.rows,
                            rows_of(static_cast<const T*>(x), shape.columns),
                            vector_of(gain, shape.columns),
                            vector_of(bias, shape.columns),
                            shape.epsilon,
                            rows_of(static_cast<T*>(y), shape.columns),
                            mean,
                            rstd};
    const bool is_held = with_row_layout(shape.columns, [&](auto layout) {
      using Layout = decltype(layout);
      const auto blocks = static_cast<unsigned>((shape.rows + Layout::rows - 1) / Layout::rows);
      launch(stream, "layer_norm", {blocks, Layout::threads}, normalise_rows<T, Layout>, norm);
    });
    if (is_held) return;
    launch(stream, "layer_norm", {static_cast<unsigned>(shape.rows), long_row_threads}, normalise_long_rows<T>, norm);
  });
}

void layer_norm_backward(Stream stream, const NormShape& shape, const void* dy, const void* x, const float* gain,
                         const float* mean, const float* rstd, void* dx, bool accumulate, float* dgain, float* dbias,
                         void* workspace) {
  if (shape.rows == 0 || shape.columns == 0) return;
  with_number(shape.number, [&](auto type) {
    using T = typename decltype(type)::type;
    const LayerNormGradient<T> norm{shape.rows,
                                    rows_of(static_cast<const T*>(dy), shape.columns),
                                    rows_of(static_cast<const T*>(x), shape.columns),
                                    vector_of(gain, shape.columns),
                                    mean,
                                    rstd,
                                    accumulate,
                                    rows_of(static_cast<T*>(dx), shape.columns)};
    start_backward(stream, norm, {dgain, dbias, nullptr}, workspace);
  });
}

}  // namespace bitloom::nn::cuda
