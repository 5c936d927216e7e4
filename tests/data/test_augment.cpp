#include "data/augment.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

constexpr ImageShape small{9, 11, 2};
constexpr std::uint8_t guard = 0xa5;

std::vector<std::uint8_t> noise(const ImageShape& shape) {
  std::vector<std::uint8_t> image(shape.size());
  Random random(1, Stream::test);
  for (std::uint8_t& pixel : image) pixel = static_cast<std::uint8_t>(random.below(256));
  return image;
}

// One augmented copy; bytes around the output are checked to be untouched.
std::vector<std::uint8_t> changed(const std::vector<std::uint8_t>& image, const ImageShape& shape, const Augment& options,
                                  std::uint64_t index) {
  std::vector<std::uint8_t> out(shape.size() + 128, guard);
  augment(image, shape, options, Random(3, Stream::augment, 0, index), out.data() + 64);
  for (std::size_t i = 0; i < 64; ++i) {
    REQUIRE(out[i] == guard);
    REQUIRE(out[64 + shape.size() + i] == guard);
  }
  return {out.begin() + 64, out.begin() + 64 + static_cast<std::ptrdiff_t>(shape.size())};
}

// The definition, pixel by pixel: shifted, reflected without repeating the border, perhaps mirrored.
std::vector<std::uint8_t> shifted(const std::vector<std::uint8_t>& image, const ImageShape& shape, int down, int across,
                                  bool flip) {
  const auto height = static_cast<int>(shape.height);
  const auto width = static_cast<int>(shape.width);
  const auto reflect = [](int i, int n) { return i < 0 ? -i : (i >= n ? 2 * (n - 1) - i : i); };
  std::vector<std::uint8_t> out;
  for (int c = 0; c < static_cast<int>(shape.channels); ++c) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const int from = flip ? width - 1 - x : x;
        out.push_back(
            image[static_cast<std::size_t>((c * height + reflect(y + down, height)) * width + reflect(from + across, width))]);
      }
    }
  }
  return out;
}

}  // namespace

TEST_CASE("crop and flip reach every offset about equally often, and nothing else") {
  const auto image = noise(small);
  const Augment options{.crop_padding = 3, .flip = true};
  std::map<std::vector<std::uint8_t>, int> seen;
  constexpr int draws = 9800;  // 100 for each of the 7 x 7 x 2 results
  for (int i = 0; i < draws; ++i) ++seen[changed(image, small, options, static_cast<std::uint64_t>(i))];
  CHECK(seen.size() == 98);
  int flipped = 0;
  for (int down = -3; down <= 3; ++down) {
    for (int across = -3; across <= 3; ++across) {
      for (const bool flip : {false, true}) {
        const auto found = seen.find(shifted(image, small, down, across, flip));
        REQUIRE(found != seen.end());
        CHECK(found->second > 55);  // 4.5 standard deviations
        CHECK(found->second < 145);
        flipped += flip ? found->second : 0;
      }
    }
  }
  CHECK(flipped > draws / 2 - 250);
  CHECK(flipped < draws / 2 + 250);
}

TEST_CASE("augmentation is a function of its key, and none changes nothing") {
  const auto image = noise(small);
  const Augment all = parse_augment("crop4,flip,contrast20,brightness30,colour10,cutout5");
  CHECK(changed(image, small, all, 5) == changed(image, small, all, 5));
  CHECK(changed(image, small, all, 5) != changed(image, small, all, 6));
  CHECK(changed(image, small, Augment{}, 5) == image);
  // Switching one kind on does not move the draws of another.
  const auto crop = changed(image, small, {.crop_padding = 2}, 9);
  const auto crop_and_cutout = changed(image, small, {.crop_padding = 2, .cutout = 3}, 9);
  std::size_t same = 0;
  for (std::size_t i = 0; i < crop.size(); ++i) same += crop[i] == crop_and_cutout[i];
  CHECK(same >= crop.size() - 2 * 9);
}

TEST_CASE("alternating flips mirror an image in every second epoch, and move no other draw") {
  const auto image = noise(small);
  std::size_t at_first = 0;
  for (std::size_t index = 0; index < 400; ++index) {
    at_first += is_mirrored(1, index, 0) ? 1U : 0U;
    CHECK(is_mirrored(1, index, 0) != is_mirrored(1, index, 1));
    CHECK(is_mirrored(1, index, 7) == is_mirrored(1, index, 1));
  }
  CHECK(at_first > 140);
  CHECK(at_first < 260);
  std::vector<std::uint8_t> out(image.size()), mirror(image.size());
  for (std::uint64_t n = 0; n < 20; ++n) {
    const Random random(3, Stream::augment, 0, n);
    const auto crop = changed(image, small, {.crop_padding = 2}, n);
    augment(image, small, {.crop_padding = 2, .alternating = true}, random, out.data(), false);
    CHECK(out == crop);
    shift(crop, small, 0, 0, true, mirror.data());
    augment(image, small, {.crop_padding = 2, .alternating = true}, random, out.data(), true);
    CHECK(out == mirror);
    augment(image, small, {.crop_padding = 2}, random, out.data(), true);  // nobody asked for flips
    CHECK(out == crop);
  }
}

TEST_CASE("cutout sets one square per channel to the mean and reaches every pixel") {
  const ImageShape shape{16, 12, 3};
  // Two values whose mean is neither.
  std::vector<std::uint8_t> image(shape.size());
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = i % 2 == 0 ? 10 : 30;
  for (const int side : {1, 4, 5, 40}) {
    std::vector<int> hits(16 * 12);
    std::size_t whole = 0;
    constexpr std::size_t draws = 2000;
    for (std::uint64_t n = 0; n < draws; ++n) {
      const auto out = changed(image, shape, {.cutout = side}, n);
      std::size_t cut = 0;
      for (std::size_t p = 0; p < 192; ++p) {
        REQUIRE((out[p] == image[p] || out[p] == 20));
        for (std::size_t c = 1; c < 3; ++c) REQUIRE((out[c * 192 + p] == 20) == (out[p] == 20));
        hits[p] += out[p] == 20;
        cut += out[p] == 20;
      }
      REQUIRE(cut >= static_cast<std::size_t>(std::min((side + 1) / 2, 16) * std::min((side + 1) / 2, 12)));
      REQUIRE(cut <= static_cast<std::size_t>(std::min(side, 16) * std::min(side, 12)));
      whole += cut == static_cast<std::size_t>(std::min(side, 16) * std::min(side, 12));
    }
    CHECK(std::all_of(hits.begin(), hits.end(), [](int count) { return count > 0; }));
    CHECK(whole > draws / 3);
  }
}

TEST_CASE("contrast, brightness and colour stay within their ranges and the bytes' range") {
  const ImageShape shape{8, 8, 3};
  std::vector<std::uint8_t> image(shape.size());
  for (std::size_t i = 0; i < image.size(); ++i) image[i] = i % 2 == 0 ? 100 : 140;
  int low = 255, high = 0;
  for (std::uint64_t n = 0; n < 500; ++n) {
    const auto out = changed(image, shape, {.brightness = 10}, n);
    const int moved = out[0] - 100;
    for (std::size_t i = 0; i < out.size(); ++i) REQUIRE(out[i] == image[i] + moved);
    low = std::min(low, moved);
    high = std::max(high, moved);
  }
  CHECK(low == -10);
  CHECK(high == 10);
  int least = 255, most = 0;
  for (std::uint64_t n = 0; n < 500; ++n) {
    const auto out = changed(image, shape, {.contrast = 50}, n);
    REQUIRE(out[0] + out[1] == 240);  // around the mean of 120
    least = std::min(least, out[1] - out[0]);
    most = std::max(most, out[1] - out[0]);
  }
  CHECK(least == 20);
  CHECK(most == 60);
  bool channels_differ = false;
  for (std::uint64_t n = 0; n < 100; ++n) {
    const auto out = changed(image, shape, {.colour = 5}, n);
    for (std::size_t i = 0; i < out.size(); ++i) REQUIRE(std::abs(out[i] - image[i]) <= 5);
    channels_differ = channels_differ || out[0] != out[64];
  }
  CHECK(channels_differ);
  const auto extreme = noise(shape);
  for (std::uint64_t n = 0; n < 100; ++n) {
    const auto out = changed(extreme, shape, {.brightness = 255}, n);
    // Clamped, not wrapped: the order of pixels is kept.
    for (std::size_t i = 1; i < out.size(); ++i)
      REQUIRE((extreme[i] >= extreme[i - 1] ? out[i] >= out[i - 1] : out[i] <= out[i - 1]));
  }
}

TEST_CASE("shifting and mirroring are what the definition says, and are refused beyond the image") {
  const std::vector<std::uint8_t> image = noise(small);
  std::vector<std::uint8_t> out(image.size());
  const int least = static_cast<int>(std::min(small.height, small.width));
  for (int down = 1 - least; down < least; ++down) {
    for (int across = 1 - least; across < least; ++across) {
      for (const bool flip : {false, true}) {
        shift(image, small, down, across, flip, out.data());
        REQUIRE(out == shifted(image, small, down, across, flip));
      }
    }
  }
  CHECK(has(message_of(ErrorKind::usage, [&] { shift(image, {1, 2, 3}, 0, 0, true, out.data()); }), "expected 3 x 1 x 2"));
  CHECK(has(message_of(ErrorKind::usage, [&] { shift(image, small, least, 0, false, out.data()); }), "and less than"));
}

TEST_CASE("the shift that is drawn for an image is the one that it gets") {
  const std::vector<std::uint8_t> image = noise(small);
  Augment options;
  options.crop_padding = 4;
  std::vector<std::uint8_t> expected(small.size());
  for (std::uint64_t index = 0; index < 50; ++index) {
    const Shift drawn = drawn_shift(options, Random(3, Stream::augment, 0, index));
    shift(image, small, drawn.down, drawn.across, false, expected.data());
    CHECK(changed(image, small, options, index) == expected);
  }
  CHECK(drawn_shift(Augment(), Random(3, Stream::augment, 0, 1)).down == 0);
}

TEST_CASE("augmentations are written and read as text") {
  CHECK(parse_augment("crop4,flip,cutout8") == Augment{.crop_padding = 4, .flip = true, .cutout = 8});
  CHECK(parse_augment("crop, cutout") == Augment{.crop_padding = 4, .cutout = 8});
  CHECK(parse_augment("none") == Augment{});
  CHECK(parse_augment("none").none());
  CHECK(parse_augment("crop4,alternating") == Augment{.crop_padding = 4, .alternating = true});
  for (const char* text :
       {"none", "flip", "alternating", "crop4,flip,cutout8", "crop2,flip,contrast20,brightness10,colour5,cutout16"}) {
    CHECK(to_string(parse_augment(text)) == text);
  }
  const auto message = [](const char* text) { return message_of(ErrorKind::usage, [&] { parse_augment(text); }); };
  CHECK(message("crpo4") == "unknown augmentation 'crpo4'; did you mean 'crop'?");
  CHECK(has(message("wobble"), "unknown augmentation 'wobble'"));
  CHECK(has(message(""), "unknown augmentation ''"));
  CHECK(has(message("flip3"), "unknown augmentation 'flip3'"));
  CHECK(message("crop0") == "augmentation 'crop0': expected a number from 1 to 64 after 'crop'");
  CHECK(message("crop65") == "augmentation 'crop65': expected a number from 1 to 64 after 'crop'");
  CHECK(has(message("crop-4"), "expected a number"));
  CHECK(has(message("crop4x"), "expected a number"));
  CHECK(has(message("contrast"), "expected a number from 1 to 100"));
  CHECK(message("flip,flip") == "augmentation 'flip' is given twice");
  CHECK(message("alternating,crop4,alternating") == "augmentation 'alternating' is given twice");
  CHECK(message("alternating,flip") == "augmentations 'flip' and 'alternating' exclude each other");
  CHECK(message("alternate") == "unknown augmentation 'alternate'; did you mean 'alternating'?");
  CHECK(message("crop4,crop4") == "augmentation 'crop' is given twice");
}

TEST_CASE("augment refuses crops wider than the image and images of another size") {
  const auto image = noise(small);
  std::vector<std::uint8_t> out(small.size());
  const Random random(1, Stream::test);
  CHECK(message_of(ErrorKind::usage, [&] { augment(image, small, {.crop_padding = 9}, random, out.data()); }) ==
        "augmentation 'crop9' needs images of more than 9 x 9 pixels, these have 9 x 11");
  CHECK(changed(image, small, {.crop_padding = 8}, 1).size() == small.size());
  CHECK(has(message_of(ErrorKind::usage, [&] { augment(image, {3, 3, 3}, {}, random, out.data()); }), "expected 3 x 3 x 3"));
}
