// The lengths of a tensor's axes, slowest first; rows are contiguous.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string>

namespace bitloom::nn {

class Shape {
 public:
  static constexpr std::size_t most_axes = 6;

  Shape() = default;  // no axes: a scalar
  // Throws Error(internal) for more than most_axes.
  Shape(std::initializer_list<std::size_t> lengths) : Shape(std::span(lengths.begin(), lengths.size())) {}
  explicit Shape(std::span<const std::size_t> lengths);

  std::size_t axes() const { return axes_; }
  std::size_t operator[](std::size_t axis) const { return lengths_[axis]; }
  std::size_t back() const { return axes_ == 0 ? 1 : lengths_[axes_ - 1]; }
  // The number of elements.
  std::size_t size() const;
  // Number of rows of length back().
  std::size_t rows() const;
  std::span<const std::size_t> lengths() const { return {lengths_.data(), axes_}; }
  Shape with(std::size_t axis, std::size_t length) const;

  friend bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::size_t, most_axes> lengths_ = {};  // 0 from axes_ on
  std::size_t axes_ = 0;
};

// "(2, 3)"
std::string to_text(const Shape& shape);

}  // namespace bitloom::nn
