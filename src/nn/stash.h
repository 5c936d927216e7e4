// What layers keep of a forward pass for its backward pass, of one micro-batch: backward takes in the opposite order what
// forward put.
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
  // Of the tensors in it; memory that two of them share counts twice.
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t peak_bytes() const { return peak_bytes_; }

 private:
  std::vector<Tensor> tensors_;
  std::uint64_t bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace bitloom::nn
