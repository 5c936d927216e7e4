// One number from those of all threads of a group: a warp, or a block of one dimension. The order is always the same. C++17.
#pragma once

#include <cuda_platform.h>

namespace bitloom::nn::cuda {

constexpr unsigned warp_size = 32;

struct Plus {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
// NaN is passed over.
struct Larger {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Every thread of the group gets it; all of them call. Width: 32, or the threads of the block, a multiple of 32.
template <unsigned Width, typename T, typename F>
__device__ T group_reduce(T x, F f) {
  for (int lanes = warp_size / 2; lanes > 0; lanes /= 2) x = f(x, __shfl_xor_sync(0xFFFFFFFFU, x, lanes));
  if constexpr (Width > warp_size) {
    constexpr unsigned warps = Width / warp_size;
    __shared__ T of_warp[warps];
    __syncthreads();  // the results of an earlier call have been read
    if (threadIdx.x % warp_size == 0) of_warp[threadIdx.x / warp_size] = x;
    __syncthreads();
    x = of_warp[0];
#pragma unroll
    for (unsigned i = 1; i < warps; ++i) x = f(x, of_warp[i]);
  }
  return x;
}

template <unsigned Width, typename T>
__device__ T group_sum(T x) {
  return group_reduce<Width>(x, Plus{});
}
template <unsigned Width>
__device__ float group_max(float x) {
  return group_reduce<Width>(x, Larger{});
}

}  // namespace bitloom::nn::cuda
