#include "nn/tensor.h"

#include "core/error.h"

namespace bitloom::nn {

Tensor::Tensor(Pool& pool, const Shape& shape, DType dtype, Use use)
    : memory_(pool.allocate(shape.size() * dtype_size(dtype), use)),
      pool_(&pool),
      block_(memory_.get()),
      shape_(shape),
      size_(shape.size()),
      dtype_(dtype),
      device_(pool.device()) {}

void Tensor::count_as(Use use) const {
  if (pool_ != nullptr) pool_->count_as(block_, use);
}

Tensor Tensor::reshaped(const Shape& shape) const {
  if (shape.size() != size_) fail(ErrorKind::internal, "tensor {} cannot be seen as {}", to_text(*this), to_text(shape));
  Tensor other = *this;
  other.shape_ = shape;
  return other;
}

Tensor Tensor::slice(std::size_t begin, std::size_t end) const {
  if (shape_.axes() == 0 || begin > end || end > shape_[0]) {
    fail(ErrorKind::internal, "tensor {} has no rows {} to {}", to_text(*this), begin, end);
  }
  const std::size_t each = shape_[0] == 0 ? 0 : size_ / shape_[0];
  Tensor part = *this;
  part.shape_ = shape_.with(0, end - begin);
  part.size_ = (end - begin) * each;
  part.memory_ = std::shared_ptr<std::byte>(memory_, memory_.get() + begin * each * dtype_size(dtype_));
  return part;
}

void Tensor::require_host(DType wanted) const {
  if (memory_ == nullptr || dtype_ != wanted || device_.kind != Device::Kind::cpu) {
    fail(ErrorKind::internal, "tensor {} on {} is read as {} in this machine's memory", to_text(*this), name_of(device_),
         to_text(wanted));
  }
}

std::string to_text(DType dtype) {
  std::string name(dtype_name(dtype));
  for (char& c : name) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  return name;
}

std::string to_text(const Tensor& tensor) { return tensor ? to_text(tensor.dtype()) + " " + to_text(tensor.shape()) : "none"; }

}  // namespace bitloom::nn
