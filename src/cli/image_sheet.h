// A picture of images in rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/image.h"

namespace bitloom::cli {

// Throws Error(usage) for a name that says that a picture is of another format.
void require_png(const char* option, const std::string& path);

// Cells of `images` images side by side, `columns` cells to a row, a gap around each.
class ImageSheet {
 public:
  ImageSheet(std::size_t cells, std::size_t columns, std::size_t side, std::size_t images = 1);
  // From a file of one with these numbers, for images of any size. Throws Error(data).
  static ImageSheet read(const std::filesystem::path& path, std::size_t cells, std::size_t columns, std::size_t images);

  std::size_t side() const { return side_; }
  // image (side,side,3): place `place` of a cell.
  void put(std::size_t cell, std::span<const std::uint8_t> image, std::size_t place = 0);
  std::vector<std::uint8_t> get(std::size_t cell, std::size_t place = 0) const;
  // A PNG file. Throws an io error.
  void write(const std::filesystem::path& path) const { data::write_png(pixels_, shape_, path); }

 private:
  // Place in pixels_ of number i of an image.
  std::size_t place_of(std::size_t cell, std::size_t place, std::size_t i) const;

  std::size_t side_, images_, columns_;
  data::ImageShape shape_;
  std::vector<std::uint8_t> pixels_;
};

}  // namespace bitloom::cli
