// Ops on single elements.
#include <bit>

#include "core/half.h"
#include "core/narrow.h"
#include "nn/cuda/cuda_backend.h"
#include "nn/dropout.h"

namespace bitloom::nn::cuda {
namespace {

// The bits of a number of that type.
std::uint64_t bits_of(DType dtype, double value) {
  switch (dtype) {
    case DType::f64: return std::bit_cast<std::uint64_t>(value);
    case DType::f32: return std::bit_cast<std::uint32_t>(static_cast<float>(value));
    case DType::bf16: return to_bf16(static_cast<float>(value)).bits;
    case DType::f16: return to_f16(static_cast<float>(value)).bits;
    case DType::f1_6_9: return to_f1_6_9(static_cast<float>(value)).bits;
    case DType::f0_6_10: return to_f0_6_10(static_cast<float>(value)).bits;
    case DType::u64: return static_cast<std::uint64_t>(value);
    default: return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  }
}

}  // namespace

void CudaBackend::convert(const Tensor& x, Tensor& y) {
  cuda::convert(stream(), number_of(x), x.data(), number_of(y), y.data(), x.size());
}

void CudaBackend::fill(Tensor& y, double value) {
  cuda::fill(stream(), y.data(), y.size(), dtype_size(y.dtype()), bits_of(y.dtype(), value));
}

void CudaBackend::add(const Tensor& a, const Tensor& b, Tensor& y) {
  cuda::add(stream(), number_of(a), a.data(), b.data(), y.data(), y.size());
}

void CudaBackend::scale_add(double alpha, const Tensor& x, double beta, Tensor& y) {
  cuda::scale_add(stream(), static_cast<float>(alpha), number_of(x), x.data(), static_cast<float>(beta), number_of(y), y.data(),
                  y.size());
}

void CudaBackend::add_finite(double alpha, const Tensor& x, Tensor& y) {
  cuda::add_finite(stream(), static_cast<float>(alpha), number_of(x), x.data(), number_of(y), y.data(), y.size());
}

void CudaBackend::clamp(double limit, const Tensor& x, Tensor& y) {
  cuda::clamp(stream(), static_cast<float>(limit), number_of(x), x.data(), y.data(), y.size());
}

void CudaBackend::clamp_backward(double limit, const Tensor& x, const Tensor& dy, Tensor& dx) {
  cuda::clamp_backward(stream(), static_cast<float>(limit), number_of(x), x.data(), dy.data(), dx.data(), dx.size());
}

void CudaBackend::dropout(const Dropout& dropout, const Tensor& x, Tensor& y) {
  const std::uint32_t threshold = dropout_threshold(dropout.rate);
  const Drops drops{dropout.seed, dropout.site, threshold, static_cast<float>(dropout_factor(threshold)), dropout.first};
  cuda::dropout(stream(), drops, number_of(x), x.data(), y.data(), y.size());
}

}  // namespace bitloom::nn::cuda
