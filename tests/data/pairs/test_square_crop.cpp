#include "data/pairs/square_crop.h"

#include <algorithm>

#include "tests/data/pairs/folder.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

constexpr int draws = 10000;

struct Range {
  std::size_t low = static_cast<std::size_t>(-1), high = 0;
  void add(std::size_t value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool operator==(const Range&) const = default;
};

// Ranges of what many crops of height x width for `target` draw.
struct Drawn {
  Range top, left, resized, inner_top, inner_left;
  int flips = 0;
};

Drawn draw_many(CropKind kind, std::size_t height, std::size_t width, std::size_t target) {
  Drawn drawn;
  for (int i = 0; i < draws; ++i) {
    const SquareCrop crop =
        draw_crop(kind, height, width, target, Random(3, Stream::augment, 0, static_cast<std::uint64_t>(i)));
    REQUIRE(crop.side == std::min(height, width));
    REQUIRE(crop.top + crop.side <= height);
    REQUIRE(crop.left + crop.side <= width);
    REQUIRE(crop.inner_top + target <= crop.resized);
    REQUIRE(crop.inner_left + target <= crop.resized);
    drawn.top.add(crop.top);
    drawn.left.add(crop.left);
    drawn.resized.add(crop.resized);
    drawn.inner_top.add(crop.inner_top);
    drawn.inner_left.add(crop.inner_left);
    drawn.flips += crop.flip ? 1 : 0;
  }
  return drawn;
}

}  // namespace

TEST_CASE("crops of the transformer's listing stay within their bounds and are never mirrored", "[pairs]") {
  const Drawn wide = draw_many(CropKind::transformer, 100, 180, 64);
  CHECK(wide.flips == 0);
  CHECK(wide.top == Range{0, 0});
  CHECK(wide.left == Range{30, 49});     // 3/8 of 80, below 5/8 of it
  CHECK(wide.resized == Range{64, 72});  // 9/8 of 64
  CHECK(wide.inner_top == Range{0, 8});
  CHECK(wide.inner_left == Range{0, 8});
  const Drawn high = draw_many(CropKind::transformer, 75, 70, 64);
  CHECK(high.flips == 0);
  CHECK(high.top == Range{1, 2});
  CHECK(high.resized == Range{64, 70});  // no more pixels than there are
}

TEST_CASE("crops of the autoencoder's listing stay within their bounds, every second one mirrored", "[pairs]") {
  const Drawn wide = draw_many(CropKind::dvae, 100, 180, 64);
  CHECK(wide.flips > draws / 2 - 250);  // five standard deviations
  CHECK(wide.flips < draws / 2 + 250);
  CHECK(wide.top == Range{0, 0});
  CHECK(wide.left == Range{0, 80});
  CHECK(wide.resized == Range{72, 96});  // 9/8 and 12/8 of 64
  CHECK(wide.inner_top == Range{0, 32});
  CHECK(draw_many(CropKind::dvae, 80, 80, 64).resized == Range{72, 80});
  CHECK(draw_many(CropKind::dvae, 64, 64, 64).resized == Range{64, 64});
}

TEST_CASE("crops in the centre do not depend on chance", "[pairs]") {
  const Drawn drawn = draw_many(CropKind::centre, 101, 180, 64);
  CHECK(drawn.flips == 0);
  CHECK(drawn.left == Range{39, 39});
  CHECK(drawn.resized == Range{64, 64});
}

TEST_CASE("small images are enlarged by every crop", "[pairs]") {
  for (const std::string& name : crop_names()) {
    const Drawn drawn = draw_many(parse_crop(name), 20, 30, 64);
    CHECK(drawn.resized == Range{64, 64});
  }
}

TEST_CASE("rounding of crop sizes is that of the listings", "[pairs]") {
  // 9/8 of 20 is 22.5, of 28 is 31.5; 12/8 of 21 is 31.5: halves go to the even number.
  CHECK(draw_many(CropKind::transformer, 100, 100, 20).resized == Range{20, 22});
  CHECK(draw_many(CropKind::transformer, 100, 100, 28).resized == Range{28, 32});
  CHECK(draw_many(CropKind::dvae, 100, 100, 21).resized == Range{24, 32});
}

TEST_CASE("crops are functions of seed, epoch and example", "[pairs]") {
  const auto crop = [](std::uint64_t seed, std::uint64_t epoch, std::uint64_t example) {
    return draw_crop(CropKind::dvae, 1000, 2000, 256, Random(seed, Stream::augment, epoch, example));
  };
  CHECK(crop(1, 2, 3) == crop(1, 2, 3));
  CHECK_FALSE(crop(1, 2, 3) == crop(2, 2, 3));
  CHECK_FALSE(crop(1, 2, 3) == crop(1, 3, 3));
  CHECK_FALSE(crop(1, 2, 3) == crop(1, 2, 4));
}

TEST_CASE("a crop is the part of the image that it names", "[pairs]") {
  const Image image = noise_image(40, 60, 5);
  // Without a change of size.
  const SquareCrop plain{0, 7, 40, 40, 3, 4, false};
  const Image part = cut(image, plain, 32);
  REQUIRE(part.shape == ImageShape{32, 32, 3});
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t y = 0; y < 32; ++y) {
      for (std::size_t x = 0; x < 32; ++x)
        REQUIRE(part.pixels[(c * 32 + y) * 32 + x] == image.pixels[(c * 40 + y + 3) * 60 + x + 7 + 4]);
    }
  }
  SquareCrop mirrored = plain;
  mirrored.flip = true;
  const Image flipped = cut(image, mirrored, 32);
  for (std::size_t row = 0; row < 96; ++row) {
    for (std::size_t x = 0; x < 32; ++x) REQUIRE(flipped.pixels[row * 32 + x] == part.pixels[row * 32 + 31 - x]);
  }
  // With one: areas are averaged.
  const Image square{{2, 2, 3}, {0, 10, 20, 30, 5, 5, 5, 5, 0, 0, 0, 200}};
  CHECK(cut(square, {0, 0, 2, 1, 0, 0, false}, 1).pixels == std::vector<std::uint8_t>{15, 5, 50});
}

TEST_CASE("crops vary where there is room for another one", "[pairs]") {
  struct Size {
    std::size_t height, width;
  };
  for (const CropKind kind : {CropKind::centre, CropKind::dvae, CropKind::transformer}) {
    for (const auto& [height, width] : {Size{64, 64}, Size{96, 64}, Size{96, 96}, Size{16, 16}, Size{16, 24}}) {
      bool do_vary = false;
      SquareCrop first = draw_crop(kind, height, width, 64, Random(1, Stream::augment, 0));
      first.flip = false;
      for (std::uint64_t i = 1; i < 200; ++i) {
        SquareCrop other = draw_crop(kind, height, width, 64, Random(1, Stream::augment, i));
        other.flip = false;
        do_vary = do_vary || other != first;
      }
      INFO(static_cast<int>(kind) << ": " << height << " x " << width);
      CHECK(crops_vary(kind, height, width, 64) == do_vary);
    }
  }
}

TEST_CASE("impossible crops are refused", "[pairs]") {
  const Image image = noise_image(40, 60, 5);
  for (const SquareCrop& crop : {SquareCrop{1, 0, 40, 40, 0, 0, false}, SquareCrop{0, 21, 40, 40, 0, 0, false},
                                 SquareCrop{0, 0, 40, 40, 9, 0, false}, SquareCrop{0, 0, 0, 40, 0, 0, false}})
    CHECK(has(message_of(ErrorKind::usage, [&] { cut(image, crop, 32); }), ": not within 60 x 40"));
  CHECK(message_of(ErrorKind::usage, [] { draw_crop(CropKind::dvae, 0, 5, 3, Random(1, Stream::test)); }) ==
        "a crop of 3 pixels from 5 x 0: expected at least 1");
  CHECK(message_of(ErrorKind::usage, [] { parse_crop("center"); }) == "`crop`: 'center'; did you mean 'centre'?");
}
