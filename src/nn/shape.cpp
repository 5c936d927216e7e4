#include "nn/shape.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"

namespace bitloom::nn {

Shape::Shape(std::span<const std::size_t> lengths) : axes_(lengths.size()) {
  if (lengths.size() > most_axes) fail(ErrorKind::internal, "shape: {} axes; expected at most {}", lengths.size(), most_axes);
  std::copy(lengths.begin(), lengths.end(), lengths_.begin());
}

std::size_t Shape::size() const {
  std::size_t size = 1;
  for (const std::size_t length : lengths()) {
    if (__builtin_mul_overflow(size, length, &size)) fail(ErrorKind::usage, "shape {}: too many elements", to_text(*this));
  }
  return size;
}

std::size_t Shape::rows() const {
  std::size_t rows = 1;
  for (std::size_t axis = 0; axis + 1 < axes_; ++axis) rows *= lengths_[axis];
  return rows;
}

Shape Shape::with(std::size_t axis, std::size_t length) const {
  if (axis >= axes_) fail(ErrorKind::internal, "shape {}: no axis {}", to_text(*this), axis);
  Shape changed = *this;
  changed.lengths_[axis] = length;
  return changed;
}

std::string to_text(const Shape& shape) { return fmt::format("({})", fmt::join(shape.lengths(), ", ")); }

}  // namespace bitloom::nn
