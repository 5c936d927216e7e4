#include "cli/image_sheet.h"

#include <algorithm>

namespace bitloom::cli {
namespace {

constexpr std::size_t gap = 4;
constexpr std::uint8_t background = 255;

}  // namespace

ImageSheet::ImageSheet(std::size_t cells, std::size_t columns, std::size_t side, std::size_t images)
    : side_(side), images_(images), columns_(std::clamp<std::size_t>(columns, 1, std::max<std::size_t>(1, cells))) {
  const std::size_t rows = (cells + columns_ - 1) / columns_;
  shape_ = {rows * (side + gap) + gap, columns_ * (images * side + gap) + gap, 3};
  pixels_.assign(shape_.size(), background);
}

void ImageSheet::put(std::size_t cell, std::span<const std::uint8_t> image, std::size_t place) {
  const std::size_t top = cell / columns_ * (side_ + gap) + gap;
  const std::size_t left = cell % columns_ * (images_ * side_ + gap) + gap + place * side_;
  for (std::size_t i = 0; i < image.size(); ++i) {
    const std::size_t y = top + i / 3 / side_;
    const std::size_t x = left + i / 3 % side_;
    pixels_[(i % 3 * shape_.height + y) * shape_.width + x] = image[i];
  }
}

}  // namespace bitloom::cli
