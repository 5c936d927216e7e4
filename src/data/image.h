// One picture: reading PNG and JPEG, writing PNG, cutting and resizing. Integer arithmetic only, so that every machine sees the
// same bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace bitloom::data {

struct Image {
  ImageShape shape;
  std::vector<std::uint8_t> pixels;  // channels x height x width (planar)
};

// Reads a PNG or JPEG file (told apart by its first bytes, not by its name) as 3 channels (RGB) or 1 (grey); `channels`
// must be one of these. Transparency is laid over black, photographs are turned upright as their camera says (exif.h). Throws a
// data error that names the file and what is wrong with it.
Image read_image(const std::filesystem::path& path, std::size_t channels = 3);

// Height, width and 3 channels of a picture, from the head of its file, which is walked to its end marker; `name` stands for it
// in messages. Throws what read_image() throws but for pixels that are damaged.
ImageShape image_shape(std::span<const std::byte> file, const std::string& name);

// True if the file name ends in .png, .jpg or .jpeg, in any case.
bool is_image_name(const std::filesystem::path& path);

// Area average where the picture shrinks, bilinear where it grows, each axis by itself; the aspect ratio is not kept.
// height, width > 0. Returns a copy if the size is right already.
Image resize(const Image& image, std::size_t height, std::size_t width);

// A rectangle of a picture.
struct Part {
  std::size_t top = 0, left = 0, height = 0, width = 0;
  bool operator==(const Part&) const = default;
};

// The part in the middle of a picture that has the proportions of height x width, as large as it fits in, to the pixel below;
// at least one pixel. All sizes > 0.
Part middle_part(const ImageShape& picture, std::size_t height, std::size_t width);

// The pixels of a part that lies in the picture.
Image part_of(const Image& image, const Part& part);

// Picture of any size as nets get it: the part in its middle that has their proportions, resized.
Image fit(const Image& image, std::size_t height, std::size_t width);

// Writes an 8-bit PNG; shape.channels is 1 or 3, pixels are channels x height x width. Throws an io error.
void write_png(std::span<const std::uint8_t> pixels, const ImageShape& shape, const std::filesystem::path& path);

}  // namespace bitloom::data
