// The platform of kernels: CUDA. tests/cuda/cuda_platform.h has the same names for a CPU, where every kernel is tested
// without a GPU; which of the two is included is a matter of the include path. C++17.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace bitloom::nn::cuda {

__device__ inline float bf16_to_float(std::uint16_t bits) { return __uint_as_float(static_cast<std::uint32_t>(bits) << 16U); }
__device__ inline std::uint16_t float_to_bf16(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ inline float f16_to_float(std::uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ inline std::uint16_t float_to_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }

// 2^x; approximate: relative errors up to 2^-22, tiny results are 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Shared memory of a block, as many bytes as its launch asked for, aligned to 16.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ uint4 bitloom_dynamic_shared[];
  return reinterpret_cast<unsigned char*>(bitloom_dynamic_shared);
}

struct LaunchShape {
  dim3 grid, block;
  unsigned shared_bytes = 0;
};

// Throws Error(io), or Error(internal) for a launch that cannot be, which names `what`. Defined in runtime.cpp.
void check_cuda(int status, const char* what);

// Starts a kernel. `name`: of the op, for messages.
template <typename... P, typename... A>
void launch(CUstream_st* stream, const char* name, const LaunchShape& shape, void (*kernel)(P...), A... arguments) {
  constexpr unsigned most_by_default = 48 * 1024;
  if (shape.shared_bytes > most_by_default) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shape.shared_bytes)),
               name);
  }
  kernel<<<shape.grid, shape.block, shape.shared_bytes, stream>>>(static_cast<P>(arguments)...);
  check_cuda(cudaGetLastError(), name);
}

}  // namespace bitloom::nn::cuda
