#include "data/pairs/square_crop.h"

#include <algorithm>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"

namespace bitloom::data {
namespace {

// Uniform in low .. high.
std::size_t between(Random& random, std::size_t low, std::size_t high) {
  return low + random.below(static_cast<std::uint32_t>(high - low + 1));
}

// eighths / 8, halves to the even neighbour, as Python's round() in the listings.
std::size_t round_eighths(std::size_t eighths) {
  const std::size_t whole = eighths / 8, rest = eighths % 8;
  return whole + (rest > 4 || (rest == 4 && whole % 2 == 1) ? 1 : 0);
}

void draw_inner(SquareCrop& crop, std::size_t target, Random& random) {
  crop.inner_top = between(random, 0, crop.resized - target);
  crop.inner_left = between(random, 0, crop.resized - target);
}

SquareCrop centre_crop(std::size_t height, std::size_t width, std::size_t target, Random&) {
  const std::size_t side = std::min(height, width);
  return {(height - side) / 2, (width - side) / 2, side, target, 0, 0, false};
}

SquareCrop dvae_crop(std::size_t height, std::size_t width, std::size_t target, Random& random) {
  SquareCrop crop;
  crop.side = std::min(height, width);
  crop.top = between(random, 0, height - crop.side);
  crop.left = between(random, 0, width - crop.side);
  const std::size_t low = std::max(target, std::min(crop.side, round_eighths(9 * target)));
  const std::size_t high = std::max(target, std::min(crop.side, round_eighths(12 * target)));
  crop.resized = between(random, low, high);
  draw_inner(crop, target, random);
  crop.flip = random.below(2) == 1;
  return crop;
}

// At least 3/8 of what is left over, and below 5/8 of it.
std::size_t middle_offset(std::size_t left_over, Random& random) {
  const std::size_t low = 3 * left_over / 8;
  const std::size_t end = std::max(low + 1, 5 * left_over / 8);
  return between(random, low, end - 1);
}

SquareCrop transformer_crop(std::size_t height, std::size_t width, std::size_t target, Random& random) {
  SquareCrop crop;
  crop.side = std::min(height, width);
  crop.top = middle_offset(height - crop.side, random);
  crop.left = middle_offset(width - crop.side, random);
  crop.resized = between(random, target, std::max(target, std::min(crop.side, round_eighths(9 * target))));
  draw_inner(crop, target, random);
  return crop;
}

struct NamedCrop {
  const char* name;
  CropKind kind;
  SquareCrop (*draw)(std::size_t height, std::size_t width, std::size_t target, Random& random);
};
constexpr NamedCrop crops[] = {{"centre", CropKind::centre, &centre_crop},
                               {"dvae", CropKind::dvae, &dvae_crop},
                               {"transformer", CropKind::transformer, &transformer_crop}};

}  // namespace

std::vector<std::string> crop_names() { return names_of(crops); }

CropKind parse_crop(const std::string& name) { return find_named(crops, name, marked_field("crop")).kind; }

bool crops_vary(CropKind kind, std::size_t height, std::size_t width, std::size_t target) {
  return kind != CropKind::centre && (height != width || height > target);
}

SquareCrop draw_crop(CropKind kind, std::size_t height, std::size_t width, std::size_t target, Random random) {
  if (height == 0 || width == 0 || target == 0)
    fail(ErrorKind::usage, "a crop of {} pixels from {} x {}: expected at least 1", target, width, height);
  return std::find_if(std::begin(crops), std::end(crops), [&](const NamedCrop& each) { return each.kind == kind; })
      ->draw(height, width, target, random);
}

Image cut(const Image& image, const SquareCrop& crop, std::size_t target) {
  const auto [height, width, channels] = image.shape;
  if (crop.side == 0 || crop.top + crop.side > height || crop.left + crop.side > width ||
      std::max(crop.inner_top, crop.inner_left) + target > crop.resized) {
    fail(ErrorKind::usage,
         "a square of {} pixels at row {}, column {}, resized to {}, of it {} at {} and {}: not within {} x {}", crop.side,
         crop.top, crop.left, crop.resized, target, crop.inner_top, crop.inner_left, width, height);
  }
  const Image square = resize(part_of(image, {crop.top, crop.left, crop.side, crop.side}), crop.resized, crop.resized);
  Image result = part_of(square, {crop.inner_top, crop.inner_left, target, target});
  for (std::size_t row = 0; crop.flip && row < channels * target; ++row) {
    const auto begin = result.pixels.begin() + static_cast<std::ptrdiff_t>(row * target);
    std::reverse(begin, begin + static_cast<std::ptrdiff_t>(target));
  }
  return result;
}

}  // namespace bitloom::data
