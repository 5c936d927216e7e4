#include "data/pairs/scene.h"

#include <algorithm>
#include <set>

#include "core/hash.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

TEST_CASE("captions of scenes say all of them, and are read back", "[pairs]") {
  CHECK(caption_of({0, 0, 0, 0}) == "a small red circle at the top left");
  CHECK(caption_of({7, 6, 1, 4}) == "a large black ring in the centre");
  std::set<std::string> captions;
  for (std::uint8_t colour = 0; colour < 8; ++colour) {
    for (std::uint8_t shape = 0; shape < 8; ++shape) {
      for (std::uint8_t size = 0; size < 2; ++size) {
        for (std::uint8_t place = 0; place < 9; ++place) {
          const Scene scene{colour, shape, size, place};
          const std::string caption = caption_of(scene);
          REQUIRE(captions.insert(caption).second);
          REQUIRE(parse_scene(caption) == scene);
        }
      }
    }
  }
}

TEST_CASE("captions may leave out size and place, and nothing else", "[pairs]") {
  CHECK(parse_scene("A Blue heart") == Scene{5, 7, Scene::nothing, Scene::nothing});
  CHECK(parse_scene("an orange star at the bottom") == Scene{1, 5, Scene::nothing, 7});
  CHECK(parse_scene("a large star at the right, orange") == std::nullopt);
  CHECK(parse_scene("a heart in the centre  large blue") == Scene{5, 7, 1, 4});
  for (const char* caption :
       {"", "a circle", "a red thing", "red", "a red blue circle", "a red circle and a cross", "a red red circle",
        "a red circle at the top bottom", "a red circle in the centre left", "a small large red circle"}) {
    INFO(caption);
    CHECK(parse_scene(caption) == std::nullopt);
  }
}

TEST_CASE("a shape covers its area of pixels, wherever it lies", "[pairs]") {
  for (std::uint8_t shape = 0; shape < 8; ++shape) {
    const double area = 4 * 20 * 20 * shape_area(shape);
    for (const Placement& at : {Placement{32 * 256, 32 * 256, 20 * 256}, Placement{30 * 256 + 77, 33 * 256 + 130, 20 * 256}}) {
      const auto covered = shape_coverage(shape, at, 64, 8);
      double sum = 0;
      for (const std::uint8_t each : covered) {
        REQUIRE(each <= 64);
        sum += each / 64.0;
      }
      INFO(shape_names[shape]);
      CHECK(sum > 0.98 * area);
      CHECK(sum < 1.02 * area);
    }
    CHECK(shape_area(shape) > 0.2);
    CHECK(shape_area(shape) < 0.75);
  }
}

TEST_CASE("pictures of scenes show the ground, the colour, and mixtures of both", "[pairs]") {
  for (const std::size_t side : {16U, 32U, 64U}) {
    const Image image = draw_scene({0, 0, 1, 4}, side, Random(1, Stream::test));
    REQUIRE(image.shape == ImageShape{side, side, 3});
    const std::size_t plane = side * side, middle = side / 2 * side + side / 2;
    for (std::size_t c = 0; c < 3; ++c) {
      CHECK(image.pixels[c * plane] == ground_colour[c]);
      CHECK(std::abs(image.pixels[c * plane + middle] - colour_values[0][c]) <= 10);
    }
    // Antialiased: values between the two.
    std::set<std::uint8_t> greens(image.pixels.begin() + static_cast<std::ptrdiff_t>(plane),
                                  image.pixels.begin() + static_cast<std::ptrdiff_t>(2 * plane));
    CHECK(greens.size() > 5);
  }
  CHECK(message_of(ErrorKind::usage, [] {
          draw_scene({0, 0, 0, 0}, 15, Random(1, Stream::test));
        }) == "`side`: 15; expected 16 to 512 pixels");
}

TEST_CASE("pictures of scenes are the same bytes on every machine", "[pairs]") {
  Hasher hasher;
  for (std::uint8_t i = 0; i < 8; ++i) {
    const Image image = draw_scene({i, i, static_cast<std::uint8_t>(i % 2), i}, 32, Random(i, Stream::test));
    hasher.update(std::as_bytes(std::span(image.pixels)));
  }
  CHECK(hasher.finish().hex() == "b1ebf535e2be840dde890e8add803552");
}
