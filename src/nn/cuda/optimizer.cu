// The optimiser, and norms of gradients: one launch for all tensors, a block per chunk of one of them.
#include "nn/cuda/reduce.cuh"
#include "nn/cuda/row_packs.cuh"
#include "nn/stochastic_rounding.h"

namespace bitloom::nn::cuda {
namespace {

constexpr unsigned optimizer_threads = 256;

// The part that this block's chunk is of: the last that begins at it or before.
template <typename Part>
__device__ std::size_t part_of(const Part* parts, std::size_t count) {
  std::size_t low = 0;
  std::size_t high = count;
  while (high - low > 1) {
    const std::size_t middle = (low + high) / 2;
    if (parts[middle].first_chunk <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ void store_copy(const AdamWPart& part, std::size_t first, const float (&v)[pack_size]) {
  switch (part.copy_number) {
    case Number::f32: return Rows<float>{static_cast<float*>(part.copy), part.size, part.is_wide}.store(0, first, v);
    case Number::bf16: return Rows<Bf16>{static_cast<Bf16*>(part.copy), part.size, part.is_wide}.store(0, first, v);
    case Number::f16: return Rows<F16>{static_cast<F16*>(part.copy), part.size, part.is_wide}.store(0, first, v);
  }
}

__device__ void load_values(const AdamWPart& part, std::size_t first, float (&v)[pack_size]) {
  if (part.value_number == Number::bf16) {
    Rows<const Bf16>{static_cast<const Bf16*>(part.value), part.size, part.is_wide}.load(0, first, v);
  } else {
    Rows<const float>{static_cast<const float*>(part.value), part.size, part.is_wide}.load(0, first, v);
  }
}

// Draws of a pack that is part of a tensor: its numbers may be of several groups and runs.
__device__ void draw_part(const AdamWPart& part, std::uint64_t step, std::size_t first, std::uint32_t (&draw)[pack_size]) {
  std::uint64_t group = ~0ULL;
  Philox4x32 draws = {};
#pragma unroll
  for (int j = 0; j < pack_size; ++j) {
    const std::size_t k = part.begin + first + j;
    const std::uint64_t number = part.run == 0 ? k : part.first_number + k / part.run * part.stride + k % part.run;
    if (number / rounding_group != group) {
      group = number / rounding_group;
      draws = rounding_draws(part.rounding_key, step, group);
    }
    const auto half = static_cast<unsigned>(number % rounding_group);
    const std::uint32_t low = half / 2 % 2 == 0 ? draws.word[0] : draws.word[1];
    const std::uint32_t high = half / 2 % 2 == 0 ? draws.word[2] : draws.word[3];
    draw[j] = ((half < 4 ? low : high) >> (16U * (half % 2))) & 0xFFFFU;
  }
}

// Those of bf16 are rounded stochastically: a pack of a whole tensor has the elements of one call of Philox.
__device__ void store_values(const AdamWPart& part, std::uint64_t step, std::size_t first, const float (&v)[pack_size]) {
  if (part.value_number != Number::bf16) {
    return Rows<float>{static_cast<float*>(part.value), part.size, part.is_wide}.store(0, first, v);
  }
  static_assert(pack_size == rounding_group, "");
  std::uint32_t draw[pack_size];
  if (part.run == 0 && part.begin == 0) {
    const Philox4x32 draws = rounding_draws(part.rounding_key, step, first / rounding_group);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) draw[j] = philox_half(draws, static_cast<unsigned>(j));
  } else {
    draw_part(part, step, first, draw);
  }
  float rounded[pack_size];
#pragma unroll
  for (int j = 0; j < pack_size; ++j) {
    std::uint32_t bits;
    memcpy(&bits, &v[j], sizeof bits);
    bits = round_stochastically(bits, draw[j]);
    memcpy(&rounded[j], &bits, sizeof bits);
  }
  Rows<Bf16>{static_cast<Bf16*>(part.value), part.size, part.is_wide}.store(0, first, rounded);
}

__global__ void __launch_bounds__(optimizer_threads) adamw_chunks(AdamWFactors f, std::size_t count, const AdamWPart* parts) {
  const AdamWPart part = parts[part_of(parts, count)];
  const std::size_t begin = (blockIdx.x - part.first_chunk) * optimizer_chunk;
  const std::size_t end = begin + optimizer_chunk < part.size ? begin + optimizer_chunk : part.size;
  const Rows<float> means{part.mean, part.size, part.is_wide};
  const Rows<float> variances{part.variance, part.size, part.is_wide};
  const Rows<const float> gradients{part.gradient, part.size, part.is_wide};
  const float decay = part.decays ? f.decay : 0;
  for (std::size_t first = begin + threadIdx.x * pack_size; first < end; first += optimizer_threads * pack_size) {
    float value[pack_size];
    float mean[pack_size];
    float variance[pack_size];
    float gradient[pack_size];
    gradients.load(0, first, gradient);
    means.load(0, first, mean);
    variances.load(0, first, variance);
    load_values(part, first, value);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const float g = gradient[j] * f.gradient_scale;
      mean[j] = f.beta1 * mean[j] + f.rest1 * g;
      variance[j] = f.beta2 * variance[j] + f.rest2 * g * g;
      if (variance[j] > f.variance_limit) variance[j] = f.variance_limit;  // NaN stays NaN
      value[j] -= f.rate * (mean[j] * f.correction1 / (sqrtf(variance[j] * f.correction2) + f.epsilon) + decay * value[j]);
    }
    means.store(0, first, mean);
    variances.store(0, first, variance);
    store_values(part, f.step, first, value);
    if (part.copy != nullptr) store_copy(part, first, value);
  }
}

template <typename T>
__device__ double chunk_sum(const SquaresPart& part, std::size_t begin, std::size_t end) {
  const Rows<const T> x{static_cast<const T*>(part.x), part.size, is_aligned(static_cast<const T*>(part.x))};
  double sums[pack_size] = {};
#pragma unroll 2
  for (std::size_t first = begin + threadIdx.x * pack_size; first < end; first += optimizer_threads * pack_size) {
    float v[pack_size];
    x.load(0, first, v);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) sums[j] += static_cast<double>(v[j]) * v[j];
  }
  double sum = 0;
#pragma unroll
  for (int j = 0; j < pack_size; ++j) sum += sums[j];
  return sum;
}

// sums (chunks)
__global__ void __launch_bounds__(optimizer_threads) square_chunks(std::size_t count, const SquaresPart* parts, double* sums) {
  const SquaresPart part = parts[part_of(parts, count)];
  const std::size_t begin = (blockIdx.x - part.first_chunk) * optimizer_chunk;
  const std::size_t end = begin + optimizer_chunk < part.size ? begin + optimizer_chunk : part.size;
  double sum = 0;
  switch (part.number) {
    case Number::f32: sum = chunk_sum<float>(part, begin, end); break;
    case Number::bf16: sum = chunk_sum<Bf16>(part, begin, end); break;
    case Number::f16: sum = chunk_sum<F16>(part, begin, end); break;
  }
  sum = group_sum<optimizer_threads>(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

}  // namespace

void adamw(Stream stream, const AdamWFactors& factors, const AdamWPart* parts, std::size_t count, std::size_t chunks) {
  if (chunks == 0) return;
  launch(stream, "adamw", {static_cast<unsigned>(chunks), optimizer_threads}, adamw_chunks, factors, count, parts);
}

void sums_of_squares(Stream stream, const SquaresPart* parts, std::size_t count, std::size_t chunks, double* sums) {
  if (chunks == 0) return;
  launch(stream, "sums_of_squares", {static_cast<unsigned>(chunks), optimizer_threads}, square_chunks, count, parts, sums);
}

}  // namespace bitloom::nn::cuda
