// A dense array on a device. A Tensor is a handle: copies share memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/safetensors.h"
#include "nn/device.h"
#include "nn/pool.h"
#include "nn/shape.h"

namespace bitloom::nn {

class Tensor {
 public:
  Tensor() = default;  // none
  // Not initialised. Throws as Pool::allocate() does.
  Tensor(Pool& pool, const Shape& shape, DType dtype, Use use);

  explicit operator bool() const { return memory_ != nullptr; }
  const Shape& shape() const { return shape_; }
  std::size_t size() const { return size_; }
  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return size_ * dtype_size(dtype_); }
  Device device() const { return device_; }

  // Address of the first element, in the device's memory.
  void* data() const { return memory_.get(); }
  // The elements of a tensor in this machine's memory. Throws Error(internal) if its type or device is another.
  template <TensorElement T>
  std::span<T> as() const {
    require_host(dtype_of<T>());
    return {static_cast<T*>(data()), size_};
  }

  // Whether other tensors are in the same memory.
  bool is_shared() const { return memory_.use_count() > 1; }
  // From now on all of the memory that this tensor is in is counted as being for `use`.
  void count_as(Use use) const;

  // The same memory. Throw Error(internal) if the number of elements differs, or if there are fewer rows (of the first axis).
  Tensor reshaped(const Shape& shape) const;
  Tensor slice(std::size_t begin, std::size_t end) const;

 private:
  void require_host(DType wanted) const;

  std::shared_ptr<std::byte> memory_;
  Pool* pool_ = nullptr;              // alive as long as the memory
  const std::byte* block_ = nullptr;  // the block that memory_ is in
  Shape shape_;
  std::size_t size_ = 0;
  DType dtype_ = DType::f32;
  Device device_;
};

// For messages: "f32"; "f32 (2, 3)" or "none".
std::string to_text(DType dtype);
std::string to_text(const Tensor& tensor);

}  // namespace bitloom::nn
