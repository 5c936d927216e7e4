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
void CudaBackend::gather(const Tensor& /*table*/, const Tensor& /*ids*/, Tensor& /*out*/, bool /*accumulate*/) {
  fail(ErrorKind::internal, "gather: not on CUDA yet");
}
void CudaBackend::scatter_add(const Tensor& /*dout*/, const Tensor& /*ids*/, Tensor& /*dtable*/) {
  fail(ErrorKind::internal, "scatter_add: not on CUDA yet");
}
void CudaBackend::softmax(const Tensor& /*x*/, Tensor& /*y*/) { fail(ErrorKind::internal, "softmax: not on CUDA yet"); }
void CudaBackend::softmax_backward(const Tensor& /*y*/, const Tensor& /*dy*/, Tensor& /*dx*/) {
  fail(ErrorKind::internal, "softmax_backward: not on CUDA yet");
}
void CudaBackend::cross_entropy(const Tensor& /*logits*/, const Tensor& /*targets*/, std::size_t /*classes*/, double /*scale*/,
                                Tensor& /*loss*/, Tensor* /*dlogits*/) {
  fail(ErrorKind::internal, "cross_entropy: not on CUDA yet");
}
void CudaBackend::adamw(std::span<const AdamWTensors> /*tensors*/, const AdamWStep& /*step*/) {
  fail(ErrorKind::internal, "adamw: not on CUDA yet");
}
double CudaBackend::sum_of_squares(std::span<const Tensor> /*tensors*/) {
  fail(ErrorKind::internal, "sum_of_squares: not on CUDA yet");
}

}  // namespace bitloom::nn::cuda
