#include <string>

#include "tests/simd/conv_case.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

std::string describe(const ConvParameters& p) {
  return std::to_string(p.height) + "x" + std::to_string(p.width) + " C=" + std::to_string(p.in_channels) +
         " O=" + std::to_string(p.out_channels) + " kernel=" + std::to_string(p.kernel) +
         " stride=" + std::to_string(p.stride) + " padding=" + std::to_string(p.padding) + (p.ternary ? " ternary" : "") +
         " planes=" + std::to_string(p.planes) + " pairs=" + std::to_string(p.pairs);
}

const std::vector<ConvParameters>& geometries() {
  static const std::vector<ConvParameters> list = [] {
    std::vector<ConvParameters> cases;
    // Channel counts that straddle halves, words, vectors and tiles, on an odd little image.
    for (const std::size_t channels : {1, 3, 31, 32, 33, 63, 64, 65, 127, 128, 192, 256, 576}) {
      cases.push_back({3, 5, channels, 33, 3, 1, 1, false});
      cases.push_back({3, 3, 65, channels, 3, 1, 1, false});
      cases.push_back({3, 4, channels, channels < 256 ? channels : 17, 2, 1, 0, true});
    }
    // Kernels, strides and image sizes.
    for (const std::size_t kernel : {1, 2, 3, 5}) {
      for (const std::size_t stride : {1, 2}) {
        for (const bool ternary : {false, true}) {
          cases.push_back({7, 9, 64, 48, kernel, stride, kernel / 2, ternary});
          cases.push_back({6, 11, 96, 70, kernel, stride, 0, ternary});
        }
      }
    }
    cases.push_back({1, 1, 64, 16, 1, 1, 0, false});    // one pixel
    cases.push_back({5, 13, 512, 16, 5, 1, 2, false});  // long patches: counters overflow bytes many times
    cases.push_back({17, 19, 64, 64, 3, 1, 1, false});  // enough pixels for every tile and its remainder
    cases.push_back({32, 32, 3, 20, 3, 1, 1, true});
    // Several thresholds for a row of weights.
    cases.push_back({5, 9, 64, 128, 3, 1, 1, false, 2});
    cases.push_back({6, 6, 65, 384, 3, 2, 1, false, 2});
    cases.push_back({4, 7, 128, 192, 3, 1, 1, true, 3});
    cases.push_back({3, 3, 33, 512, 1, 1, 0, false, 4});
    cases.push_back({3, 2, 7552, 128, 3, 1, 1, false, 2});  // a patch too long for 16-bit counters
    // Words that meet the same weights.
    for (const bool ternary : {false, true}) {
      cases.push_back({5, 9, 128, 33, 3, 1, 1, ternary, 1, 1});
      cases.push_back({4, 7, 330, 128, 3, 2, 1, ternary, 2, 2});  // beside others
      cases.push_back({6, 6, 640, 17, 1, 1, 0, ternary, 1, 5});
      cases.push_back({3, 7, 192, 20, 5, 1, 2, ternary, 1, 1});
    }
    return cases;
  }();
  return list;
}

}  // namespace

TEST_CASE("every table's convolution equals ref's bit for bit", "[simd][conv]") {
  std::uint64_t seed = 1;
  for (const ConvParameters& p : geometries()) {
    const ConvCase c(p, seed++);
    INFO(describe(p) << " seed " << seed - 1);
    for (const bool with_window : {false, true}) {
      for (const bool with_statistics : {false, true}) {
        const ConvResult expected(c, table("ref"), with_window, with_statistics);
        REQUIRE(expected.guards_intact());
        for (const std::string& name : contenders()) {
          const ConvResult actual(c, table(name), with_window, with_statistics);
          INFO(name << (with_window ? " window" : "") << (with_statistics ? " statistics" : ""));
          REQUIRE(actual.guards_intact());
          REQUIRE(same(actual.bits, expected.bits));
          REQUIRE(same(actual.window, expected.window));
          REQUIRE(same(actual.sum, expected.sum));
          REQUIRE(same(actual.sum_of_squares, expected.sum_of_squares));
        }
      }
    }
  }
}

TEST_CASE("every table's raw counts equal ref's", "[simd][conv]") {
  std::uint64_t seed = 100;
  for (const ConvParameters& p : geometries()) {
    const ConvCase c(p, seed++);
    INFO(describe(p));
    const std::size_t pixels = c.shape.out_height * c.shape.out_width;
    Guarded<std::int32_t> expected(pixels * c.padded_channels());
    table("ref").conv_counts(c.shape, c.input.data(), c.weights, expected.data());
    REQUIRE(expected.guards_intact());
    for (const std::string& name : contenders()) {
      INFO(name);
      Guarded<std::int32_t> actual(expected.size());
      table(name).conv_counts(c.shape, c.input.data(), c.weights, actual.data());
      REQUIRE(actual.guards_intact());
      bool equal = true;
      for (std::size_t i = 0; i < pixels; ++i) {
        for (std::size_t o = 0; o < p.out_channels; ++o) {
          equal = equal && actual[i * c.padded_channels() + o] == expected[i * c.padded_channels() + o];
        }
      }
      REQUIRE(equal);
    }
  }
}

TEST_CASE("convolutions leave the border and the tail bits alone", "[simd][conv]") {
  for (const std::size_t out_channels : {1, 3, 31, 33, 63, 65, 127}) {
    const ConvCase c({5, 6, 64, out_channels, 3, 1, 1, false}, out_channels);
    for (const std::string& name : all_tables()) {
      INFO(name << " O=" << out_channels);
      const ConvResult r(c, table(name), true, false);
      const std::size_t words = c.out_words();
      bool tails_zero = true;
      bool border_poisoned = true;
      for (std::size_t i = 0; i < c.shape.out_height + 2; ++i) {
        for (std::size_t j = 0; j < c.shape.out_width + 2; ++j) {
          const std::uint64_t last = r.bits[i * r.pitch + j * words + words - 1];
          if (i == 0 || j == 0 || i > c.shape.out_height || j > c.shape.out_width) {
            border_poisoned = border_poisoned && r.bits.untouched(i * r.pitch + j * words + words - 1);
          } else {
            tails_zero = tails_zero && (last & ~tail_mask(out_channels)) == 0;
          }
        }
      }
      for (std::size_t i = words - 1; i < r.window.size(); i += words) {
        tails_zero = tails_zero && (r.window[i] & ~tail_mask(out_channels)) == 0;
      }
      REQUIRE(tails_zero);
      REQUIRE(border_poisoned);
    }
  }
}

TEST_CASE("statistics stay exact where every disagreement is at its extreme", "[simd][conv]") {
  // All-one input against all-zero weights: d = 64 * patch_words everywhere, the largest e there is.
  for (const std::size_t words : {1, 9, 40}) {
    for (const auto& [planes, pairs] : {std::pair<std::size_t, std::size_t>{1, 0}, {2, 0}, {1, words / 2}, {2, words / 2}}) {
      const std::size_t channels = planes == 1 ? 16 : 128;
      ConvCase c({40, 40, 64 * words, channels, 3, 1, 0, false, planes, pairs}, 5);
      for (std::size_t i = 0; i < c.input.size(); ++i) c.input[i] = ~std::uint64_t{0};
      for (std::uint32_t& half : c.sign) half = 0;
      const std::int64_t pixels = 38 * 38;
      const std::int64_t e = static_cast<std::int64_t>(32 * 9 * words);
      for (const std::string& name : contenders()) {
        INFO(name << " words=" << words << " planes=" << planes << " pairs=" << pairs);
        const ConvResult r(c, table(name), false, true);
        for (std::size_t o = 0; o < channels; ++o) {
          REQUIRE(r.sum[o] == 1000 + static_cast<std::int64_t>(o) + pixels * e);
          REQUIRE(r.sum_of_squares[o] == -7 + pixels * e * e);
        }
      }
    }
  }
}

TEST_CASE("a patch too long for 16-bit counters is still exact", "[simd][conv]") {
  // 3 x 3 x 128 words = 1152 words = 73728 bits.
  const ConvCase c({3, 3, 128 * 64, 17, 3, 1, 0, false}, 9);
  const ConvResult expected(c, table("ref"), true, true);
  for (const std::string& name : contenders()) {
    INFO(name);
    const ConvResult actual(c, table(name), true, true);
    REQUIRE(actual.guards_intact());
    REQUIRE(same(actual, expected));
  }
}
