// Kernels that use tensor cores as cuda_tensor_cores.h has them, for tests. C++17: compiled for GPUs and for the emulator.
#include "tests/cuda/tensor_core_kernels.h"

#include <cuda_platform.h>
#include <cuda_tensor_cores.h>

namespace bitloom::test {
namespace {

constexpr int n = 8, k = 16;

__device__ inline std::uint32_t pair_of(std::uint16_t low, std::uint16_t high) {
  return low | static_cast<std::uint32_t>(high) << 16U;
}

// c (m,n) += a (m,k) b (k,n), by one warp.
template <bool is_bf16>
__global__ void __launch_bounds__(32) multiply(const std::uint16_t* a, const std::uint16_t* b, float* c) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  std::uint32_t a_part[4], b_part[2];
  for (int i = 0; i < 4; ++i) {
    const std::uint16_t* at = a + (g + 8 * (i % 2)) * k + 2 * t + 8 * (i / 2);
    a_part[i] = pair_of(at[0], at[1]);
  }
  for (int i = 0; i < 2; ++i) b_part[i] = pair_of(b[(2 * t + 8 * i) * n + g], b[(2 * t + 1 + 8 * i) * n + g]);
  float c_part[4];
  for (int i = 0; i < 4; ++i) c_part[i] = c[(g + 8 * (i / 2)) * n + 2 * t + i % 2];
  if (is_bf16) {
    nn::cuda::multiply_bf16(c_part, a_part, b_part[0], b_part[1]);
  } else {
    nn::cuda::multiply_f16(c_part, a_part, b_part[0], b_part[1]);
  }
  for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * n + 2 * t + i % 2] = c_part[i];
}

// Rows of 8 numbers in order, from shared memory; then the same transposed.
__global__ void __launch_bounds__(32) load_four(std::uint32_t* out) {
  auto* rows = reinterpret_cast<std::uint16_t*>(nn::cuda::dynamic_shared());
  for (unsigned i = 0; i < 8; ++i) rows[8 * threadIdx.x + i] = static_cast<std::uint16_t>(8 * threadIdx.x + i);
  __syncwarp();
  std::uint32_t r[4];
  nn::cuda::load_matrices(r, rows + 8 * threadIdx.x);
  for (int i = 0; i < 4; ++i) out[8 * threadIdx.x + i] = r[i];
  nn::cuda::load_matrices_transposed(r, rows + 8 * threadIdx.x);
  for (int i = 0; i < 4; ++i) out[8 * threadIdx.x + 4 + i] = r[i];
}

// Each thread's floats in two groups, of which the second, `count` of them, may be missing.
__global__ void __launch_bounds__(32) copy_two_groups(const float* x, float* y, unsigned count) {
  auto* shared = reinterpret_cast<float*>(nn::cuda::dynamic_shared()) + 4 * threadIdx.x;
  nn::cuda::copy_async<4>(shared, x + 2 * threadIdx.x, true);
  nn::cuda::commit_copies();
  nn::cuda::copy_async<4>(shared + 1, x + 2 * threadIdx.x + 1, threadIdx.x < count);
  nn::cuda::commit_copies();
  nn::cuda::wait_for_copies<1>();
  y[2 * threadIdx.x] = shared[0];
  nn::cuda::wait_for_copies<0>();
  y[2 * threadIdx.x + 1] = shared[1];
}

}  // namespace

void multiply_tile(nn::cuda::Stream stream, nn::cuda::Number number, const void* a, const void* b, float* c) {
  const auto* a_bits = static_cast<const std::uint16_t*>(a);
  const auto* b_bits = static_cast<const std::uint16_t*>(b);
  const auto kernel = number == nn::cuda::Number::bf16 ? multiply<true> : multiply<false>;
  nn::cuda::launch(stream, "multiply", {1, 32}, kernel, a_bits, b_bits, c);
}

void load_fragments(nn::cuda::Stream stream, std::uint32_t* out) {
  nn::cuda::launch(stream, "load", {1, 32, 512}, load_four, out);
}

void copy_in_groups(nn::cuda::Stream stream, const float* x, float* y, unsigned count) {
  nn::cuda::launch(stream, "copy", {1, 32, 512}, copy_two_groups, x, y, count);
}

}  // namespace bitloom::test
