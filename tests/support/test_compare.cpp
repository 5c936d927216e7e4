// Tests of the comparator: it must reject what a broken kernel produces.
#include <array>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/compare.h"

using bitloom::test::compare;

namespace {

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

std::string compared(const std::vector<float>& actual, const std::vector<float>& expected, double limit) {
  return compare(std::span<const float>(actual), std::span<const float>(expected), limit);
}

bool mentions(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("compare accepts equal and close values", "[compare]") {
  CHECK(compared({1, -2, 3}, {1, -2, 3}, 1e-9) == "");
  CHECK(compared({1.0001F, -2, 3}, {1, -2, 3}, 1e-3) == "");
  CHECK(compared({0, 0}, {0, 0}, 1e-9) == "");
  const std::array<double, 2> actual = {1, 1 + 1e-12};
  const std::array<double, 2> expected = {1, 1};
  CHECK(compare(std::span<const double>(actual), std::span<const double>(expected), 1e-11) == "");
  CHECK(compare(std::span<const double>(actual), std::span<const double>(expected), 1e-13) != "");
}

TEST_CASE("compare names the worst element, its values and the limit", "[compare]") {
  const std::string message = compared({1, 2.5F, 3.25F}, {1, 2, 3}, 1e-3);
  CHECK(mentions(message, "element 1 is 2.5, expected 2"));
  CHECK(mentions(message, "0.001"));
}

TEST_CASE("compare measures small elements against the whole array", "[compare]") {
  CHECK(compared({100, 1e-6F}, {100, 0}, 1e-6) == "");
  CHECK(compared({100, 1e-2F}, {100, 0}, 1e-6) != "");
  CHECK(compared({1e-3F, 0}, {0, 0}, 1e-6) != "");
}

TEST_CASE("compare rejects values that are not finite, whatever the limit", "[compare]") {
  const double limit = std::numeric_limits<double>::infinity();
  CHECK(mentions(compared({1, nan_value}, {1, 2}, limit), "element 1 is nan"));
  CHECK(mentions(compared({1, infinity}, {1, infinity}, limit), "element 1 is inf"));
  CHECK(mentions(compared({1, 2}, {1, nan_value}, limit), "reference is nan"));
  CHECK(compared({nan_value}, {nan_value}, limit) != "");
}

TEST_CASE("compare rejects a limit that is not a number", "[compare]") { CHECK(compared({1}, {1}, nan_value) != ""); }

TEST_CASE("compare rejects all-zero output, wrong sizes and nothing at all", "[compare]") {
  CHECK(mentions(compared({0, 0}, {1, 2}, 1e9), "zero throughout"));
  CHECK(mentions(compared({1, 2}, {1, 2, 3}, 1e9), "2 elements, expected 3"));
  CHECK(mentions(compared({1, 2, 3}, {}, 1e9), "3 elements, expected 0"));
  CHECK(mentions(compared({}, {}, 1e9), "nothing to compare"));
}
