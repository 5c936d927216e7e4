#include "core/error.h"
#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {

void CudaBackend::matmul(const Tensor& /*a*/, const Tensor& /*b*/, Tensor& /*out*/, const MatmulOptions& /*options*/) {
  fail(ErrorKind::internal, "matmul: not on CUDA yet");
}
void CudaBackend::conv2d(const Conv2d& /*conv*/, const Tensor& /*x*/, const Tensor& /*w*/, const Tensor& /*bias*/,
                         Tensor& /*y*/) {
  fail(ErrorKind::internal, "conv2d: not on CUDA yet");
}
void CudaBackend::conv2d_backward_data(const Conv2d& /*conv*/, const Tensor& /*dy*/, const Tensor& /*w*/, Tensor& /*dx*/) {
  fail(ErrorKind::internal, "conv2d_backward_data: not on CUDA yet");
}
void CudaBackend::conv2d_backward_weights(const Conv2d& /*conv*/, const Tensor& /*x*/, const Tensor& /*dy*/, Tensor& /*dw*/) {
  fail(ErrorKind::internal, "conv2d_backward_weights: not on CUDA yet");
}
void CudaBackend::max_pool(std::size_t /*k*/, const Tensor& /*x*/, Tensor& /*y*/, Tensor& /*which*/) {
  fail(ErrorKind::internal, "max_pool: not on CUDA yet");
}
void CudaBackend::max_pool_backward(std::size_t /*k*/, const Tensor& /*dy*/, const Tensor& /*which*/, Tensor& /*dx*/) {
  fail(ErrorKind::internal, "max_pool_backward: not on CUDA yet");
}
void CudaBackend::upsample(std::size_t /*k*/, const Tensor& /*x*/, Tensor& /*y*/) {
  fail(ErrorKind::internal, "upsample: not on CUDA yet");
}
void CudaBackend::upsample_backward(std::size_t /*k*/, const Tensor& /*dy*/, Tensor& /*dx*/) {
  fail(ErrorKind::internal, "upsample_backward: not on CUDA yet");
}

}  // namespace bitloom::nn::cuda
