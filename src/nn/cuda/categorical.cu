// Relaxed categorical variables, their divergence from the uniform distribution, the likelihood of pixels, and the largest of
// each row.
#include "nn/cuda/online_sum.cuh"
#include "nn/gumbel.h"

namespace bitloom::nn::cuda {
namespace {

constexpr unsigned pixel_threads = 256;

// v = (v + noise) / temperature of the neighbours from number `element` on.
__device__ inline void perturb(const GumbelNoise& noise, std::uint64_t element, float (&v)[pack_size]) {
  Philox4x32 draws = gumbel_draws(noise.seed, noise.site, element / gumbel_group);
#pragma unroll
  for (int j = 0; j < pack_size; ++j) {
    const std::uint64_t i = element + j;
    if (j > 0 && i % gumbel_group == 0) draws = gumbel_draws(noise.seed, noise.site, i / gumbel_group);
    v[j] = (v[j] - logf(-logf(gumbel_uniform(draws.word[i % gumbel_group])))) * noise.inverse_temperature;
  }
}

// A group of threads per row: it draws the noise twice rather than keep it.
template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads)
    gumbel_softmax_rows(std::size_t rows, GumbelNoise noise, Rows<const T> x, Rows<T> y) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= rows) return;
  float v[pack_size];
  OnlineSum all;
  for (std::size_t first = threadIdx.x % width * pack_size; first < x.columns; first += width * pack_size) {
    x.load(row, first, v, -infinity);
    perturb(noise, noise.first + row * x.columns + first, v);
    all.add(v);
  }
  all.merge_group<width>();
  const float factor = 1 / all.sum;
  for (std::size_t first = threadIdx.x % width * pack_size; first < x.columns; first += width * pack_size) {
    x.load(row, first, v);
    perturb(noise, noise.first + row * x.columns + first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = __expf(v[j] - all.largest) * factor;
    y.store(row, first, v);
  }
}

template <typename T, typename Layout>
__global__ void __launch_bounds__(Layout::threads)
    categorical_kl_rows(std::size_t rows, Rows<const T> logits, float scale, float* kl, Rows<T> dlogits) {
  constexpr unsigned width = Layout::width;
  const std::size_t row = first_piece() / width;
  if (row >= rows) return;
  const std::size_t lane = threadIdx.x % width;
  constexpr float least = -200;  // exp is 0 there, and its product with -infinity would be NaN
  float v[pack_size];
  OnlineSum all;
  for (std::size_t first = lane * pack_size; first < logits.columns; first += width * pack_size) {
    logits.load(row, first, v, -infinity);
    all.add(v);
  }
  all.merge_group<width>();
  float products = 0;
  for (std::size_t first = lane * pack_size; first < logits.columns; first += width * pack_size) {
    logits.load(row, first, v, -infinity);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const float distance = fmaxf(least, v[j] - all.largest);
      products += __expf(distance) * distance;
    }
  }
  const float log_sum = logf(all.sum);
  const float mean = group_sum<width>(products) / all.sum - log_sum;  // of log p
  if (lane == 0) kl[row] = logf(static_cast<float>(logits.columns)) + mean;
  if (dlogits.data == nullptr) return;
  const float factor = scale / all.sum;
  for (std::size_t first = lane * pack_size; first < logits.columns; first += width * pack_size) {
    float gradient[pack_size];
    logits.load(row, first, v);
    dlogits.load(row, first, gradient);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const float distance = fmaxf(least, v[j] - all.largest);
      gradient[j] += __expf(distance) * factor * (distance - log_sum - mean);
    }
    dlogits.store(row, first, gradient);
  }
}

// A thread per row of pixels.
template <typename T>
__global__ void __launch_bounds__(pixel_threads)
    logit_laplace_rows(PixelLoss a, const T* maps, const float* pixels, float* loss, T* dmaps) {
  for (std::size_t row = first_piece(); row < a.rows; row += piece_stride()) {
    float sum = 0;
    for (std::size_t c = 0; c < a.channels; ++c) {
      const std::size_t mu = row * 2 * a.channels + c;
      const std::size_t b = mu + a.channels;
      const float x = pixels[row * a.channels + c];
      const float log_x = logf(x);
      const float log_rest = log1pf(-x);
      const float distance = log_x - log_rest - to_float(maps[mu]);
      const float log_b = to_float(maps[b]);
      const float used = log_b < a.least_log_b ? a.least_log_b : log_b;  // a NaN stays one
      const float inverse = expf(-used);
      const float ratio = fabsf(distance) * inverse;
      sum += ratio + 0.693147181F + used + (log_x + log_rest);
      if (dmaps == nullptr) continue;
      const float sign = distance > 0 ? 1.0F : distance < 0 ? -1.0F : 0.0F;
      const float slope = log_b < a.least_log_b ? fminf(1 - ratio, 0.0F) : 1 - ratio;
      dmaps[mu] = from_float<T>(-a.scale * sign * inverse);
      dmaps[b] = from_float<T>(a.scale * slope);
    }
    loss[row] = sum;
  }
}

// A warp per row: of equals it takes the first; what is no number is passed over, and a row without numbers has its first.
template <typename T>
__global__ void __launch_bounds__(pixel_threads)
    largest_columns(std::size_t rows, std::size_t columns, const T* x, std::int32_t* ids) {
  const std::size_t row = first_piece() / warp_size;
  if (row >= rows) return;
  float most = -infinity;
  std::size_t column = columns;
  for (std::size_t c = threadIdx.x % warp_size; c < columns; c += warp_size) {
    const float value = to_float(x[row * columns + c]);
    if (value > most || (column == columns && value == most)) {
      most = value;
      column = c;
    }
  }
  const float largest = group_max<warp_size>(most);
  // The smallest of those that have the largest, as a maximum of negative numbers, which are exact below 2^24.
  const bool has = column < columns && most == largest;
  const float first = -group_max<warp_size>(has ? -static_cast<float>(column) : -infinity);
  if (threadIdx.x % warp_size == 0) ids[row] = first < infinity ? static_cast<std::int32_t>(first) : 0;
}

// Rows longer than that are read again by as many threads.
template <typename Work>
void with_group(std::size_t columns, Work&& work) {
  if (columns <= 1024) return work(RowLayout<32, 1>{});
  work(RowLayout<256, 1>{});
}

}  // namespace

void gumbel_softmax(Stream stream, const GumbelNoise& noise, Number number, const void* x, void* y, std::size_t rows,
                    std::size_t columns) {
  if (rows == 0 || columns == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    with_group(columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "gumbel_softmax", launch_of<Layout>(rows), gumbel_softmax_rows<T, Layout>, rows, noise,
             rows_of(static_cast<const T*>(x), columns), rows_of(static_cast<T*>(y), columns));
    });
  });
}

void categorical_kl(Stream stream, Number number, const void* logits, float scale, float* kl, void* dlogits, std::size_t rows,
                    std::size_t columns) {
  if (rows == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    with_group(columns, [&](auto layout) {
      using Layout = decltype(layout);
      launch(stream, "categorical_kl", launch_of<Layout>(rows), categorical_kl_rows<T, Layout>, rows,
             rows_of(static_cast<const T*>(logits), columns), scale, kl, rows_of(static_cast<T*>(dlogits), columns));
    });
  });
}

void logit_laplace(Stream stream, const PixelLoss& shape, Number number, const void* maps, const float* pixels, float* loss,
                   void* dmaps) {
  if (shape.rows == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    launch(stream, "logit_laplace", {blocks_for(shape.rows, pixel_threads), pixel_threads}, logit_laplace_rows<T>, shape,
           static_cast<const T*>(maps), pixels, loss, static_cast<T*>(dmaps));
  });
}

void argmax_rows(Stream stream, Number number, const void* x, std::int32_t* ids, std::size_t rows, std::size_t columns) {
  if (rows == 0) return;
  with_number(number, [&](auto type) {
    using T = typename decltype(type)::type;
    const auto blocks = static_cast<unsigned>((rows * warp_size + pixel_threads - 1) / pixel_threads);
    launch(stream, "argmax_rows", {blocks, pixel_threads}, largest_columns<T>, rows, columns, static_cast<const T*>(x), ids);
  });
}

}  // namespace bitloom::nn::cuda
