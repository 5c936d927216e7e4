#include "models/foreign_tensors.h"

#include <algorithm>

#include "core/error.h"
#include "core/half.h"

namespace bitloom::models {

std::vector<float> to_floats(const Tensor& tensor, const std::string& label) {
  std::vector<float> values(tensor.size());
  const auto convert = [&](const auto& from) {
    std::transform(from.begin(), from.end(), values.begin(), [](auto value) { return to_float(value); });
  };
  switch (tensor.dtype) {
    case DType::f32: std::ranges::copy(tensor.as<float>(), values.begin()); break;
    case DType::f16: convert(tensor.as<f16>()); break;
    case DType::bf16: convert(tensor.as<bf16>()); break;
    default: fail(ErrorKind::data, "{} is of type {}; expected F32, F16 or BF16", label, dtype_name(tensor.dtype));
  }
  return values;
}

}  // namespace bitloom::models
