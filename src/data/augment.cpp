#include "data/augment.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/suggest.h"
#include "core/text.h"

namespace bitloom::data {
namespace {

// An option with a number: how it is written, what it sets, the number meant by the bare name (0: must be given).
struct NumberOption {
  const char* name;
  int Augment::*field;
  int bare;
  int limit;
};

constexpr auto number_options = std::to_array<NumberOption>({{"crop", &Augment::crop_padding, 4, 64},
                                                             {"contrast", &Augment::contrast, 0, 100},
                                                             {"brightness", &Augment::brightness, 0, 255},
                                                             {"colour", &Augment::colour, 0, 255},
                                                             {"cutout", &Augment::cutout, 8, 1024}});

void apply_option(const std::string& word, Augment& result) {
  const std::size_t letters = std::min(word.find_first_of("-+0123456789"), word.size());
  const std::string name = word.substr(0, letters);
  const std::string number = word.substr(letters);
  if (word == "none") fail(ErrorKind::usage, "augmentation 'none' among others; expected it alone");
  if ((name == "flip" || name == "alternating") && number.empty()) {
    bool& wanted = name == "flip" ? result.flip : result.alternating;
    if (wanted) fail(ErrorKind::usage, "augmentation '{}' is given twice", name);
    wanted = true;
    if (result.flip && result.alternating) fail(ErrorKind::usage, "augmentations 'flip' and 'alternating' exclude each other");
    return;
  }
  const auto option = std::find_if(number_options.begin(), number_options.end(),
                                   [&](const NumberOption& candidate) { return name == candidate.name; });
  if (option == number_options.end()) {
    std::vector<std::string> known{"none", "flip", "alternating"};
    for (const NumberOption& each : number_options) known.emplace_back(each.name);
    fail(ErrorKind::usage, "unknown augmentation '{}'{}", word, did_you_mean(name, known));
  }
  int& field = result.*option->field;
  if (field != 0) fail(ErrorKind::usage, "augmentation '{}' is given twice", name);
  const auto value = number.empty() ? option->bare : parse_int(number).value_or(0);
  if (value < 1 || value > option->limit)
    fail(ErrorKind::usage, "augmentation '{}': expected a number from 1 to {} after '{}'", word, option->limit, name);
  field = static_cast<int>(value);
}

// Uniform in -range .. range; always one draw, so that options do not shift each other's numbers.
int draw_around_zero(Random& random, int range) {
  return static_cast<int>(random.below(static_cast<std::uint32_t>(2 * range + 1))) - range;
}

Shift draw_shift(const Augment& options, Random& random) {
  const int down = draw_around_zero(random, options.crop_padding);
  return {down, draw_around_zero(random, options.crop_padding)};
}

// Index i of a row of n, reflected at both ends without repeating them; -n < i < 2n - 1.
std::ptrdiff_t reflect(std::ptrdiff_t i, std::ptrdiff_t n) {
  if (i < 0) return -i;
  return i < n ? i : 2 * n - 2 - i;
}

// Rounded to nearest; `count` > 0.
int mean_of(const std::uint8_t* values, std::size_t count) {
  std::uint64_t sum = count / 2;
  for (std::size_t i = 0; i < count; ++i) sum += values[i];
  return static_cast<int>(sum / count);
}

void shift_planes(const std::uint8_t* in, const ImageShape& shape, int down, int across, bool flip, std::uint8_t* out) {
  const auto height = static_cast<std::ptrdiff_t>(shape.height);
  const auto width = static_cast<std::ptrdiff_t>(shape.width);
  const std::ptrdiff_t begin = std::max<std::ptrdiff_t>(0, -across);  // columns begin .. end - 1 come from within the row
  const std::ptrdiff_t end = std::min<std::ptrdiff_t>(width, width - across);
  for (std::size_t c = 0; c < shape.channels; ++c) {
    const std::uint8_t* plane = in + c * shape.height * shape.width;
    for (std::ptrdiff_t y = 0; y < height; ++y, out += width) {
      const std::uint8_t* row = plane + reflect(y + down, height) * width;
      for (std::ptrdiff_t x = 0; x < begin; ++x) out[x] = row[reflect(x + across, width)];
      std::memcpy(out + begin, row + begin + across, static_cast<std::size_t>(end - begin));
      for (std::ptrdiff_t x = end; x < width; ++x) out[x] = row[reflect(x + across, width)];
      if (flip) std::reverse(out, out + width);
    }
  }
}

// Contrast (in percent, around `centre`) and an added constant, on one plane.
void adjust(std::uint8_t* plane, std::size_t count, int centre, int percent, int added) {
  std::array<std::uint8_t, 256> table;
  for (int value = 0; value < 256; ++value) {
    const int scaled = (value - centre) * percent;
    const int rounded = scaled >= 0 ? (scaled + 50) / 100 : -((50 - scaled) / 100);
    table[static_cast<std::size_t>(value)] = static_cast<std::uint8_t>(std::clamp(centre + rounded + added, 0, 255));
  }
  for (std::size_t i = 0; i < count; ++i) plane[i] = table[plane[i]];
}

// Sets the part of a square of `side` around (y, x) that lies in the image to the mean of each channel.
void cut_out(std::uint8_t* image, const ImageShape& shape, int side, int y, int x) {
  const auto top = static_cast<std::size_t>(std::max(0, y - side / 2));
  const auto left = static_cast<std::size_t>(std::max(0, x - side / 2));
  const std::size_t bottom = std::min(shape.height, static_cast<std::size_t>(y - side / 2 + side));
  const std::size_t right = std::min(shape.width, static_cast<std::size_t>(x - side / 2 + side));
  for (std::size_t c = 0; c < shape.channels; ++c) {
    std::uint8_t* plane = image + c * shape.height * shape.width;
    const int mean = mean_of(plane, shape.height * shape.width);
    for (std::size_t row = top; row < bottom; ++row) std::memset(plane + row * shape.width + left, mean, right - left);
  }
}

}  // namespace

Augment parse_augment(const std::string& text) {
  Augment result;
  if (trim(text) == "none") return result;
  for (const std::string& word : split(text, ',')) apply_option(word, result);
  return result;
}

std::string to_string(const Augment& augment) {
  std::vector<std::string> words;
  if (augment.crop_padding != 0) words.push_back(fmt::format("crop{}", augment.crop_padding));
  if (augment.flip) words.emplace_back("flip");
  if (augment.alternating) words.emplace_back("alternating");
  for (const NumberOption& option : number_options) {
    if (option.field != &Augment::crop_padding && augment.*option.field != 0)
      words.push_back(fmt::format("{}{}", option.name, augment.*option.field));
  }
  return words.empty() ? "none" : fmt::format("{}", fmt::join(words, ","));
}

void check_augment(const Augment& options, const ImageShape& shape) {
  if (static_cast<std::size_t>(options.crop_padding) >= std::min(shape.height, shape.width))
    fail(ErrorKind::usage, "augmentation 'crop{}' needs images of more than {} x {} pixels, these have {} x {}",
         options.crop_padding, options.crop_padding, options.crop_padding, shape.height, shape.width);
}

bool is_mirrored(std::uint64_t seed, std::size_t index, std::uint64_t epoch) {
  return (Random(seed, Stream::image_flip, 0, index).below(2) == 1) != (epoch % 2 == 1);
}

Shift drawn_shift(const Augment& options, Random random) { return draw_shift(options, random); }

void augment(std::span<const std::uint8_t> image, const ImageShape& shape, const Augment& options, Random random,
             std::uint8_t* out, bool mirrored) {
  if (image.size() != shape.size() || image.empty())
    fail(ErrorKind::usage, "augment: an image of {} bytes, expected {} x {} x {}", image.size(), shape.channels, shape.height,
         shape.width);
  check_augment(options, shape);
  const auto [down, across] = draw_shift(options, random);
  const bool drawn = random.below(2) == 1;
  const bool flip = options.alternating ? mirrored : options.flip && drawn;
  const int percent = 100 + draw_around_zero(random, options.contrast);
  const int brightness = draw_around_zero(random, options.brightness);
  const auto cut_y = static_cast<int>(random.below(static_cast<std::uint32_t>(shape.height)));
  const auto cut_x = static_cast<int>(random.below(static_cast<std::uint32_t>(shape.width)));

  shift_planes(image.data(), shape, down, across, flip, out);
  if (options.contrast != 0 || options.brightness != 0 || options.colour != 0) {
    const int centre = mean_of(out, shape.size());
    const std::size_t plane = shape.height * shape.width;
    for (std::size_t c = 0; c < shape.channels; ++c)
      adjust(out + c * plane, plane, centre, percent, brightness + draw_around_zero(random, options.colour));
  }
  if (options.cutout != 0) cut_out(out, shape, options.cutout, cut_y, cut_x);
}

void shift(std::span<const std::uint8_t> image, const ImageShape& shape, int down, int across, bool flip, std::uint8_t* out) {
  const auto least = static_cast<int>(std::min(shape.height, shape.width));
  if (image.size() != shape.size() || std::abs(down) >= least || std::abs(across) >= least) {
    fail(ErrorKind::usage, "shift: an image of {} bytes by {} and {}, expected {} x {} x {} and less than {}", image.size(),
         down, across, shape.channels, shape.height, shape.width, least);
  }
  shift_planes(image.data(), shape, down, across, flip, out);
}

}  // namespace bitloom::data
