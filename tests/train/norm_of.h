// The norm of the gradients of parameters that one process has.
#pragma once

#include <vector>

#include "train/parallel/gradient_norm.h"

namespace bitloom::test {

// Times `scale`; frozen parameters do not count.
inline double norm_of(nn::Engine& engine, const std::vector<nn::Parameter*>& parameters, double scale) {
  std::vector<nn::Parameter*> learned;
  std::vector<train::GradientNorm::Part> parts;
  for (nn::Parameter* parameter : parameters) {
    if (parameter->is_frozen) continue;
    learned.push_back(parameter);
    parts.push_back({parameter, &parameter->gradient});
  }
  mpi::Comm alone;
  mpi::Grid grid(alone, {});
  return train::GradientNorm(engine, learned, parts, grid, nullptr).norm(scale);
}

}  // namespace bitloom::test
