#include "data/image.h"

#include <algorithm>

#include "core/error.h"

namespace bitloom::data {
namespace {

// How one output row or column is made from inputs first .. first + weights.size() - 1; the weights add up to 65536.
struct Tap {
  std::size_t first = 0;
  std::vector<std::uint32_t> weights;
};

constexpr std::uint64_t one = 65536;

// Output i covers the inputs between i * in / out and (i + 1) * in / out. Positions are in units of 1 / out of an input.
Tap area_tap(std::size_t i, std::size_t in, std::size_t out) {
  const std::uint64_t begin = i * in;
  const std::uint64_t end = begin + in;
  Tap tap{begin / out, {}};
  std::uint64_t given = 0;
  for (std::uint64_t k = tap.first; k * out < end; ++k) {
    // Rounding the running sum, not each weight, makes the total exact.
    const std::uint64_t covered = std::min<std::uint64_t>((k + 1) * out, end) - begin;
    const std::uint64_t sum = (covered * one + in / 2) / in;
    tap.weights.push_back(static_cast<std::uint32_t>(sum - given));
    given = sum;
  }
  return tap;
}

// Output i lies at (i + 1/2) * in / out - 1/2 between input centres, clamped to the first and the last of them.
Tap linear_tap(std::size_t i, std::size_t in, std::size_t out) {
  const auto unit = static_cast<std::int64_t>(2 * out);
  const std::int64_t last = static_cast<std::int64_t>(in - 1) * unit;
  const std::int64_t position =
      std::clamp(static_cast<std::int64_t>((2 * i + 1) * in) - static_cast<std::int64_t>(out), std::int64_t{0}, last);
  Tap tap{static_cast<std::size_t>(position / unit), {}};
  const auto right = static_cast<std::uint32_t>((position % unit * static_cast<std::int64_t>(one) + unit / 2) / unit);
  tap.weights.push_back(static_cast<std::uint32_t>(one) - right);
  if (right != 0) tap.weights.push_back(right);
  return tap;
}

std::vector<Tap> make_taps(std::size_t in, std::size_t out) {
  std::vector<Tap> taps;
  taps.reserve(out);
  for (std::size_t i = 0; i < out; ++i) taps.push_back(out < in ? area_tap(i, in, out) : linear_tap(i, in, out));
  return taps;
}

}  // namespace

Image resize(const Image& image, std::size_t height, std::size_t width) {
  const auto [in_height, in_width, channels] = image.shape;
  constexpr std::size_t side_limit = std::size_t{1} << 20;  // keeps in * out * 65536 below 2^64
  if (height == 0 || width == 0 || height > side_limit || width > side_limit)
    fail(ErrorKind::usage, "image size {} x {}: expected 1 to {} on a side", height, width, side_limit);
  if (image.shape.size() == 0 || image.pixels.size() != image.shape.size() || in_height > side_limit || in_width > side_limit)
    fail(ErrorKind::usage, "an image of {} x {} x {} with {} bytes cannot be resized", channels, in_height, in_width,
         image.pixels.size());
  if (height == in_height && width == in_width) return image;

  Image result{{height, width, channels}, std::vector<std::uint8_t>(height * width * channels)};
  const std::vector<Tap> across = make_taps(in_width, width);
  const std::vector<Tap> down = make_taps(in_height, height);
  // Between the passes values have 8 bits after the point: at most 255 * 256.
  std::vector<std::uint16_t> rows(in_height * width);
  for (std::size_t c = 0; c < channels; ++c) {
    const std::uint8_t* in = image.pixels.data() + c * in_height * in_width;
    for (std::size_t y = 0; y < in_height; ++y) {
      for (std::size_t x = 0; x < width; ++x) {
        std::uint32_t sum = 128;
        const std::uint8_t* from = in + y * in_width + across[x].first;
        for (const std::uint32_t weight : across[x].weights) sum += weight * *from++;
        rows[y * width + x] = static_cast<std::uint16_t>(sum >> 8);
      }
    }
    std::uint8_t* out = result.pixels.data() + c * height * width;
    for (std::size_t y = 0; y < height; ++y) {
      for (std::size_t x = 0; x < width; ++x) {
        std::uint32_t sum = 1U << 23;  // with 255 * 256 * 65536 still below 2^32
        const std::uint16_t* from = rows.data() + down[y].first * width + x;
        for (const std::uint32_t weight : down[y].weights) {
          sum += weight * *from;
          from += width;
        }
        out[y * width + x] = static_cast<std::uint8_t>(sum >> 24);
      }
    }
  }
  return result;
}

Part middle_part(const ImageShape& picture, std::size_t height, std::size_t width) {
  Part part{0, 0, picture.height, picture.width};
  if (picture.width * height > picture.height * width) {
    part.width = std::max<std::size_t>(1, picture.height * width / height);
  } else {
    part.height = std::max<std::size_t>(1, picture.width * height / width);
  }
  part.top = (picture.height - part.height) / 2;
  part.left = (picture.width - part.width) / 2;
  return part;
}

Image part_of(const Image& image, const Part& part) {
  const auto [height, width, channels] = image.shape;
  if (part.height == height && part.width == width) return image;
  Image cut{{part.height, part.width, channels}, std::vector<std::uint8_t>(part.height * part.width * channels)};
  std::uint8_t* out = cut.pixels.data();
  for (std::size_t c = 0; c < channels; ++c) {
    for (std::size_t y = 0; y < part.height; ++y, out += part.width)
      std::copy_n(image.pixels.data() + (c * height + part.top + y) * width + part.left, part.width, out);
  }
  return cut;
}

Image fit(const Image& image, std::size_t height, std::size_t width) {
  const Part part = middle_part(image.shape, height, width);
  // A large picture is not copied first.
  if (part.height == image.shape.height && part.width == image.shape.width) return resize(image, height, width);
  return resize(part_of(image, part), height, width);
}

}  // namespace bitloom::data
