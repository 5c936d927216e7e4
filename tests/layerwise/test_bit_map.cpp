#include "layerwise/bit_map.h"

#include <vector>

#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

const std::vector<Downsample> reductions = {Downsample::any, Downsample::all, Downsample::majority};

bool bit_at(const std::vector<std::uint64_t>& map, const MapShape& shape, std::size_t y, std::size_t x, std::size_t c) {
  return get_bit(map.data() + shape.interior() + y * shape.pitch() + x * shape.words(), c);
}

// Expected result of place() for one output bit of a reduction.
bool reduced(const std::vector<std::uint64_t>& map, const MapShape& shape, Downsample kind, std::size_t factor, std::size_t y,
             std::size_t x, std::size_t c) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < factor; ++i) {
    for (std::size_t j = 0; j < factor; ++j) count += bit_at(map, shape, y * factor + i, x * factor + j, c) ? 1 : 0;
  }
  if (kind == Downsample::all) return count == factor * factor;
  if (kind == Downsample::majority) return 2 * count > factor * factor;
  return count != 0;
}

std::vector<std::uint64_t> random_map(const MapShape& shape, std::uint32_t one_in, Random& random) {
  std::vector<std::uint64_t> map(shape.size(), 0);
  draw_map(map.data(), shape, one_in, random);
  return map;
}

}  // namespace

TEST_CASE("ways to down-sample have names", "[bit_map]") {
  for (const Downsample kind :
       {Downsample::none, Downsample::any, Downsample::all, Downsample::majority, Downsample::space_to_depth}) {
    CHECK(parse_downsample(to_string(kind)) == kind);
  }
  CHECK(to_string(Downsample::any) == "or");
  const std::string message = message_of(ErrorKind::usage, [] { parse_downsample("mjority"); });
  CHECK(has(message, "'mjority'"));
  CHECK(has(message, "did you mean 'majority'"));
}

TEST_CASE("the size of a map counts its border", "[bit_map]") {
  const MapShape shape = {5, 7, 70, 2};
  CHECK(shape.words() == 2);
  CHECK(shape.pitch() == 22);
  CHECK(shape.size() == 9 * 22);
  CHECK(shape.interior() == 2 * 22 + 2 * 2);
  CHECK(downsampled_channels(2, Downsample::any, 2) == 128);
  CHECK(downsampled_channels(2, Downsample::space_to_depth, 2) == 512);
}

TEST_CASE("place reduces every cell and leaves border and other words alone", "[bit_map]") {
  Random random(1, Stream::test, 1);
  for (const Downsample kind : reductions) {
    for (const std::size_t factor : {1U, 2U, 3U, 4U}) {
      for (const std::size_t channels : {3U, 64U, 70U}) {
        INFO(to_string(kind) << " factor " << factor << " channels " << channels);
        const MapShape source_shape = {2 * factor, 3 * factor, channels, 0};
        const auto source = random_map(source_shape, factor == 4 ? 8 : 2, random);
        const MapShape target_shape = {2, 3, 64 + source_shape.words() * 64, 1};
        constexpr std::uint64_t poison = 0xABABABABABABABABULL;
        std::vector<std::uint64_t> target(target_shape.size(), poison);
        place(source.data(), source_shape, kind, factor, target.data(), target_shape, 1);
        std::size_t written = 0;
        for (std::size_t y = 0; y < 2; ++y) {
          for (std::size_t x = 0; x < 3; ++x) {
            for (std::size_t c = 0; c < source_shape.words() * 64; ++c) {
              const bool expected = c < channels && reduced(source, source_shape, kind, factor, y, x, c);
              REQUIRE(bit_at(target, target_shape, y, x, 64 + c) == expected);
            }
            written += source_shape.words();
          }
        }
        std::size_t untouched = 0;
        for (const std::uint64_t word : target) untouched += word == poison ? 1 : 0;
        CHECK(untouched == target.size() - written);
      }
    }
  }
}

TEST_CASE("space to depth keeps every bit, pixel after pixel", "[bit_map]") {
  Random random(1, Stream::test, 2);
  const MapShape source_shape = {4, 6, 70, 0};
  const auto source = random_map(source_shape, 2, random);
  const MapShape target_shape = {2, 3, 4 * 128, 1};
  std::vector<std::uint64_t> target(target_shape.size(), 0);
  place(source.data(), source_shape, Downsample::space_to_depth, 2, target.data(), target_shape, 0);
  for (std::size_t y = 0; y < 4; ++y) {
    for (std::size_t x = 0; x < 6; ++x) {
      for (std::size_t c = 0; c < 128; ++c) {
        const std::size_t copy = y % 2 * 2 + x % 2;
        REQUIRE(bit_at(target, target_shape, y / 2, x / 2, copy * 128 + c) == bit_at(source, source_shape, y, x, c));
      }
    }
  }
}

TEST_CASE("a bit gets the gradient where flipping it flips the result", "[bit_map]") {
  Random random(1, Stream::test, 3);
  std::vector<Downsample> kinds = reductions;
  kinds.push_back(Downsample::none);
  for (const Downsample kind : kinds) {
    for (const std::size_t factor : {1U, 2U, 3U}) {
      for (const std::uint32_t one_in : {1U, 2U, 6U}) {
        const std::size_t channels = 70;
        INFO(to_string(kind) << " factor " << factor << " one in " << one_in);
        const MapShape source_shape = {2 * factor, 2 * factor, channels, 0};
        const MapShape target_shape = {2, 2, 64 + 128, 1};
        auto source = random_map(source_shape, one_in, random);
        std::vector<float> incoming(2 * 2 * 192);
        for (float& g : incoming) g = static_cast<float>(random.normal());
        std::vector<float> gradient(source_shape.height * source_shape.width * 128, 0.5F);
        place_backward(source.data(), source_shape, kind, factor, incoming.data(), target_shape, 1, gradient.data());
        const bool as_or = kind == Downsample::any || kind == Downsample::none;
        std::vector<std::uint64_t> mask(source_shape.size(), ~std::uint64_t{0});
        clear_undecided(source.data(), source_shape, factor, mask.data());
        for (std::size_t y = 0; y < source_shape.height; ++y) {
          for (std::size_t x = 0; x < source_shape.width; ++x) {
            for (std::size_t c = 0; c < channels; ++c) {
              std::vector<std::uint64_t> before(target_shape.size(), 0);
              std::vector<std::uint64_t> after = before;
              std::uint64_t* pixel = source.data() + (y * source_shape.width + x) * 2;
              place(source.data(), source_shape, kind, factor, before.data(), target_shape, 1);
              set_bit(pixel, c, !get_bit(pixel, c));
              place(source.data(), source_shape, kind, factor, after.data(), target_shape, 1);
              set_bit(pixel, c, !get_bit(pixel, c));
              const float sent = incoming[(y / factor * 2 + x / factor) * 192 + 64 + c];
              const float expected = before != after ? 0.5F + sent : 0.5F;
              REQUIRE(gradient[(y * source_shape.width + x) * 128 + c] == expected);
              if (!as_or) continue;
              REQUIRE(get_bit(mask.data() + (y * source_shape.width + x) * 2, c) == (before != after));
            }
          }
        }
      }
    }
  }
}

TEST_CASE("space to depth sends every gradient back to its pixel", "[bit_map]") {
  const MapShape source_shape = {4, 4, 64, 0};
  const MapShape target_shape = {2, 2, 64 + 4 * 64, 1};
  const std::vector<std::uint64_t> source(source_shape.size(), 0);
  std::vector<float> incoming(2 * 2 * 320);
  for (std::size_t i = 0; i < incoming.size(); ++i) incoming[i] = static_cast<float>(i);
  std::vector<float> gradient(4 * 4 * 64, 0.0F);
  place_backward(source.data(), source_shape, Downsample::space_to_depth, 2, incoming.data(), target_shape, 1, gradient.data());
  for (std::size_t y = 0; y < 4; ++y) {
    for (std::size_t x = 0; x < 4; ++x) {
      for (std::size_t c = 0; c < 64; ++c) {
        const std::size_t from = (y / 2 * 2 + x / 2) * 320 + 64 + (y % 2 * 2 + x % 2) * 64 + c;
        REQUIRE(gradient[(y * 4 + x) * 64 + c] == incoming[from]);
      }
    }
  }
}
