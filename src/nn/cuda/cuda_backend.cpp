#include "nn/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "core/error.h"

namespace bitloom::nn {

std::unique_ptr<Backend> make_cuda_backend(int gpu) { return std::make_unique<cuda::CudaBackend>(gpu); }

namespace cuda {

Number number_of(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f32: return Number::f32;
    case DType::bf16: return Number::bf16;
    case DType::f16: return Number::f16;
    default: fail(ErrorKind::internal, "{} is no tensor of numbers of this device", to_text(tensor));
  }
}

Pool& Runtime::pool() {
  if (pool_ == nullptr) pool_ = Pool::make({Device::Kind::cuda, 0}, make_allocator());
  return *pool_;
}

CudaBackend::CudaBackend(int gpu) : runtime_(gpu), blas_(runtime_), dnn_(runtime_), masks_(runtime_), workspace_(runtime_) {}

std::unique_ptr<Allocator> CudaBackend::make_allocator() const { return runtime_.make_allocator(); }

bool CudaBackend::supports(DType dtype) const { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

void CudaBackend::write(void* device, std::span<const std::byte> host) { runtime_.upload(device, host); }

void CudaBackend::read(const void* device, std::span<std::byte> host) {
  runtime_.download(device, host);
  check_faults();
}

void CudaBackend::synchronize() {
  runtime_.synchronize();
  check_faults();
}

void CudaBackend::check_faults() {
  const FaultWord fault = runtime_.take_fault();
  if (fault == no_fault) return;
  constexpr std::array<std::string_view, 3> texts = {
      "gather: ids[{}] is no row of the table",
      "scatter_add: ids[{}] is no row of the table",
      "cross_entropy: targets[{}] is neither -1 nor a class",
  };
  throw Error(ErrorKind::usage, fmt::format(fmt::runtime(texts.at(fault & 0xFFU)), fault >> 8U));
}

}  // namespace cuda
}  // namespace bitloom::nn
