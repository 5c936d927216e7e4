#include "data/pairs/scene_check.h"

#include <algorithm>
#include <cmath>

#include "tests/data/pairs/folder.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

// Disturbances of a picture, as a model's decoder makes them. Standard deviations in pixels at side 32 and in levels of 255.
struct Disturbance {
  double blur = 0, noise = 0;
};

Image disturbed(const Image& image, const Disturbance& how, std::uint64_t seed) {
  const std::size_t side = image.shape.height;
  Random random(seed, Stream::test, 77);
  Image result = image;
  const double sigma = how.blur * static_cast<double>(side) / 32;
  const auto reach = static_cast<std::ptrdiff_t>(std::ceil(3 * sigma));
  const auto size = static_cast<std::ptrdiff_t>(side);
  for (std::ptrdiff_t c = 0; c < 3; ++c) {
    for (std::ptrdiff_t y = 0; y < size; ++y) {
      for (std::ptrdiff_t x = 0; x < size; ++x) {
        double sum = 0, weights = 0;
        for (std::ptrdiff_t dy = -reach; dy <= reach; ++dy) {
          for (std::ptrdiff_t dx = -reach; dx <= reach; ++dx) {
            const double weight = sigma > 0 ? std::exp(-static_cast<double>(dy * dy + dx * dx) / (2 * sigma * sigma)) : 1;
            const std::ptrdiff_t at = (c * size + std::clamp<std::ptrdiff_t>(y + dy, 0, size - 1)) * size +
                                      std::clamp<std::ptrdiff_t>(x + dx, 0, size - 1);
            sum += weight * image.pixels[static_cast<std::size_t>(at)];
            weights += weight;
          }
        }
        const double value = sum / weights + how.noise * random.normal();
        result.pixels[static_cast<std::size_t>((c * size + y) * size + x)] =
            static_cast<std::uint8_t>(std::clamp(std::lround(value), 0L, 255L));
      }
    }
  }
  return result;
}

// Where every address is watched, which takes ten times as long, some of the pictures do.
#ifdef __SANITIZE_ADDRESS__
constexpr std::size_t sparser = 5;
#else
constexpr std::size_t sparser = 1;
#endif
constexpr std::size_t all_scenes = 8 * 8 * 2 * 9;  // of a side

// Scores of pictures of scenes, every `stride`-th of all.
SceneScore score(std::size_t side, const Disturbance& how, std::size_t stride) {
  SceneScore result;
  std::vector<Scene> scenes;
  for (std::size_t i = 0; i < all_scenes; i += stride) {
    scenes.push_back({static_cast<std::uint8_t>(i % 8), static_cast<std::uint8_t>(i / 8 % 8),
                      static_cast<std::uint8_t>(i / 64 % 2), static_cast<std::uint8_t>(i / 128)});
  }
  std::vector<Scene> seen(scenes.size());
#pragma omp parallel for schedule(dynamic)
  for (std::size_t i = 0; i < scenes.size(); ++i) {
    const Image image = draw_scene(scenes[i], side, Random(5, Stream::test, i));
    seen[i] = see_scene(disturbed(image, how, i)).scene;
  }
  for (std::size_t i = 0; i < scenes.size(); ++i) {
    result.add(scenes[i], seen[i]);
    if (seen[i] != scenes[i]) {
      UNSCOPED_INFO(caption_of(scenes[i]) << ", seen as " << caption_of(seen[i]));
    }
  }
  return result;
}

Image plain(std::size_t side, const Colour& colour) {
  Image image{{side, side, 3}, {}};
  for (const std::uint8_t value : colour) image.pixels.insert(image.pixels.end(), side * side, value);
  return image;
}

}  // namespace

TEST_CASE("every clean picture of a scene is seen as it is", "[pairs]") {
  for (const std::size_t side : {32U, 64U}) {
    const std::size_t stride = (side == 32 ? 1 : 7) * sparser;
    const SceneScore clean = score(side, {}, stride);
    INFO(side);
    CHECK(clean.pictures == (all_scenes + stride - 1) / stride);
    CHECK(clean.all == clean.pictures);
    CHECK(clean.none == 0);
  }
}

TEST_CASE("scenes are seen through blur and noise", "[pairs]") {
  struct Case {
    std::size_t side;
    Disturbance how;
  };
  for (const Case& each : {Case{32, {0, 12}}, Case{32, {0.7, 0}}, Case{32, {0.6, 8}}, Case{64, {0.8, 15}}}) {
    const SceneScore result = score(each.side, each.how, (each.side == 32 ? 3 : 11) * sparser);
    INFO(each.side << ", blur " << each.how.blur << ", noise " << each.how.noise);
    CHECK(result.colour == result.pictures);
    CHECK(result.place == result.pictures);
    CHECK(result.all == result.pictures);
  }
  // Where small shapes are hardly more than spots, colours and places are still right, and most shapes.
  const SceneScore spots = score(32, {2, 5}, 9 * sparser);
  CHECK(spots.colour == spots.pictures);
  CHECK(spots.place == spots.pictures);
  CHECK(spots.shape * 100 > spots.pictures * 85);
}

TEST_CASE("where nothing or something else is shown, no scene is seen", "[pairs]") {
  for (const std::size_t side : {32U, 64U}) {
    INFO(side);
    CHECK(see_scene(plain(side, ground_colour)).scene == Scene{});
    CHECK(see_scene(plain(side, {0, 0, 0})).scene == Scene{});
    CHECK(see_scene(plain(side, colour_values[0])).scene == Scene{});
    for (std::uint64_t seed = 0; seed < 20; ++seed) {
      CHECK(see_scene(noise_image(side, side, seed)).scene == Scene{});
      // Noise on the ground alone.
      CHECK(see_scene(disturbed(plain(side, ground_colour), {0, 30}, seed)).scene == Scene{});
    }
  }
  // Shapes that are none: half of the picture, a line, two shapes, a shape in a colour that is none.
  Image half = plain(32, ground_colour), line = half;
  for (std::size_t c = 0; c < 3; ++c) {
    for (std::size_t i = 0; i < 512; ++i) half.pixels[c * 1024 + 512 + i] = colour_values[5][c];
    for (std::size_t i = 0; i < 32; ++i) line.pixels[c * 1024 + 512 + i] = colour_values[5][c];
  }
  CHECK(see_scene(half).scene == Scene{});
  CHECK(see_scene(line).scene == Scene{});
  const Image one = draw_scene({0, 0, 1, 0}, 32, Random(1, Stream::test));
  const Image other = draw_scene({5, 0, 1, 8}, 32, Random(1, Stream::test));
  Image both = one;
  for (std::size_t i = 0; i < both.pixels.size(); ++i) both.pixels[i] = std::min(one.pixels[i], other.pixels[i]);
  CHECK(see_scene(both).scene == Scene{});
  Image grey = draw_scene({7, 0, 1, 0}, 32, Random(1, Stream::test));
  for (std::uint8_t& pixel : grey.pixels) pixel = static_cast<std::uint8_t>(240 - (240 - pixel) / 4);
  CHECK(see_scene(grey).scene == Scene{});
}

TEST_CASE("a shape between two places is seen, its place not", "[pairs]") {
  // Moved to where no place is: right beyond the last column.
  const Image image = draw_scene({2, 1, 0, 4}, 64, Random(1, Stream::test));
  Image moved = plain(64, ground_colour);
  for (std::size_t row = 0; row < 3 * 64; ++row)
    std::copy_n(image.pixels.begin() + static_cast<std::ptrdiff_t>(row * 64), 64 - 24,
                moved.pixels.begin() + static_cast<std::ptrdiff_t>(row * 64 + 24));
  CHECK(see_scene(moved).scene == Scene{2, 1, 0, Scene::nothing});
}

TEST_CASE("pictures that cannot be judged are refused", "[pairs]") {
  CHECK(message_of(ErrorKind::usage, [] { see_scene(noise_image(32, 31, 1)); }) ==
        "a picture of 3 x 32 x 31, expected 3 x N x N, N from 16 to 512");
  CHECK(has(message_of(ErrorKind::usage, [] { see_scene(noise_image(8, 8, 1)); }), "a picture of 3 x 8 x 8"));
}

TEST_CASE("scores count what was asked for", "[pairs]") {
  SceneScore result;
  result.add({1, 2, 0, 3}, {1, 2, 0, 3});
  result.add({1, 2, 0, 3}, {1, 2, 1, 3});
  result.add({1, 2, Scene::nothing, Scene::nothing}, {1, 2, 1, 3});
  result.add({1, 2, Scene::nothing, 3}, {0, 2, 1, 4});
  result.add({1, 2, 0, 3}, {});
  CHECK(result.pictures == 5);
  CHECK(result.colour == 3);
  CHECK(result.shape == 4);
  CHECK(result.size == 3);
  CHECK(result.place == 3);
  CHECK(result.colour_and_shape == 3);
  CHECK(result.all == 2);
  CHECK(result.none == 1);
}
