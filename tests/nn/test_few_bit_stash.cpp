#include "nn/few_bit_stash.h"

#include <cmath>
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
const std::vector<std::size_t> lengths{0, 1, 2, 3, 5, 7, 8, 9, 13, 31, 32, 33, 63, 64, 65, 127, 251, 576, 1009};

FewBitTable quick_table(const Activation& activation, unsigned bits) {
  return fit_few_bit(few_bit_problem(activation, uniform_weight(), -10, 10), bits, {.points = 1000, .polish = true});
}

}  // namespace

TEST_CASE("numbers of any width are packed without gaps, low bits first, and come back", "[bit_pack]") {
  CHECK(packed_bytes(0, 3) == 0);
  CHECK(packed_bytes(std::size_t{1} << 62, 8) == std::size_t{1} << 62);
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const std::size_t size : lengths) {
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
  for (const float x : {-2.0F, -0.0F, 0.0F, 1e-30F, -1e-30F, 5.0F}) {
    CAPTURE(x);
    CHECK(lookup.levels[lookup.index(x)] == static_cast<float>(relu.derivative(x)));
  }
}

TEST_CASE("few-bit tables of wrong sizes are refused", "[few_bit_stash]") {
  CHECK(has(message_of(ErrorKind::usage,
                       [] {
                         few_bit_lookup({{0, 1}, {1, 2, 3}, false});
                       }),
            "table: 3 levels and 2 boundaries"));
  CHECK(has(message_of(ErrorKind::usage, [] { few_bit_lookup({{}, {1}, false}); }), "table: 1 levels and 0 boundaries"));
  CHECK(has(message_of(ErrorKind::usage, [] { few_bit_lookup({{0, 1}, {1, 2}, false}); }), "table: 2 levels and 2 boundaries"));
}
