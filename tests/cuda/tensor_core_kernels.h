// Starts the kernels of tensor_core_kernels.cu. Pointers are into the device's memory. C++17.
#pragma once

#include <cstdint>

#include "nn/cuda/kernels.h"

namespace bitloom::test {

// c (16,8), f32, += a (16,16) b (16,8), of bf16 or f16, by one warp.
void multiply_tile(nn::cuda::Stream stream, nn::cuda::Number number, const void* a, const void* b, float* c);
// Four matrices (8,8) of the numbers 0 .. 255: out (32,8), what each lane gets of each, then the same transposed.
void load_fragments(nn::cuda::Stream stream, std::uint32_t* out);
// y (64) = x (64) by two groups of copies, of whose second only the first `count` threads' are there; 0 for the others.
void copy_in_groups(nn::cuda::Stream stream, const float* x, float* y, unsigned count);

}  // namespace bitloom::test
