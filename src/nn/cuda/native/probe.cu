// A kernel that does nothing, to ask whether a GPU could run it.
#include <cuda_runtime.h>

namespace bitloom::nn::cuda {

namespace {

__global__ __launch_bounds__(32) void nothing() {}

}  // namespace

// CUDA's answer on the current GPU, as check_cuda() takes it. Used in runtime.cpp.
int ask_for_code() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, nothing);
}

}  // namespace bitloom::nn::cuda
