// Relaxed categorical variables, the likelihood of pixels, and the largest of each row.
#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {

void CudaBackend::gumbel_softmax(const Gumbel& gumbel, const Tensor& x, Tensor& y) {
  const GumbelNoise noise{gumbel.seed, gumbel.site, static_cast<float>(1 / gumbel.temperature), gumbel.first};
  cuda::gumbel_softmax(stream(), noise, number_of(x), x.data(), y.data(), x.shape().rows(), x.shape().back());
}

void CudaBackend::categorical_kl(const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits) {
  cuda::categorical_kl(stream(), number_of(logits), logits.data(), static_cast<float>(scale), static_cast<float*>(kl.data()),
                       dlogits == nullptr ? nullptr : dlogits->data(), kl.size(), logits.shape().back());
}

void CudaBackend::logit_laplace(const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale,
                                Tensor& loss, Tensor* dmaps) {
  const PixelLoss shape{loss.size(), pixels.shape().back(), static_cast<float>(distribution.least_log_b),
                        static_cast<float>(scale)};
  cuda::logit_laplace(stream(), shape, number_of(maps), maps.data(), static_cast<const float*>(pixels.data()),
                      static_cast<float*>(loss.data()), dmaps == nullptr ? nullptr : dmaps->data());
}

void CudaBackend::argmax_rows(const Tensor& x, Tensor& ids) {
  cuda::argmax_rows(stream(), number_of(x), x.data(), static_cast<std::int32_t*>(ids.data()), ids.size(), x.shape().back());
}

}  // namespace bitloom::nn::cuda
