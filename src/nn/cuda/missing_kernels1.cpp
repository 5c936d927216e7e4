#include "core/error.h"
#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {

void CudaBackend::adamw(std::span<const AdamWTensors> /*tensors*/, const AdamWStep& /*step*/) {
  fail(ErrorKind::internal, "adamw: not on CUDA yet");
}
double CudaBackend::sum_of_squares(std::span<const Tensor> /*tensors*/) {
  fail(ErrorKind::internal, "sum_of_squares: not on CUDA yet");
}

}  // namespace bitloom::nn::cuda
