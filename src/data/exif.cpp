#include "data/exif.h"

#include <algorithm>
#include <cstring>

namespace bitloom::data {
namespace {

constexpr std::uint32_t orientation_tag = 0x0112, short_type = 3, tiff_version = 42;
constexpr std::uint32_t little_endian = 0x4949, big_endian = 0x4d4d;  // "II", "MM"
constexpr std::size_t entry_bytes = 12;                               // tag, type, count, value

// Numbers of a TIFF file, whose first two bytes say in which order those of a number are: "II" or "MM". 0 beyond its end.
class TiffNumbers {
 public:
  explicit TiffNumbers(std::span<const std::byte> file) : file_(file), is_big_(file.size() > 1 && file[0] == std::byte{'M'}) {}

  std::uint32_t at(std::size_t offset, std::size_t bytes) const {
    if (offset > file_.size() || file_.size() - offset < bytes) return 0;
    std::uint32_t number = 0;
    for (std::size_t i = 0; i < bytes; ++i) {
      const std::size_t place = is_big_ ? i : bytes - 1 - i;
      number = number << 8 | static_cast<std::uint32_t>(file_[offset + place]);
    }
    return number;
  }

 private:
  std::span<const std::byte> file_;
  bool is_big_;
};

}  // namespace

int exif_orientation(std::span<const std::byte> segment) {
  if (segment.size() < exif_signature.size() ||
      std::memcmp(segment.data(), exif_signature.data(), exif_signature.size()) != 0) {
    return 1;
  }
  return tiff_orientation(segment.subspan(exif_signature.size()));
}

int tiff_orientation(std::span<const std::byte> file) {
  const TiffNumbers tiff(file);
  const std::uint32_t order = tiff.at(0, 2);
  if ((order != little_endian && order != big_endian) || tiff.at(2, 2) != tiff_version) return 1;
  const std::size_t directory = tiff.at(4, 4);
  const std::size_t entries = tiff.at(directory, 2);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * entry_bytes;
    if (tiff.at(entry, 2) != orientation_tag || tiff.at(entry + 2, 2) != short_type) continue;
    const std::uint32_t orientation = tiff.at(entry + 8, 2);
    return tiff.at(entry + 4, 4) == 1 && orientation >= 1 && orientation <= 8 ? static_cast<int>(orientation) : 1;
  }
  return 1;
}

std::vector<std::uint8_t> upright(std::span<const std::uint8_t> pixels, std::size_t height, std::size_t width,
                                  std::size_t channels, int orientation) {
  // Where the first stored row and column are seen: 1 top left, 2 top right, 3 bottom right, 4 bottom left; 5 left top, 6 right
  // top, 7 right bottom, 8 left bottom.
  const bool on_its_side = is_on_its_side(orientation);
  const bool from_below = orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
  const std::size_t rows = on_its_side ? width : height, columns = on_its_side ? height : width;
  std::vector<std::uint8_t> seen(pixels.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < columns; ++c) {
      const std::size_t down = from_below ? rows - 1 - r : r, right = from_right ? columns - 1 - c : c;
      const std::size_t stored = on_its_side ? right * width + down : down * width + right;
      std::copy_n(pixels.data() + stored * channels, channels, seen.data() + (r * columns + c) * channels);
    }
  }
  return seen;
}

}  // namespace bitloom::data
