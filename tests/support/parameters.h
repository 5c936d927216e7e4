// The numbers in parameters of a float net, for comparisons.
#pragma once

#include <vector>

#include "core/half.h"
#include "nn/engine.h"
#include "nn/parameter.h"

namespace bitloom::test {

// Values or gradients (`&nn::Parameter::value`, `&nn::Parameter::gradient`), f32, f64 or bf16, of all parameters, one behind
// the other.
inline std::vector<double> all_of(nn::Engine& engine, const std::vector<nn::Parameter*>& parameters,
                                  nn::Tensor nn::Parameter::*which) {
  std::vector<double> all;
  const auto add = [&](const auto& each) { all.insert(all.end(), each.begin(), each.end()); };
  for (const nn::Parameter* parameter : parameters) {
    const nn::Tensor& tensor = parameter->*which;
    if (tensor.dtype() == DType::f64) {
      add(engine.to_host<double>(tensor));
    } else if (tensor.dtype() == DType::bf16) {
      for (const bf16 x : engine.to_host<bf16>(tensor)) all.push_back(to_float(x));
    } else {
      add(engine.to_host<float>(tensor));
    }
  }
  return all;
}

}  // namespace bitloom::test
