// 1-6-9 and 0-6-10, code by code, against their definition in double precision.
#include "core/narrow.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "core/random.h"
#include "tests/support/catch.h"

using namespace bitloom;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// Meaning of the bits of a format, from its definition.
struct Format {
  bool has_sign;
  int fraction_bits, bias;

  int first_infinite() const { return 63 << fraction_bits; }
  int fraction_mask() const { return (1 << fraction_bits) - 1; }
  // Size of a code without a sign; infinity's code is the number that would follow the largest.
  double size_of(int code) const {
    const int exponent = code >> fraction_bits;
    if (exponent == 0) return std::ldexp(code, 1 - bias - fraction_bits);
    return std::ldexp((1 << fraction_bits) + (code & fraction_mask()), exponent - bias - fraction_bits);
  }
  double value_of(int bits) const {
    const bool is_negative = has_sign && (bits & 0x8000) != 0;
    const int code = has_sign ? bits & 0x7FFF : bits;
    if (code > first_infinite()) return std::numeric_limits<double>::quiet_NaN();
    const double size = code == first_infinite() ? infinity : size_of(code);
    return is_negative ? -size : size;
  }
  // The code nearest to size >= 0, by bisection: codes ascend with their values. Of two as near, the even one.
  int nearest(double size) const {
    int low = 0;
    int high = first_infinite();
    if (size >= size_of(high)) return high;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (size_of(middle) <= size ? low : high) = middle;
    }
    const double below = size - size_of(low);
    const double above = size_of(high) - size;
    return above < below || (above == below && high % 2 == 0) ? high : low;
  }
};

constexpr Format format_1_6_9 = {true, 9, 59};
constexpr Format format_0_6_10 = {false, 10, 60};

bool is_same(double a, double b) { return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b)); }

// Sizes that rounding might get wrong: every code's, the middle to the next, their neighbours, and what floats have beyond.
std::vector<float> hard_sizes(const Format& format) {
  std::vector<float> sizes{0.0F,  std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::min(),     1e-30F,
                           1e30F, std::numeric_limits<float>::max(),        std::numeric_limits<float>::infinity()};
  for (int code = 0; code < format.first_infinite(); ++code) {
    const auto value = static_cast<float>(format.size_of(code));
    const auto middle = static_cast<float>((format.size_of(code) + format.size_of(code + 1)) / 2);
    for (const float x : {value, middle}) {
      sizes.push_back(x);
      sizes.push_back(std::nextafter(x, std::numeric_limits<float>::infinity()));
      if (x > 0) sizes.push_back(std::nextafter(x, 0.0F));
    }
  }
  Random random(1, Stream::test);
  for (int i = 0; i < 10000; ++i) sizes.push_back(static_cast<float>(std::exp(60 * random.uniform() - 55)));
  return sizes;
}

}  // namespace

TEST_CASE("all codes of 1-6-9 have the value of the definition and come back", "[narrow]") {
  for (int code = 0; code < 0x10000; ++code) {
    const f1_6_9 x{static_cast<std::uint16_t>(code)};
    const float value = to_float(x);
    if (!is_same(value, format_1_6_9.value_of(code))) FAIL("code " << code << " is " << value);
    if (!(std::isnan(value) ? std::isnan(to_float(to_f1_6_9(value))) : to_f1_6_9(value) == x)) FAIL("code " << code);
  }
  CHECK(to_float(f1_6_9{0x7DFF}) == 15.984375F);
  CHECK(to_float(f1_6_9{1}) == 0x1p-67F);
  CHECK(to_float(f1_6_9{0x200}) == 0x1p-58F);
}

TEST_CASE("all codes of 0-6-10 have the value of the definition and come back", "[narrow]") {
  for (int code = 0; code < 0x10000; ++code) {
    const f0_6_10 x{static_cast<std::uint16_t>(code)};
    const float value = to_float(x);
    if (!is_same(value, format_0_6_10.value_of(code))) FAIL("code " << code << " is " << value);
    if (!(std::isnan(value) ? std::isnan(to_float(to_f0_6_10(value))) : to_f0_6_10(value) == x)) FAIL("code " << code);
  }
  CHECK(to_float(f0_6_10{0xFBFF}) == 7.99609375F);
  CHECK(to_float(f0_6_10{1}) == 0x1p-69F);
}

TEST_CASE("codes of 1-6-9 and 0-6-10 ascend with their values", "[narrow]") {
  for (int code = 1; code <= format_1_6_9.first_infinite(); ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const auto below = static_cast<std::uint16_t>(code - 1);
    if (!(to_float(f1_6_9{bits}) > to_float(f1_6_9{below}))) FAIL("code " << code);
    const auto sign = [](std::uint16_t x) { return static_cast<std::uint16_t>(x | 0x8000U); };
    if (!(to_float(f1_6_9{sign(bits)}) < to_float(f1_6_9{sign(below)}))) FAIL("code -" << code);
  }
  for (int code = 1; code <= format_0_6_10.first_infinite(); ++code) {
    const f0_6_10 x{static_cast<std::uint16_t>(code)}, below{static_cast<std::uint16_t>(code - 1)};
    if (!(to_float(x) > to_float(below))) FAIL("code " << code);
  }
}

TEST_CASE("floats become the nearest code of 1-6-9, ties the even one", "[narrow]") {
  for (const float size : hard_sizes(format_1_6_9)) {
    const int expected = format_1_6_9.nearest(size);
    if (to_f1_6_9(size).bits != expected) FAIL(size << " becomes " << to_f1_6_9(size).bits << ", not " << expected);
    if (to_f1_6_9(-size).bits != (expected | 0x8000)) FAIL(-size << " becomes " << to_f1_6_9(-size).bits);
  }
  CHECK(to_float(to_f1_6_9(15.99F)) == 15.984375F);
  CHECK(to_float(to_f1_6_9(15.9921875F)) == infinity);
  CHECK(to_float(to_f1_6_9(-1e9F)) == -infinity);
  CHECK(std::isnan(to_float(to_f1_6_9(std::numeric_limits<float>::quiet_NaN()))));
  CHECK(std::isnan(to_float(to_f1_6_9(std::numeric_limits<float>::signaling_NaN()))));
  CHECK(std::isnan(to_float(to_f1_6_9(-std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("floats become the nearest code of 0-6-10, negative ones 0", "[narrow]") {
  for (const float size : hard_sizes(format_0_6_10)) {
    const int expected = format_0_6_10.nearest(size);
    if (to_f0_6_10(size).bits != expected) FAIL(size << " becomes " << to_f0_6_10(size).bits << ", not " << expected);
    if (std::isfinite(size) && to_f0_6_10(-size).bits != 0) FAIL(-size << " becomes " << to_f0_6_10(-size).bits);
  }
  CHECK(to_float(to_f0_6_10(5.0F)) == 5.0F);  // at which the running variance is clipped
  CHECK(to_float(to_f0_6_10(7.998046875F)) == infinity);
  for (const float x : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN(),
                        -std::numeric_limits<float>::infinity()}) {
    CHECK(std::isnan(to_float(to_f0_6_10(x))));
  }
}

TEST_CASE("infinity clamps to the largest number of 1-6-9, with its sign", "[narrow]") {
  for (int code = 0; code < 0x10000; ++code) {
    const f1_6_9 x{static_cast<std::uint16_t>(code)};
    const double value = format_1_6_9.value_of(code);
    const double expected = std::isinf(value) ? std::copysign(15.984375, value) : value;
    if (!is_same(to_float(clamped(x)), expected)) FAIL("code " << code << " clamps to " << to_float(clamped(x)));
  }
}

TEMPLATE_TEST_CASE("arrays are converted as their elements are", "[narrow]", f1_6_9, f0_6_10) {
  Random random(2, Stream::test);
  for (const std::size_t n : {0U, 1U, 3U, 7U, 8U, 9U, 31U, 64U, 1000U}) {
    std::vector<float> values(n);
    for (float& x : values) x = static_cast<float>(random.normal() * std::exp(40 * random.uniform() - 36));
    if (n > 8) values[5] = std::numeric_limits<float>::infinity();
    std::vector<TestType> codes(n, TestType{0xABCD});
    std::vector<float> back(n, -7);
    convert(values, codes);
    convert(codes, back);
    for (std::size_t i = 0; i < n; ++i) {
      if constexpr (std::is_same_v<TestType, f1_6_9>) {
        REQUIRE(codes[i] == to_f1_6_9(values[i]));
      } else {
        REQUIRE(codes[i] == to_f0_6_10(values[i]));
      }
      REQUIRE(is_same(back[i], to_float(codes[i])));
    }
  }
}

static_assert(to_float(to_f1_6_9(-3.140625F)) == -3.140625F && to_float(to_f0_6_10(0.75F)) == 0.75F);
