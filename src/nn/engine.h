// One device: its memory and the implementation of ops that runs there.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/tensor.h"

namespace bitloom::nn {

class Backend;

// Names of the implementations that this program has and this machine can run, the default of its device first: "cpu", "ref",
// "cuda".
std::vector<std::string> backends();

// Instruction sets whose kernels the backend "cpu" can have here beside oneDNN's, the best first: "amx", "avx2". BITLOOM_ISA
// may name another than the first.
std::vector<std::string> cpu_kernels();

class Engine {
 public:
  // backend: one of backends(), or empty for the device's own. Throws Error(usage), which names the option.
  explicit Engine(Device device = {}, std::string_view backend = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  Device device() const;
  const std::string& backend_name() const { return name_; }
  // Whether ops have values of this type here.
  bool supports(DType values) const;
  Pool& pool() { return *pool_; }
  Backend& backend() { return *backend_; }

  // Not initialised.
  Tensor empty(const Shape& shape, DType dtype, Use use);
  Tensor zeros(const Shape& shape, DType dtype, Use use);
  template <TensorElement T>
  Tensor from(std::span<const T> values, const Shape& shape, Use use) {
    Tensor tensor = empty(shape, dtype_of<T>(), use);
    write(tensor, std::as_bytes(values));
    return tensor;
  }
  // The elements, in this machine's memory. Waits for what has to be done first.
  template <TensorElement T>
  std::vector<T> to_host(const Tensor& tensor) {
    std::vector<T> values(tensor.size());
    read(tensor, dtype_of<T>(), std::as_writable_bytes(std::span(values)));
    return values;
  }
  // Throws Error(internal) unless there are as many bytes as the tensor has.
  void write(Tensor& tensor, std::span<const std::byte> bytes);
  // Throws Error(internal) for a tensor of another type or size.
  void read(const Tensor& tensor, DType dtype, std::span<std::byte> bytes);
  // Until everything that was asked for is done.
  void synchronize();
  // CUDA's handle of the stream on which ops are started; none on CPUs, where they are done when they return.
  void* native_stream();
  // Whoever starts something on the stream that may never be done (a collective of GPUs, one of which is gone) looks after it:
  // while the engine waits for the device, look(seconds that this wait has taken) is called again and again, and what it throws
  // ends the wait. Until the result is gone.
  using Look = std::function<void(double waited)>;
  [[nodiscard]] std::shared_ptr<const Look> watch(Look look);
  // Sentences about ops that were done in a slower way than the device has for others, each once, since the last call.
  std::vector<std::string> take_notes();

 private:
  std::string name_;
  std::shared_ptr<Pool> pool_;
  std::unique_ptr<Backend> backend_;
};

}  // namespace bitloom::nn
