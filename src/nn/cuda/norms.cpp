// Normalisation of rows and of columns.
#include "nn/cuda/cuda_backend.h"

namespace bitloom::nn::cuda {
namespace {

NormShape shape_of(const Tensor& x, double epsilon) {
  return {number_of(x), x.shape().rows(), x.shape().back(), static_cast<float>(epsilon)};
}

// The elements of a tensor of type P.
float* floats(const Tensor& tensor) { return static_cast<float*>(tensor.data()); }

}  // namespace

void CudaBackend::layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                             Tensor& rstd) {
  cuda::layer_norm(stream(), shape_of(x, epsilon), x.data(), floats(gain), floats(bias), y.data(), floats(mean), floats(rstd));
}

void CudaBackend::layer_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                      const Tensor& rstd, Tensor& dx, Tensor& dgain, Tensor& dbias, bool accumulate) {
  const NormShape shape = shape_of(x, 0);  // rstd has it
  cuda::layer_norm_backward(stream(), shape, dy.data(), x.data(), floats(gain), floats(mean), floats(rstd), dx.data(),
                            accumulate, floats(dgain), floats(dbias),
                            workspace(layer_norm_workspace(shape.rows, shape.columns)));
}

void CudaBackend::batch_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y, Tensor& mean,
                             Tensor& variance) {
  const NormShape shape = shape_of(x, epsilon);
  batch_norm_moments(stream(), shape, x.data(), floats(mean), floats(variance),
                     workspace(batch_norm_workspace(shape.rows, shape.columns)));
  cuda::batch_norm(stream(), shape, x.data(), floats(gain), floats(bias), floats(mean), floats(variance), y.data());
}

void CudaBackend::batch_norm_backward(const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                                      const Tensor& variance, double epsilon, Tensor& dx, Tensor& dgain, Tensor& dbias) {
  const NormShape shape = shape_of(x, epsilon);
  cuda::batch_norm_backward(stream(), shape, dy.data(), x.data(), floats(gain), floats(mean), floats(variance), dx.data(),
                            floats(dgain), floats(dbias), workspace(batch_norm_workspace(shape.rows, shape.columns)));
}

void CudaBackend::batch_norm_inference(const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean,
                                       const Tensor& variance, double epsilon, Tensor& y) {
  cuda::batch_norm(stream(), shape_of(x, epsilon), x.data(), floats(gain), floats(bias), floats(mean), floats(variance),
                   y.data());
}

}  // namespace bitloom::nn::cuda
