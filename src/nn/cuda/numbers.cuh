// Numbers in a device's memory: f32, and bf16 and f16, which are stored as their bits and computed with as floats. C++17.
#pragma once

#include <cstddef>
#include <cstdint>

#include <cuda_platform.h>
#include "nn/cuda/kernels.h"

namespace bitloom::nn::cuda {

struct Bf16 {
  std::uint16_t bits;
};
struct F16 {
  std::uint16_t bits;
};

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(Bf16 x) { return bf16_to_float(x.bits); }
__device__ inline float to_float(F16 x) { return f16_to_float(x.bits); }

template <typename T>
struct FromFloat;
template <>
struct FromFloat<float> {
  __device__ static float of(float x) { return x; }
};
template <>
struct FromFloat<Bf16> {
  __device__ static Bf16 of(float x) { return {float_to_bf16(x)}; }
};
template <>
struct FromFloat<F16> {
  __device__ static F16 of(float x) { return {float_to_f16(x)}; }
};
// Rounded to the nearest.
template <typename T>
__device__ inline T from_float(float x) {
  return FromFloat<T>::of(x);
}

// Numbers that a thread reads or writes at once: 16 bytes, or 32 of f32.
constexpr int pack_size = 8;
template <typename T>
struct alignas(16) Pack {
  T values[pack_size];
};

template <typename T>
__host__ __device__ bool is_aligned(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
}

template <typename T>
struct Type {
  using type = T;
};
// work(Type<V>{}) for the V that `number` names.
template <typename Work>
void with_number(Number number, Work&& work) {
  switch (number) {
    case Number::f32: return work(Type<float>{});
    case Number::bf16: return work(Type<Bf16>{});
    case Number::f16: return work(Type<F16>{});
  }
}

// work(Type<X>{}, Type<Y>{}) for those that `x` and `y` name.
template <typename Work>
void with_numbers(Number x, Number y, Work&& work) {
  with_number(x, [&](auto x_type) { with_number(y, [&](auto y_type) { work(x_type, y_type); }); });
}

// Blocks of `threads` that cover n pieces of work, a multiple of which each does if there are very many.
inline unsigned blocks_for(std::size_t n, unsigned threads) {
  constexpr std::size_t most = 1 << 16;  // more than any device runs at once
  const std::size_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

// The first piece of work of this thread, and the distance to its next.
__device__ inline std::size_t first_piece() { return static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline std::size_t piece_stride() { return static_cast<std::size_t>(gridDim.x) * blockDim.x; }

}  // namespace bitloom::nn::cuda
