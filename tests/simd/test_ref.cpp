// The oracle's oracle: cases small enough to do by hand, run on every table.
#include <vector>

#include "core/bits.h"
#include "tests/simd/conv_case.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// The dot product by its definition, one value at a time, from the unpacked convention of core/bits.h.
std::int32_t dot_by_definition(const ConvCase& c, const ConvParameters& p, std::size_t i, std::size_t j, std::size_t o) {
  const std::size_t words = words_for(p.in_channels);
  std::int32_t dot = 0;
  for (std::size_t ki = 0; ki < p.kernel; ++ki) {
    for (std::size_t kj = 0; kj < p.kernel; ++kj) {
      const std::uint64_t* pixel = c.input.data() + (i * p.stride + ki) * c.shape.pitch + (j * p.stride + kj) * words;
      const std::size_t at = o * c.shape.patch_words() + (ki * p.kernel + kj) * words;
      for (std::size_t channel = 0; channel < p.in_channels; ++channel) {
        if (p.ternary && !get_bit(&c.nonzero_rows[at], channel)) continue;
        dot += bit_value(get_bit(pixel, channel)) * bit_value(get_bit(&c.sign_rows[at], channel));
      }
    }
  }
  return dot;
}

}  // namespace

TEST_CASE("a one-pixel convolution by hand", "[simd][ref]") {
  // x = 1011b (channels 0, 1, 3 set), w = 0110b: they differ in channels 0, 2, 3, so d = 3 and the dot product of the four
  // values (-1,-1,+1,-1).(+1,-1,-1,+1) = -1+1-1-1 = -2 = 4 - 2 * 3.
  const std::uint64_t x = 0b1011;
  const std::uint64_t w = 0b0110;
  simd::ConvShape shape{1, 1, 1, 1, 1, 1, 1, 1};
  std::vector<std::uint32_t> packed(simd::packed_conv_weights_size(1, 1), 0xffffffffU);
  simd::pack_conv_weights(&w, 1, 1, packed.data());
  std::vector<std::int32_t> threshold(16, -1), low(16, 1), high(16, 0);
  for (const std::string& name : all_tables()) {
    INFO(name);
    std::vector<std::int32_t> counts(16, -99);
    table(name).conv_counts(shape, &x, {packed.data(), nullptr}, counts.data());
    REQUIRE(counts[0] == 3);
    for (const std::int32_t t : {2, 3, 4}) {
      threshold[0] = t;
      low[0] = t;
      high[0] = t;
      std::uint64_t bits = ~std::uint64_t{0};
      std::uint64_t window = ~std::uint64_t{0};
      std::vector<std::int64_t> sum(16, 10), squares(16, 100);
      simd::ConvOutput output{&bits, 1, &window, sum.data(), squares.data()};
      table(name).conv(shape, &x, {packed.data(), nullptr}, {threshold.data(), low.data(), high.data()}, output);
      REQUIRE(bits == (t >= 3 ? 1U : 0U));
      REQUIRE(window == (t == 3 ? 1U : 0U));
      REQUIRE(sum[0] == 10 + (3 - 32));
      REQUIRE(squares[0] == 100 + 29 * 29);
    }
  }
}

TEST_CASE("a ternary weight ignores the bits where it is zero", "[simd][ref]") {
  // Only channels 1 and 3 count: x = (set, set), sign = (set, unset): one disagreement of two.
  const std::uint64_t x = 0b1011;
  const std::uint64_t sign = 0b0010;
  const std::uint64_t nonzero = 0b1010;
  simd::ConvShape shape{1, 1, 1, 1, 1, 1, 1, 1};
  std::vector<std::uint32_t> packed_sign(simd::packed_conv_weights_size(1, 1)), packed_nonzero(packed_sign.size());
  simd::pack_conv_weights(&sign, 1, 1, packed_sign.data());
  simd::pack_conv_weights(&nonzero, 1, 1, packed_nonzero.data());
  for (const std::string& name : all_tables()) {
    INFO(name);
    std::vector<std::int32_t> counts(16, -99);
    table(name).conv_counts(shape, &x, {packed_sign.data(), packed_nonzero.data()}, counts.data());
    REQUIRE(counts[0] == 1);
  }
}

TEST_CASE("the zero border counts as +1", "[simd][ref]") {
  // One channel, a 3x3 filter of -1s (set bits), an all-set 3x3 image: a border pixel (unset) disagrees. The corner sees 5
  // border pixels, an edge 3, the centre none.
  const ConvParameters p{3, 3, 1, 1, 3, 1, 1, false};
  ConvCase c(p, 1);
  for (std::size_t i = 1; i <= 3; ++i) {
    for (std::size_t j = 1; j <= 3; ++j) c.input[i * 5 + j] = 1;
  }
  const std::vector<std::uint64_t> ones(9, 1);
  simd::pack_conv_weights(ones.data(), 1, 9, c.sign.data());
  const std::int32_t expected[9] = {5, 3, 5, 3, 0, 3, 5, 3, 5};
  for (const std::string& name : all_tables()) {
    INFO(name);
    std::vector<std::int32_t> counts(9 * 16);
    table(name).conv_counts(c.shape, c.input.data(), c.weights, counts.data());
    for (std::size_t i = 0; i < 9; ++i) REQUIRE(counts[i * 16] == expected[i]);
  }
}

TEST_CASE("counts follow dot = K - 2d with K the bits that count", "[simd][ref]") {
  for (const ConvParameters& p : {ConvParameters{4, 5, 3, 5, 3, 1, 1, false}, ConvParameters{5, 4, 70, 18, 2, 2, 0, false},
                                  ConvParameters{4, 4, 33, 7, 3, 2, 1, true}}) {
    const ConvCase c(p, 77);
    for (const std::string& name : all_tables()) {
      INFO(name << " C=" << p.in_channels);
      Guarded<std::int32_t> counts(c.shape.out_height * c.shape.out_width * c.padded_channels());
      table(name).conv_counts(c.shape, c.input.data(), c.weights, counts.data());
      REQUIRE(counts.guards_intact());
      for (std::size_t i = 0; i < c.shape.out_height; ++i) {
        for (std::size_t j = 0; j < c.shape.out_width; ++j) {
          for (std::size_t o = 0; o < p.out_channels; ++o) {
            std::int32_t bits = static_cast<std::int32_t>(p.kernel * p.kernel * p.in_channels);
            if (p.ternary) {
              bits = 0;
              for (std::size_t w = 0; w < c.shape.patch_words(); ++w) {
                bits += std::popcount(c.nonzero_rows[o * c.shape.patch_words() + w]);
              }
            }
            const std::int32_t d = counts[(i * c.shape.out_width + j) * c.padded_channels() + o];
            REQUIRE(dot_by_definition(c, p, i, j, o) == bits - 2 * d);
          }
        }
      }
    }
  }
}

TEST_CASE("packed weights: half, lane, and one row after a flip", "[simd][ref]") {
  const std::size_t out_channels = 18;
  const std::size_t patch_words = 3;
  std::vector<std::uint64_t> rows(out_channels * patch_words);
  Random random(3, Stream::test);
  for (std::uint64_t& word : rows) word = random.next();
  Guarded<std::uint32_t> packed(simd::packed_conv_weights_size(out_channels, patch_words));
  REQUIRE(packed.size() == 32 * 6);
  simd::pack_conv_weights(rows.data(), out_channels, patch_words, packed.data());
  REQUIRE(packed.guards_intact());
  REQUIRE(packed[0 * 16 + 5] == static_cast<std::uint32_t>(rows[5 * 3]));
  REQUIRE(packed[3 * 16 + 5] == static_cast<std::uint32_t>(rows[5 * 3 + 1] >> 32));
  REQUIRE(packed[6 * 16 + 4 * 16 + 1] == static_cast<std::uint32_t>(rows[17 * 3 + 2]));
  for (std::size_t half = 0; half < 6; ++half) REQUIRE(packed[6 * 16 + half * 16 + 2] == 0);  // beyond O

  rows[17 * 3 + 2] ^= std::uint64_t{1} << 40;
  Guarded<std::uint32_t> again(packed.size());
  simd::pack_conv_weights(rows.data(), out_channels, patch_words, again.data());
  simd::pack_conv_weight_row(&rows[17 * 3], 17, patch_words, packed.data());
  REQUIRE(same(packed, again));
}
