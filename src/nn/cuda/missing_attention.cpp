#include "core/error.h"
#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {

void CudaBackend::attention(const AttentionShape& /*shape*/, const AttentionMask& /*mask*/, const Dropout& /*dropout*/,
                            const Heads& /*q*/, const Heads& /*k*/, const Heads& /*v*/, const Heads& /*out*/, Tensor& /*lse*/) {
  fail(ErrorKind::internal, "attention: not on CUDA yet");
}
void CudaBackend::attention_backward(const AttentionShape& /*shape*/, const AttentionMask& /*mask*/, const Dropout& /*dropout*/,
                                     const Heads& /*q*/, const Heads& /*k*/, const Heads& /*v*/, const Heads& /*out*/,
                                     const Tensor& /*lse*/, const Heads& /*dout*/, const Heads& /*dq*/, const Heads& /*dk*/,
                                     const Heads& /*dv*/) {
  fail(ErrorKind::internal, "attention_backward: not on CUDA yet");
}

}  // namespace bitloom::nn::cuda
