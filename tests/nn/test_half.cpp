#include "core/half.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/random.h"
#include "tests/support/catch.h"

using namespace bitloom;

namespace {

// Meaning of the bits of a format, from its definition, in double precision.
struct Format {
  int exponent_bits, fraction_bits;

  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  double value_of(std::uint16_t bits) const {
    const int fraction = bits & ((1 << fraction_bits) - 1);
    const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
    }
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias() - fraction_bits);
    return sign * std::ldexp((1 << fraction_bits) + fraction, exponent - bias() - fraction_bits);
  }
  // The code nearest to |x|, with the sign of x: by bisection among the finite ones, which ascend with their bits. What would
  // be the next code stands for infinity. Of two as near, the even one.
  std::uint16_t nearest(double x) const {
    const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
    const double size = std::fabs(x);
    const auto infinity = static_cast<std::uint16_t>(((1 << exponent_bits) - 1) << fraction_bits);
    const auto finite = [&](int code) {  // the value that infinity's code would have if exponents went on
      return code < infinity ? value_of(static_cast<std::uint16_t>(code)) : std::ldexp(1.0, infinity_exponent());
    };
    int low = 0;
    int high = infinity;
    if (size >= finite(high)) return static_cast<std::uint16_t>(sign | infinity);
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (finite(middle) <= size ? low : high) = middle;
    }
    const double below = size - finite(low);
    const double above = finite(high) - size;
    const bool up = above < below || (above == below && high % 2 == 0);
    return static_cast<std::uint16_t>(sign | (up ? high : low));
  }
  int infinity_exponent() const { return bias() + 1; }
};

constexpr Format bf16_format = {8, 7};
constexpr Format f16_format = {5, 10};

// Numbers that rounding might get wrong: every code's value, the middle to the next, and its neighbours.
std::vector<float> hard_numbers(const Format& format) {
  std::vector<float> numbers;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const double here = format.value_of(static_cast<std::uint16_t>(code));
    const double next = format.value_of(static_cast<std::uint16_t>(code + 1));
    if (!std::isfinite(here)) continue;
    const auto exact = static_cast<float>(here);
    const auto middle = static_cast<float>(std::isfinite(next) ? (here + next) / 2 : here * (1 + std::ldexp(1.0, -9)));
    for (const float x : {exact, middle}) {
      numbers.push_back(x);
      numbers.push_back(std::nextafter(x, std::numeric_limits<float>::infinity()));
      numbers.push_back(std::nextafter(x, -std::numeric_limits<float>::infinity()));
    }
  }
  return numbers;
}

// The first of the numbers that a conversion rounds otherwise than by the definition, as text; "" if there is none.
template <typename Convert>
std::string first_wrong(const Format& format, const std::vector<float>& numbers, Convert convert) {
  for (const float x : numbers) {
    if (std::isnan(x)) continue;
    if (convert(x).bits != format.nearest(x)) {
      return std::to_string(x) + " becomes " + std::to_string(convert(x).bits) + ", not " + std::to_string(format.nearest(x));
    }
  }
  return "";
}

std::vector<float> any_numbers() {
  Random random(3, Stream::test);
  std::vector<float> numbers(200000);
  for (float& x : numbers) x = std::bit_cast<float>(static_cast<std::uint32_t>(random.next()));
  return numbers;
}

}  // namespace

TEST_CASE("all 65,536 codes of bf16 and f16 mean what the formats say, and come back", "[nn][half]") {
  std::size_t wrong_values = 0;
  std::size_t wrong_codes = 0;
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const auto bits = static_cast<std::uint16_t>(code);
    const float from_bf16 = to_float(bf16{bits});
    const float from_f16 = to_float(f16{bits});
    const double bf16_value = bf16_format.value_of(bits);
    const double f16_value = f16_format.value_of(bits);
    if (std::isnan(bf16_value)) {
      if (!std::isnan(from_bf16) || !std::isnan(to_float(to_bf16(from_bf16)))) ++wrong_values;
    } else {
      if (from_bf16 != bf16_value || std::signbit(from_bf16) != std::signbit(bf16_value)) ++wrong_values;
      if (to_bf16(from_bf16).bits != bits) ++wrong_codes;
    }
    if (std::isnan(f16_value)) {
      if (!std::isnan(from_f16) || !std::isnan(to_float(to_f16(from_f16)))) ++wrong_values;
    } else {
      if (from_f16 != f16_value || std::signbit(from_f16) != std::signbit(f16_value)) ++wrong_values;
      if (to_f16(from_f16).bits != bits) ++wrong_codes;
    }
  }
  CHECK(wrong_values == 0);
  CHECK(wrong_codes == 0);
}

TEST_CASE("floats are rounded to the nearest bf16 and f16, ties to even", "[nn][half]") {
  CHECK(first_wrong(bf16_format, hard_numbers(bf16_format), [](float x) { return to_bf16(x); }) == "");
  CHECK(first_wrong(f16_format, hard_numbers(f16_format), [](float x) { return to_f16(x); }) == "");
  CHECK(first_wrong(bf16_format, any_numbers(), [](float x) { return to_bf16(x); }) == "");
  CHECK(first_wrong(f16_format, any_numbers(), [](float x) { return to_f16(x); }) == "");
}

TEST_CASE("known roundings to bf16 and f16", "[nn][half]") {
  CHECK(to_bf16(1.0F).bits == 0x3F80);
  CHECK(to_bf16(1.0F + 0x1p-8F).bits == 0x3F80);            // a tie, down to even
  CHECK(to_bf16(1.0F + 0x1p-7F + 0x1p-8F).bits == 0x3F82);  // a tie, up to even
  CHECK(to_bf16(std::numeric_limits<float>::max()).bits == 0x7F80);
  CHECK(to_bf16(-0.0F).bits == 0x8000);
  CHECK(to_f16(65504.0F).bits == 0x7BFF);
  CHECK(to_f16(65519.996F).bits == 0x7BFF);
  CHECK(to_f16(65520.0F).bits == 0x7C00);
  CHECK(to_f16(-1e30F).bits == 0xFC00);
  CHECK(to_f16(0x1p-24F).bits == 0x0001);
  CHECK(to_f16(0x1p-25F).bits == 0x0000);  // a tie, down to even
  CHECK(to_f16(0x1p-25F + 0x1p-40F).bits == 0x0001);
  CHECK(to_f16(0x1p-14F - 0x1p-26F).bits == 0x0400);  // rounds up to the first normal number
  CHECK(std::isnan(to_float(to_bf16(std::nanf("")))));
  CHECK(std::isnan(to_float(to_f16(std::nanf("")))));
  // A NaN whose payload is in the low bits alone must not become infinity.
  CHECK(std::isnan(to_float(to_bf16(std::bit_cast<float>(0x7F800001U)))));
  CHECK(std::isnan(to_float(to_f16(std::bit_cast<float>(0x7F800001U)))));
}
