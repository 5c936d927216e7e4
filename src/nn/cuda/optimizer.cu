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

// Those of a pack: one of a whole tensor has the elements of one call of Philox.
__device__ void draw_pack(const AdamWPart& part, std::uint64_t step, std::size_t first, std::uint32_t (&draw)[pack_size]) {
  static_assert(pack_size == rounding_group, "");
  if (part.run != 0 || part.begin != 0) return draw_part(part, step, first, draw);
  const Philox4x32 draws = rounding_draws(part.rounding_key, step, first / rounding_group);
#pragma unroll
  for (int j = 0; j < pack_size; ++j) draw[j] = philox_half(draws, static_cast<unsigned>(j));
}

__device__ std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

__device__ float float_of(std::uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// Those of bf16 are rounded stochastically.
__device__ void store_values(const AdamWPart& part, std::uint64_t step, std::size_t first, const float (&v)[pack_size]) {
  if (part.value_number != Number::bf16) {
    return Rows<float>{static_cast<float*>(part.value), part.size, part.is_wide}.store(0, first, v);
  }
  std::uint32_t draw[pack_size];
  draw_pack(part, rounding_step(step, Rounded::value), first, draw);
  float rounded[pack_size];
#pragma unroll
  for (int j = 0; j < pack_size; ++j) rounded[j] = float_of(round_stochastically(bits_of(v[j]), draw[j]));
  Rows<Bf16>{static_cast<Bf16*>(part.value), part.size, part.is_wide}.store(0, first, rounded);
}

// A moment of 16 bits and its format.
template <typename Rounding, bool kHasSign>
struct NarrowMoment {
  std::uint16_t bits;

  static constexpr std::uint32_t sign_bit = kHasSign ? 0x8000U : 0;

  // As core/narrow.h has it: the exponent is made up for, by one more so that no f32 is too small to be normal.
  __device__ float number() const {
    const std::uint32_t code = bits & ~sign_bit & 0xFFFFU;
    const float raised = float_of((code << Rounding::dropped) + Rounding::least_normal);
    const float least_normal = float_of(Rounding::least_normal);
    const std::uint32_t exponent = code >> (23U - Rounding::dropped);
    std::uint32_t number = bits_of(exponent == 0 ? raised - least_normal : 0.5F * raised);
    if (exponent == 63) number |= 0x7F800000U;
    return float_of(number | (bits & sign_bit) << 16U);
  }
  __device__ static NarrowMoment rounded(float x, std::uint32_t draw) {
    const std::uint32_t magnitude = bits_of(x) & 0x7FFFFFFFU;
    const std::uint32_t raised = bits_of(float_of(magnitude) + float_of(Rounding::least_normal));
    return {static_cast<std::uint16_t>(Rounding::code(magnitude, raised, draw) | (bits_of(x) >> 16U & sign_bit))};
  }
};
using NarrowMean = NarrowMoment<MeanRounding, true>;
using NarrowVariance = NarrowMoment<VarianceRounding, false>;

template <typename Moment>
__device__ void load_narrow(const AdamWPart& part, const void* moments, std::size_t first, float (&v)[pack_size]) {
  const Moment* const from = static_cast<const Moment*>(moments) + first;
  if (part.is_wide && first + pack_size <= part.size) {
    const auto pack = *reinterpret_cast<const Pack<Moment>*>(from);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) v[j] = pack.values[j].number();
    return;
  }
#pragma unroll
  for (int j = 0; j < pack_size; ++j) v[j] = first + j < part.size ? from[j].number() : 0;
}

template <typename Moment>
__device__ void store_narrow(const AdamWPart& part, void* moments, std::uint64_t step, std::size_t first,
                             const float (&v)[pack_size]) {
  std::uint32_t draw[pack_size];
  draw_pack(part, step, first, draw);
  Moment* const to = static_cast<Moment*>(moments) + first;
  if (part.is_wide && first + pack_size <= part.size) {
    Pack<Moment> pack;
#pragma unroll
    for (int j = 0; j < pack_size; ++j) pack.values[j] = Moment::rounded(v[j], draw[j]);
    *reinterpret_cast<Pack<Moment>*>(to) = pack;
    return;
  }
#pragma unroll
  for (int j = 0; j < pack_size; ++j) {
    if (first + j < part.size) to[j] = Moment::rounded(v[j], draw[j]);
  }
}

__device__ void load_moments(const AdamWPart& part, std::size_t first, float (&mean)[pack_size], float (&variance)[pack_size]) {
  if (part.has_narrow_moments) {
    load_narrow<NarrowMean>(part, part.mean, first, mean);
    load_narrow<NarrowVariance>(part, part.variance, first, variance);
  } else {
    Rows<const float>{static_cast<const float*>(part.mean), part.size, part.is_wide}.load(0, first, mean);
    Rows<const float>{static_cast<const float*>(part.variance), part.size, part.is_wide}.load(0, first, variance);
  }
}

__device__ void store_moments(const AdamWPart& part, std::uint64_t step, std::size_t first, const float (&mean)[pack_size],
                              const float (&variance)[pack_size]) {
  if (part.has_narrow_moments) {
    store_narrow<NarrowMean>(part, part.mean, rounding_step(step, Rounded::mean), first, mean);
    store_narrow<NarrowVariance>(part, part.variance, rounding_step(step, Rounded::variance), first, variance);
  } else {
    Rows<float>{static_cast<float*>(part.mean), part.size, part.is_wide}.store(0, first, mean);
    Rows<float>{static_cast<float*>(part.variance), part.size, part.is_wide}.store(0, first, variance);
  }
}

__global__ void __launch_bounds__(optimizer_threads) adamw_chunks(AdamWFactors f, std::size_t count, const AdamWPart* parts) {
  const AdamWPart part = parts[part_of(parts, count)];
  const std::size_t begin = (blockIdx.x - part.first_chunk) * optimizer_chunk;
  const std::size_t end = begin + optimizer_chunk < part.size ? begin + optimizer_chunk : part.size;
  const Rows<const float> gradients{part.gradient, part.size, part.is_wide};
  const float decay = part.decays ? f.decay : 0;
  for (std::size_t first = begin + threadIdx.x * pack_size; first < end; first += optimizer_threads * pack_size) {
    float value[pack_size];
    float mean[pack_size];
    float variance[pack_size];
    float gradient[pack_size];
    gradients.load(0, first, gradient);
    load_moments(part, first, mean, variance);
    load_values(part, first, value);
#pragma unroll
    for (int j = 0; j < pack_size; ++j) {
      const float g = gradient[j] * f.gradient_scale;
      mean[j] = f.beta1 * mean[j] + f.rest1 * g;
      variance[j] = f.beta2 * variance[j] + f.rest2 * g * g;
      if (variance[j] > f.variance_limit) variance[j] = f.variance_limit;  // NaN stays NaN
      value[j] -= f.rate * (mean[j] * f.correction1 / (sqrtf(variance[j] * f.correction2) + f.epsilon) + decay * value[j]);
    }
    store_moments(part, f.step, first, mean, variance);
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
