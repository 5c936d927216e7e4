#include "core/error.h"
#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {

void CudaBackend::activate(const Activation& /*activation*/, const Tensor& /*x*/, Tensor& /*y*/) {
  fail(ErrorKind::internal, "activate: not on CUDA yet");
}
void CudaBackend::activate_backward(const Activation& /*activation*/, const Tensor& /*x*/, const Tensor& /*dy*/,
                                    Tensor& /*dx*/) {
  fail(ErrorKind::internal, "activate_backward: not on CUDA yet");
}
void CudaBackend::activate_few_bit(const Activation& /*activation*/, const FewBitTable& /*table*/, const Tensor& /*x*/,
                                   Tensor& /*y*/, Tensor& /*stash*/) {
  fail(ErrorKind::internal, "activate_few_bit: not on CUDA yet");
}
void CudaBackend::activate_few_bit_backward(const FewBitTable& /*table*/, const Tensor& /*stash*/, const Tensor& /*dy*/,
                                            Tensor& /*dx*/) {
  fail(ErrorKind::internal, "activate_few_bit_backward: not on CUDA yet");
}
void CudaBackend::adamw(std::span<const AdamWTensors> /*tensors*/, const AdamWStep& /*step*/) {
  fail(ErrorKind::internal, "adamw: not on CUDA yet");
}
double CudaBackend::sum_of_squares(std::span<const Tensor> /*tensors*/) {
  fail(ErrorKind::internal, "sum_of_squares: not on CUDA yet");
}

}  // namespace bitloom::nn::cuda
