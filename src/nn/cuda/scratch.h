// Memory of a GPU for what one call needs until its kernels are done; the next call that asks gets the same.
#pragma once

#include <cstddef>
#include <memory>

#include "core/error.h"
#include "core/progress.h"
#include "nn/cuda/runtime.h"

namespace bitloom::nn::cuda {

class Scratch {
 public:
  explicit Scratch(Runtime& runtime) : runtime_(runtime), allocator_(runtime.make_allocator()) {}
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  // Aligned to 256 bytes. Throws OutOfMemory.
  void* get(std::size_t bytes) {
    if (bytes > bytes_) {
      runtime_.synchronize();  // kernels may still use the smaller one
      release();
      const std::size_t room = rounded(bytes);
      memory_ = allocate(room);
      bytes_ = room;
    }
    return memory_;
  }
  // What a part takes, so that the next is aligned too.
  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

 private:
  void* allocate(std::size_t room) {
    try {
      return allocator_->allocate(room);
    } catch (const Error& error) {
      throw OutOfMemory(ErrorKind::io,
                        fmt::format("out of memory on the GPU: {} more for an op ({})", format_bytes(room), error.what()));
    }
  }
  void release() {
    if (memory_ != nullptr) allocator_->release(memory_, bytes_);
    memory_ = nullptr;
    bytes_ = 0;
  }

  Runtime& runtime_;
  std::unique_ptr<Allocator> allocator_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace bitloom::nn::cuda
