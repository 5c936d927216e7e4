// Memory of a GPU for what one call needs until its kernels are done; the next call that asks gets the same. From the pool,
// where it counts as workspace and where blocks that nobody uses make room for it.
#pragma once

#include <cstddef>
#include <memory>

#include "nn/cuda/runtime.h"
#include "nn/pool.h"

namespace bitloom::nn::cuda {

class Scratch {
 public:
  // The runtime outlives this.
  explicit Scratch(Runtime& runtime) : runtime_(runtime) {}

  // Aligned to 256 bytes. Throws OutOfMemory.
  void* get(std::size_t bytes) {
    if (bytes > bytes_) {
      // Kernels may still use the smaller one: whoever gets it next starts his own behind them, on the same stream.
      memory_.reset();
      bytes_ = 0;
      memory_ = runtime_.pool().allocate(rounded(bytes), Use::workspace);
      bytes_ = rounded(bytes);
    }
    return memory_.get();
  }
  // Bytes that a part takes, so that the next is aligned too.
  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  Runtime& runtime_;
  std::shared_ptr<std::byte> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace bitloom::nn::cuda
