// Tensors of normal random numbers in double precision.
#pragma once

#include <cstdint>
#include <vector>

#include "core/random.h"
#include "nn/engine.h"

namespace bitloom::test {

inline std::vector<double> noise(std::size_t size, std::uint64_t seed) {
  Random random(seed, Stream::test);
  std::vector<double> values(size);
  for (double& value : values) value = random.normal();
  return values;
}

inline nn::Tensor random_tensor(nn::Engine& engine, const nn::Shape& shape, std::uint64_t seed) {
  const std::vector<double> values = noise(shape.size(), seed);
  return engine.from(std::span<const double>(values), shape, nn::Use::activations);
}

}  // namespace bitloom::test
