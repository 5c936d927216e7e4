#include "nn/few_bit_stash.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/guarded.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::nn;
using namespace bitloom::test;

namespace {

// Around bytes and words, and multiples of nothing.
const std::vector<std::size_t> sizes{0, 1, 2, 3, 5, 7, 8, 9, 13, 31, 32, 33, 63, 64, 65, 127, 251, 576, 1009};

std::vector<float> random_inputs(std::size_t size, std::uint64_t number) {
  Random random(11, Stream::test, number);
  std::vector<float> x(size);
  for (float& each : x) each = static_cast<float>(3 * random.normal());
  return x;
}

FewBitTable quick_table(const Activation& activation, unsigned bits) {
  return fit_few_bit(few_bit_problem(activation, uniform_weight(), -10, 10), bits, {.points = 1000, .polish = true});
}

bool same_bits(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

}  // namespace

TEST_CASE("numbers of any width are packed without gaps, low bits first, and come back", "[bit_pack]") {
  CHECK(packed_bytes(0, 3) == 0);
  CHECK(packed_bytes(std::size_t{1} << 62, 8) == std::size_t{1} << 62);
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const std::size_t size : sizes) {
      CHECK(packed_bytes(size, bits) == (size * bits + 7) / 8);
      Random random(12, Stream::test, bits, size);
      std::vector<std::uint32_t> numbers(size);
      for (std::uint32_t& each : numbers) each = random.below(1U << bits);
      Guarded<std::uint8_t> packed(packed_bytes(size, bits));
      BitPacker packer(packed.data(), bits);
      for (const std::uint32_t each : numbers) packer.put(each);
      packer.finish();
      REQUIRE(packed.guards_intact());
      BitUnpacker unpacker(packed.data(), bits);
      for (std::size_t i = 0; i < size; ++i) {
        REQUIRE(unpacker.get() == numbers[i]);
        for (unsigned bit = 0; bit < bits; ++bit) {  // the layout that the header describes
          const std::size_t k = i * bits + bit;
          REQUIRE(((packed[k / 8] >> (k % 8)) & 1U) == ((numbers[i] >> bit) & 1U));
        }
      }
      for (std::size_t k = size * bits; k < 8 * packed.size(); ++k) REQUIRE(((packed[k / 8] >> (k % 8)) & 1U) == 0);
    }
  }
}

TEST_CASE("the forward pass is exact and keeps b bits per element; the backward pass multiplies by levels", "[few_bit_stash]") {
  for (const Activation& activation : activations()) {
    for (const unsigned bits : {1U, 2U, 3U, 4U, 5U, 8U}) {
      const FewBitTable table = quick_table(activation, bits);
      const FewBitLookup lookup = few_bit_lookup(table);
      for (const std::size_t size : sizes) {
        CAPTURE(activation.name, bits, size);
        const std::vector<float> x = random_inputs(size, size), gradient = random_inputs(size, size + 1);
        Guarded<float> y(size), plain(size), back(size);
        Guarded<std::uint8_t> stash((size * bits + 7) / 8);
        few_bit_forward(activation, lookup, x, y.span(), stash.span());
        apply(activation, x, plain.span());
        few_bit_backward(lookup, stash.span(), gradient, back.span());
        std::size_t wrong_outputs = 0, wrong_gradients = 0;
        for (std::size_t i = 0; i < size; ++i) {
          wrong_outputs += same_bits(y[i], plain[i]) ? 0U : 1U;
          // From the double table: with these seeds no input is within rounding of a boundary.
          wrong_gradients += same_bits(back[i], static_cast<float>(table(x[i])) * gradient[i]) ? 0U : 1U;
        }
        CHECK(wrong_outputs == 0);
        CHECK(wrong_gradients == 0);
        CHECK((y.guards_intact() && plain.guards_intact() && back.guards_intact() && stash.guards_intact()));
        if (size * bits % 8 != 0) CHECK(stash[stash.size() - 1] >> (size * bits % 8) == 0);
      }
    }
  }
}

TEST_CASE("few-bit passes work in place", "[few_bit_stash]") {
  const Activation& silu = find_activation("silu");
  const FewBitLookup lookup = few_bit_lookup(quick_table(silu, 3));
  const std::vector<float> x = random_inputs(77, 0), gradient = random_inputs(77, 1);
  std::vector<float> y(77), back(77), x_in_place = x, back_in_place = gradient;
  std::vector<std::uint8_t> stash(packed_bytes(77, 3)), stash_in_place = stash;
  few_bit_forward(silu, lookup, x, y, stash);
  few_bit_forward(silu, lookup, x_in_place, x_in_place, stash_in_place);
  CHECK(x_in_place == y);
  CHECK(stash_in_place == stash);
  few_bit_backward(lookup, stash, gradient, back);
  few_bit_backward(lookup, stash, back_in_place, back_in_place);
  CHECK(back_in_place == back);
}

TEST_CASE("lookups put values on boundaries to the left, and know |x|, infinities and NaN", "[few_bit_stash]") {
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const FewBitLookup plain = few_bit_lookup({{-1, 0.1, 2}, {0, 1, 2, 3}, false});
  CHECK(plain.bits == 2);
  const float boundary = 0.1F;  // rounded from the double one
  CHECK(plain.index(boundary) == 1);
  CHECK(plain.index(std::nextafter(boundary, 1.0F)) == 2);
  CHECK(plain.index(-infinity) == 0);
  CHECK(plain.index(infinity) == 3);
  CHECK(plain.index(nan) == 0);
  const FewBitLookup even = few_bit_lookup({{0.5}, {1, 0}, true});
  CHECK(even.index(-0.5F) == 0);
  CHECK(even.index(-0.75F) == 1);
  CHECK(even.index(-infinity) == 1);
  CHECK(even.index(-0.0F) == 0);
}

TEST_CASE("relu's one-bit gradient is exact, at zero too", "[few_bit_stash]") {
  const Activation& relu = find_activation("relu");
  const FewBitLookup lookup = few_bit_lookup(quick_table(relu, 1));
  const std::vector<float> x{-2, -0.0F, 0.0F, 1e-30F, -1e-30F, 5}, gradient(x.size(), 1.25F);
  std::vector<float> y(x.size()), back(x.size());
  std::vector<std::uint8_t> stash(1);
  few_bit_forward(relu, lookup, x, y, stash);
  few_bit_backward(lookup, stash, gradient, back);
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(back[i] == 1.25F * static_cast<float>(relu.derivative(x[i])));
}

TEST_CASE("few-bit tables and spans of wrong sizes are refused", "[few_bit_stash]") {
  CHECK(has(message_of(ErrorKind::usage,
                       [] {
                         few_bit_lookup({{0, 1}, {1, 2, 3}, false});
                       }),
            "table: 3 levels and 2 boundaries"));
  CHECK(has(message_of(ErrorKind::usage, [] { few_bit_lookup({{}, {1}, false}); }), "table: 1 levels and 0 boundaries"));
  CHECK(has(message_of(ErrorKind::usage, [] { few_bit_lookup({{0, 1}, {1, 2}, false}); }), "table: 2 levels and 2 boundaries"));
  const Activation& gelu = find_activation("gelu");
  const FewBitLookup lookup = few_bit_lookup({{-1, 0, 1}, {0, 1, 2, 3}, false});
  std::vector<float> five(5), six(6);
  std::vector<std::uint8_t> two(2), one(1);
  const auto forward = [&](auto& x, auto& y, auto& stash) {
    return message_of(ErrorKind::usage, [&] { few_bit_forward(gelu, lookup, x, y, stash); });
  };
  CHECK(forward(five, five, two) == "no error");
  CHECK(forward(five, six, two) == "y: 6 elements, expected 5");
  CHECK(forward(five, five, one) == "stash: 1 elements, expected 2");
  CHECK(message_of(ErrorKind::usage, [&] { few_bit_backward(lookup, two, six, five); }) == "grad_x: 5 elements, expected 6");
  CHECK(message_of(ErrorKind::usage, [&] { few_bit_backward(lookup, one, five, five); }) == "stash: 1 elements, expected 2");
}
