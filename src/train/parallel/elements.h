// The elements of a tensor as collectives take them.
#pragma once

#include "core/error.h"
#include "mpi/device_comm.h"
#include "nn/tensor.h"

namespace bitloom::train {

// f(elements) with a span of those of a tensor of any floating type in this machine's memory.
template <typename F>
void with_elements(const nn::Tensor& tensor, F&& f) {
  switch (tensor.dtype()) {
    case DType::f64: return f(tensor.as<double>());
    case DType::f32: return f(tensor.as<float>());
    case DType::bf16: return f(tensor.as<bf16>());
    case DType::f16: return f(tensor.as<f16>());
    default: fail(ErrorKind::internal, "{} over processes; expected floats", nn::to_text(tensor));
  }
}

// Values of a tensor of f32, bf16 or f16 in a GPU's memory.
inline mpi::DeviceComm::Values on_device(const nn::Tensor& tensor) {
  using Type = mpi::DeviceComm::Type;
  const DType dtype = tensor.dtype();
  return {tensor.data(), tensor.size(), dtype == DType::bf16 ? Type::bf16 : dtype == DType::f16 ? Type::f16 : Type::f32};
}

}  // namespace bitloom::train
