// The backend's access to a GPU besides kernels: its memory, one stream on which all is done in order, and copies. Two
// implementations: native/runtime.cpp on CUDA's runtime, and one in tests/cuda on the CPU.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "nn/cuda/kernels.h"
#include "nn/device.h"
#include "nn/pool.h"

namespace bitloom::nn::cuda {

class Runtime {
 public:
  // Throws Error(usage) if there is no such GPU, with gpu_problem()'s words.
  explicit Runtime(int index);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  const Gpu& gpu() const { return gpu_; }
  // Makes this GPU the one that the calling thread starts work on, since a program may use several.
  Stream stream() const;
  // In the GPU's memory, for kernels to set.
  FaultWord* fault() const;
  // The fault that kernels put there before the host last waited, which is forgotten.
  FaultWord take_fault();
  // It may outlive this.
  std::unique_ptr<Allocator> make_allocator() const;
  // The pool that ops take memory from: until one is named, one of its own.
  Pool& pool();
  void use_pool(std::shared_ptr<Pool> pool) { pool_ = std::move(pool); }

  // How to wait for the GPU from now on: wait(ready) returns once ready() holds, at once if it does not mind waiting in the
  // driver, where nothing ends a wait for a kernel that never ends; it may throw.
  using Wait = std::function<void(const std::function<bool()>& ready)>;
  void wait_by(Wait wait) { wait_ = std::move(wait); }

  // Returns when `host` may be changed, which is before the copy is done.
  void upload(void* device, std::span<const std::byte> host);
  // Waits for everything before it.
  void download(const void* device, std::span<std::byte> host);
  // Throws Error(io) if something that was started has failed.
  void synchronize();

 private:
  struct State;
  Gpu gpu_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<State> state_;
  Wait wait_;  // none: in the driver
};

}  // namespace bitloom::nn::cuda
