// Bounds that ops are measured against: the same device's product of square matrices, and its copying of memory.
#pragma once

#include <memory>

#include "nn/engine.h"

namespace bitloom::bench {

class Bounds {
 public:
  virtual ~Bounds() = default;
  // One run, which is to be timed; returns when it is done.
  virtual void multiply(DType dtype) = 0;
  virtual double flops(DType dtype) const = 0;
  // bytes: read and written together.
  virtual void copy(double bytes) = 0;
  virtual const char* multiplies() const = 0;  // whose product it is
};

// For an engine on the CPU oneDNN's product of matrices of 1024 in the layouts that it likes best; on a GPU the engine's own
// (cuBLASLt's) of 8192, and its copy of f32 (an op of one multiplication an element).
std::unique_ptr<Bounds> bounds_of(nn::Engine& engine);

}  // namespace bitloom::bench
