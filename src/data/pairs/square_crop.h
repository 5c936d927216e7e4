// Square parts of images, as Ramesh et al. (2021) cut them: listings 1 (the discrete VAE) and 2 (the transformer) of their
// appendices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/random.h"
#include "data/image.h"

namespace bitloom::data {

// A square of the image, resized, of which another square is the result.
struct SquareCrop {
  std::size_t top = 0, left = 0, side = 0;    // within the image
  std::size_t resized = 0;                    // side after resizing
  std::size_t inner_top = 0, inner_left = 0;  // of `target` x `target` pixels within the resized square
  bool flip = false;                          // mirrored left-right at the end
  bool operator==(const SquareCrop&) const = default;
};

// With s = min(height, width) and t = target:
//   centre       the central s x s, resized to t: evaluation
//   dvae         s x s anywhere, resized to a side from min(s, 9/8 t) to min(s, 12/8 t), of it t x t anywhere; every second one
//                mirrored
//   transformer  s x s at 3/8 to 5/8 of what is left over along each axis, resized to a side from t to min(s, 9/8 t), of it
//                t x t anywhere; never mirrored, since images may contain text
// An image with s < t, which the listings do not treat, is enlarged to t.
enum class CropKind : std::uint8_t { centre, dvae, transformer };
std::vector<std::string> crop_names();
// Throws Error(usage) that names the field `crop`.
CropKind parse_crop(const std::string& name);

// The crop of an image of height x width pixels for a result of target x target, all > 0. A function of its arguments: key
// `random` by (seed, Stream::augment, epoch, example).
SquareCrop draw_crop(CropKind kind, std::size_t height, std::size_t width, std::size_t target, Random random);

// Whether crops of an image of that size may differ from one another in more than mirroring.
bool crops_vary(CropKind kind, std::size_t height, std::size_t width, std::size_t target);

// 3 x target x target. Throws Error(usage) for a crop that does not lie in the image.
Image cut(const Image& image, const SquareCrop& crop, std::size_t target);

}  // namespace bitloom::data
