// The numbers in parameters of a float net, for comparisons.
#pragma once

#include <vector>

#include "nn/engine.h"
#include "nn/parameter.h"

namespace bitloom::test {

// Values or gradients (`&nn::Parameter::value`, `&nn::Parameter::gradient`), f32 or f64, of all parameters, one behind the
// other.
inline std::vector<double> all_of(nn::Engine& engine, const std::vector<nn::Parameter*>& parameters,
                                  nn::Tensor nn::Parameter::*which) {
  std::vector<double> all;
  const auto add = [&](const auto& each) { all.insert(all.end(), each.begin(), each.end()); };
  for (const nn::Parameter* parameter : parameters) {
    const nn::Tensor& tensor = parameter->*which;
    if (tensor.dtype() == DType::f64) {
      add(engine.to_host<double>(tensor));
    } else {
      add(engine.to_host<float>(tensor));
    }
  }
  return all;
}

}  // namespace bitloom::test
