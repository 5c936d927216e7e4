// Tensors that layers keep of a micro-batch's forward pass for its backward pass: backward takes them in the opposite order
// of forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/tensor.h"

namespace bitloom::nn {

class Stash {
 public:
  // From now on the tensor's memory counts as stash.
  void put(Tensor tensor);
  // Throws Error(internal) if nothing is left.
  Tensor take();

  bool empty() const { return tensors_.empty(); }
  std::size_t size() const { return tensors_.size(); }
  // Bytes of the tensors in it; memory that two of them share counts twice.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  std::vector<Tensor> tensors_;
  std::uint64_t bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace bitloom::nn
