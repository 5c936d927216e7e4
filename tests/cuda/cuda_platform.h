// The platform of the kernels of src/nn/cuda, on the CPU: the counterpart of src/nn/cuda/native/cuda_platform.h, so
// that all of them are tested where there is no GPU. What this cannot show is speed, and what several blocks do to each other.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>

#include "core/half.h"
#include "tests/cuda/emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __grid_constant__
#define __launch_bounds__(...)
// One block runs at a time.
#define __shared__ static

using bitloom::emulated::blockDim;
using bitloom::emulated::blockIdx;
using bitloom::emulated::dim3;
using bitloom::emulated::gridDim;
using bitloom::emulated::threadIdx;

inline void __syncthreads() { bitloom::emulated::block_barrier(); }
inline void __syncwarp() { bitloom::emulated::warp_barrier(); }
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane) {
  return bitloom::emulated::exchange(mask, value, [=](unsigned) { return static_cast<unsigned>(lane) % 32; });
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return bitloom::emulated::exchange(mask, value, [=](unsigned own) { return own ^ static_cast<unsigned>(lanes); });
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned lanes) {
  return bitloom::emulated::exchange(mask, value, [=](unsigned own) { return own + lanes < 32 ? own + lanes : own; });
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned lanes) {
  return bitloom::emulated::exchange(mask, value, [=](unsigned own) { return own >= lanes ? own - lanes : own; });
}
inline unsigned __ballot_sync(unsigned mask, int predicate) { return bitloom::emulated::ballot(mask, predicate != 0); }

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float a, float b) { return a / b; }

inline unsigned long long atomicMin(unsigned long long* x, unsigned long long y) { return std::exchange(*x, y < *x ? y : *x); }

namespace bitloom::nn::cuda {

inline float bf16_to_float(std::uint16_t bits) { return to_float(bf16{bits}); }
inline std::uint16_t float_to_bf16(float x) { return to_bf16(x).bits; }
inline float f16_to_float(std::uint16_t bits) { return to_float(f16{bits}); }
inline std::uint16_t float_to_f16(float x) { return to_f16(x).bits; }

inline float exp2_approx(float x) { return std::exp2(x); }

inline unsigned char* dynamic_shared() { return emulated::dynamic_shared(); }

struct LaunchShape {
  dim3 grid, block;
  unsigned shared_bytes = 0;
};

template <typename... P, typename... A>
void launch(CUstream_st* /*stream*/, const char* name, const LaunchShape& shape, void (*kernel)(P...), A... arguments) {
  emulated::run_grid(name, shape.grid, shape.block, shape.shared_bytes, [=] { kernel(static_cast<P>(arguments)...); });
}

}  // namespace bitloom::nn::cuda
