#include "cli/image_sheet.h"

#include <algorithm>

#include "core/error.h"
#include "core/text.h"

namespace bitloom::cli {
namespace {

constexpr std::size_t gap = 4;
constexpr std::uint8_t background = 255;

std::size_t fitting(std::size_t columns, std::size_t cells) {
  return std::clamp<std::size_t>(columns, 1, std::max<std::size_t>(1, cells));
}

}  // namespace

void require_png(const char* option, const std::string& path) {
  const std::string extension = lower_case(std::filesystem::path(path).extension().string());
  for (const char* other : {".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".svg", ".pdf", ".tif", ".tiff", ".ppm"}) {
    if (extension == other) fail(ErrorKind::usage, "{}: {}; expected a name in .png: pictures are PNG files", option, path);
  }
}

ImageSheet::ImageSheet(std::size_t cells, std::size_t columns, std::size_t side, std::size_t images)
    : side_(side), images_(images), columns_(fitting(columns, cells)) {
  const std::size_t rows = (cells + columns_ - 1) / columns_;
  shape_ = {rows * (side + gap) + gap, columns_ * (images * side + gap) + gap, 3};
  pixels_.assign(shape_.size(), background);
}

ImageSheet ImageSheet::read(const std::filesystem::path& path, std::size_t cells, std::size_t columns, std::size_t images) {
  data::Image image = data::read_image(path);
  const std::size_t across = fitting(columns, cells);
  const std::size_t gaps = gap * (across + 1);
  const std::size_t side = image.shape.width > gaps ? (image.shape.width - gaps) / (across * images) : 0;
  ImageSheet sheet(cells, columns, side, images);
  if (side == 0 || sheet.shape_ != image.shape) {
    fail(ErrorKind::data, "{}: {} x {} pixels; expected {} square images of the same size in rows of {}", path.string(),
         image.shape.height, image.shape.width, cells * images, across * images);
  }
  sheet.pixels_ = std::move(image.pixels);
  return sheet;
}

std::size_t ImageSheet::place_of(std::size_t cell, std::size_t place, std::size_t i) const {
  const std::size_t top = cell / columns_ * (side_ + gap) + gap;
  const std::size_t left = cell % columns_ * (images_ * side_ + gap) + gap + place * side_;
  return (i % 3 * shape_.height + top + i / 3 / side_) * shape_.width + left + i / 3 % side_;
}

void ImageSheet::put(std::size_t cell, std::span<const std::uint8_t> image, std::size_t place) {
  for (std::size_t i = 0; i < image.size(); ++i) pixels_[place_of(cell, place, i)] = image[i];
}

std::vector<std::uint8_t> ImageSheet::get(std::size_t cell, std::size_t place) const {
  std::vector<std::uint8_t> image(3 * side_ * side_);
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = pixels_[place_of(cell, place, i)];
  return image;
}

}  // namespace bitloom::cli
