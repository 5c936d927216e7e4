// The integer matrix product and the input encoding's compare.
#include <limits>
#include <string>
#include <vector>

#include "core/bits.h"
#include "core/random.h"
#include "tests/simd/tables_under_test.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a matrix product by hand", "[simd][gemm]") {
  // (2 x 2) times (2 x 16), C starts at 100: row 0 = (1, -2), row 1 = (30000, 3); B row 0 is n, row 1 is 1 - n.
  const std::int16_t a[4] = {1, -2, 30000, 3};
  std::int16_t b[32];
  for (std::int16_t n = 0; n < 16; ++n) {
    b[2 * n] = n;
    b[2 * n + 1] = static_cast<std::int16_t>(1 - n);
  }
  for (const std::string& name : all_tables()) {
    INFO(name);
    std::vector<std::int32_t> c(32, 100);
    table(name).gemm_s16(2, 16, 2, a, 2, b, c.data(), 16);
    for (std::int32_t n = 0; n < 16; ++n) {
      REQUIRE(c[static_cast<std::size_t>(n)] == 100 + n - 2 * (1 - n));
      REQUIRE(c[static_cast<std::size_t>(16 + n)] == 100 + 30000 * n + 3 * (1 - n));
    }
  }
}

TEST_CASE("every table's matrix product equals ref's", "[simd][gemm]") {
  Random random(2, Stream::test);
  for (const std::size_t m : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13}) {
    for (const std::size_t n : {16, 32, 48, 64, 80, 112}) {
      for (const std::size_t k : {2, 6, 32, 74}) {
        const std::size_t a_pitch = k + 3;
        const std::size_t c_pitch = n + 5;
        // The whole range of int16 but -32768, so that long sums wrap modulo 2^32.
        Guarded<std::int16_t> a(m * a_pitch), b(k * n);
        for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<std::int16_t>(random.below(65535) - 32767);
        for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<std::int16_t>(random.below(65535) - 32767);
        Guarded<std::int32_t> start(m * c_pitch);
        for (std::size_t i = 0; i < start.size(); ++i) start[i] = static_cast<std::int32_t>(random.next());
        Guarded<std::int32_t> expected = start;
        table("ref").gemm_s16(m, n, k, a.data(), a_pitch, b.data(), expected.data(), c_pitch);
        REQUIRE(expected.guards_intact());
        for (const std::string& name : contenders()) {
          INFO(name << " M=" << m << " N=" << n << " K=" << k);
          Guarded<std::int32_t> actual = start;
          table(name).gemm_s16(m, n, k, a.data(), a_pitch, b.data(), actual.data(), c_pitch);
          REQUIRE(actual.guards_intact());
          REQUIRE(same(actual, expected));
        }
      }
    }
  }
}

TEST_CASE("every table's threshold bits equal the comparison's definition", "[simd][encode]") {
  Random random(3, Stream::test);
  const std::int32_t lowest = std::numeric_limits<std::int32_t>::min();
  const std::int32_t highest = std::numeric_limits<std::int32_t>::max();
  for (const std::size_t features : {16, 32, 48, 64, 96, 112, 128}) {
    const std::size_t pixels = 7;
    const std::size_t words = words_for(2 * features);
    Guarded<std::int32_t> values(pixels * features), thresholds(2 * features);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int32_t>(random.below(7)) - 3;
    for (std::size_t i = 0; i < thresholds.size(); ++i) thresholds[i] = static_cast<std::int32_t>(random.below(7)) - 3;
    values[1] = lowest;
    values[2] = highest;
    thresholds[2] = lowest;
    thresholds[5] = highest;
    thresholds[6] = highest;  // never
    thresholds[7] = lowest;   // never
    for (const std::string& name : all_tables()) {
      INFO(name << " features=" << features);
      Guarded<std::uint64_t> bits(pixels * words);
      table(name).threshold_pack(values.data(), pixels, features, thresholds.data(), bits.data());
      REQUIRE(bits.guards_intact());
      bool equal = true;
      bool tails_zero = true;
      for (std::size_t p = 0; p < pixels; ++p) {
        for (std::size_t f = 0; f < features; ++f) {
          const std::int32_t value = values[p * features + f];
          equal = equal && get_bit(&bits[p * words], 2 * f) == (value >= thresholds[2 * f]);
          equal = equal && get_bit(&bits[p * words], 2 * f + 1) == (value <= thresholds[2 * f + 1]);
        }
        tails_zero = tails_zero && (bits[p * words + words - 1] & ~tail_mask(2 * features)) == 0;
      }
      REQUIRE(equal);
      REQUIRE(tails_zero);
    }
  }
}
