// How a camera was held, from what it wrote into a picture's file (Exif 2.32, CIPA DC-008; TIFF 6.0 for its layout).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace bitloom::data {

inline constexpr std::string_view exif_signature{"Exif\0\0", 6};

// Tag 0x0112, "Orientation": 1 to 8; 1, upright, where there is none or the data are damaged. `segment`: of a JPEG file, its
// segment APP1, which begins with exif_signature.
int exif_orientation(std::span<const std::byte> segment);
// The same of what follows that signature, which a PNG file has in its chunk eXIf (PNG 1.5 extensions).
int tiff_orientation(std::span<const std::byte> file);

// Whether pictures of that orientation are stored on their side.
constexpr bool is_on_its_side(int orientation) { return orientation >= 5; }

// pixels: height x width of `channels` bytes each, as they are stored. As they are to be seen: width x height if they are on
// their side.
std::vector<std::uint8_t> upright(std::span<const std::uint8_t> pixels, std::size_t height, std::size_t width,
                                  std::size_t channels, int orientation);

}  // namespace bitloom::data
