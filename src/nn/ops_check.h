// Checks of the arguments of ops. Private to src/nn/ops*.cpp.
#pragma once

#include <string_view>
#include <utility>

#include "core/error.h"
#include "nn/backend.h"
#include "nn/dropout.h"
#include "nn/ops.h"

namespace bitloom::nn {

// Checks of one op's tensors; every complaint names the op.
class Check {
 public:
  Check(Engine& engine, std::string_view op) : engine_(engine), op_(op) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::usage, "{}: {}", op_, fmt::format(text, std::forward<Args>(args)...));
  }

  void there(std::string_view name, const Tensor& tensor) const {
    if (!tensor) refuse("{}: no tensor", name);
    if (tensor.device() != engine_.device()) {
      refuse("{}: {} on {}; expected one on {}", name, to_text(tensor), name_of(tensor.device()), name_of(engine_.device()));
    }
  }
  // A tensor of values; gives V.
  DType values(std::string_view name, const Tensor& tensor) const {
    there(name, tensor);
    if (!is_float(tensor.dtype()) || !engine_.backend().supports(tensor.dtype())) {
      refuse("{}: {}; backend {} has no values of that type", name, to_text(tensor), engine_.backend_name());
    }
    return tensor.dtype();
  }
  void typed(std::string_view name, const Tensor& tensor, DType dtype) const {
    there(name, tensor);
    if (tensor.dtype() != dtype) refuse("{}: {}; expected {}", name, to_text(tensor), to_text(dtype));
  }
  void is(std::string_view name, const Tensor& tensor, DType dtype, const Shape& shape) const {
    there(name, tensor);
    if (tensor.dtype() != dtype || tensor.shape() != shape) {
      refuse("{}: {}; expected {} {}", name, to_text(tensor), to_text(dtype), to_text(shape));
    }
  }
  void like(std::string_view name, const Tensor& tensor, const Tensor& other) const {
    is(name, tensor, other.dtype(), other.shape());
  }
  void axes(std::string_view name, const Tensor& tensor, std::size_t count) const {
    there(name, tensor);
    if (tensor.shape().axes() != count) refuse("{}: {}; expected {} axes", name, to_text(tensor), count);
  }
  void some_axes(std::string_view name, const Tensor& tensor) const {
    there(name, tensor);
    if (tensor.shape().axes() == 0) refuse("{}: {}; expected at least one axis", name, to_text(tensor));
  }
  void positive(std::string_view name, double value) const {
    if (!(value > 0)) refuse("{}: {}; expected more than 0", name, value);
  }
  void rate(double rate) const {
    if (!(rate >= 0 && rate < 1) || dropout_threshold(rate) == 65536) refuse("rate: {}; expected 0 <= rate < 1", rate);
  }
  void multiple(std::string_view name, std::uint64_t value, std::uint64_t of) const {
    if (value % of != 0) refuse("{}: {}; expected a multiple of {}", name, value, of);
  }

  static bool is_float(DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
  }

 private:
  Engine& engine_;
  std::string_view op_;
};

}  // namespace bitloom::nn
