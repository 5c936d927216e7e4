// Tensors of numbers that a test names.
#pragma once

#include <vector>

#include "nn/engine.h"

namespace bitloom::test {

inline nn::Tensor floats(nn::Engine& engine, const std::vector<float>& values, const nn::Shape& shape) {
  return engine.from<float>(values, shape, nn::Use::data);
}

}  // namespace bitloom::test
