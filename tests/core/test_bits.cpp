#include <cstdint>
#include <vector>

#include "core/bits.h"
#include "tests/support/catch.h"

using namespace bitloom;

TEST_CASE("a row of bits takes whole words", "[bits]") {
  CHECK(words_for(0) == 0);
  CHECK(words_for(1) == 1);
  CHECK(words_for(63) == 1);
  CHECK(words_for(64) == 1);
  CHECK(words_for(65) == 2);
  CHECK(words_for(576) == 9);
}

TEST_CASE("the tail mask covers the valid bits of the last word", "[bits]") {
  CHECK(tail_mask(1) == 1);
  CHECK(tail_mask(31) == 0x7fffffffU);
  CHECK(tail_mask(63) == 0x7fffffffffffffffU);
  CHECK(tail_mask(64) == 0xffffffffffffffffU);
  CHECK(tail_mask(65) == 1);
  CHECK(tail_mask(128) == 0xffffffffffffffffU);
}

TEST_CASE("bit c of a row is bit c % 64 of word c / 64, least significant first", "[bits]") {
  std::vector<std::uint64_t> words(3);
  for (const std::size_t bit : {std::size_t{0}, std::size_t{63}, std::size_t{64}, std::size_t{130}}) {
    set_bit(words.data(), bit, true);
  }
  CHECK(words == std::vector<std::uint64_t>{0x8000000000000001U, 1, 4});
  for (std::size_t bit = 0; bit < 192; ++bit) {
    CHECK(get_bit(words.data(), bit) == (bit == 0 || bit == 63 || bit == 64 || bit == 130));
  }
  set_bit(words.data(), 63, false);
  set_bit(words.data(), 62, false);
  CHECK(words == std::vector<std::uint64_t>{1, 1, 4});
}

TEST_CASE("a set bit is -1, and K - 2d is the dot product", "[bits]") {
  CHECK(bit_value(false) == 1);
  CHECK(bit_value(true) == -1);
  const std::uint64_t x = 0xfedcba9876543210U;
  const std::uint64_t w = 0x0f1e2d3c4b5a6978U;
  const std::uint64_t nonzero = 0xff00f0f0aaaa5555U;
  int dot = 0;
  int ternary_dot = 0;
  for (std::size_t bit = 0; bit < 64; ++bit) {
    const int product = bit_value(get_bit(&x, bit)) * bit_value(get_bit(&w, bit));
    dot += product;
    if (get_bit(&nonzero, bit)) ternary_dot += product;
  }
  CHECK(dot == 64 - 2 * std::popcount(x ^ w));
  CHECK(ternary_dot == std::popcount(nonzero) - 2 * std::popcount((x ^ w) & nonzero));
}

TEST_CASE("half 2i of a row is the low half of word i", "[bits]") {
  const std::vector<std::uint64_t> words{0x1111111122222222U, 0x3333333344444444U};
  CHECK(load_half(words.data(), 0) == 0x22222222U);
  CHECK(load_half(words.data(), 1) == 0x11111111U);
  CHECK(load_half(words.data(), 2) == 0x44444444U);
  CHECK(load_half(words.data(), 3) == 0x33333333U);
}
