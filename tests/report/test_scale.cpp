#include <cmath>
#include <limits>

#include "report/scale.h"
#include "tests/support/catch.h"

using namespace bitloom::report;

namespace {

std::vector<std::string> labels(const Scale& scale) {
  std::vector<std::string> result;
  for (const Tick& tick : scale.ticks) result.push_back(tick.label);
  return result;
}

const double nan_value = std::numeric_limits<double>::quiet_NaN();

}  // namespace

TEST_CASE("linear ticks are at 1, 2 or 5 times a power of ten") {
  CHECK(labels(make_scale({0, 10}, false, 5, Fit::tight)) == std::vector<std::string>{"0", "2", "4", "6", "8", "10"});
  CHECK(labels(make_scale({0.71, 0.84}, false, 3, Fit::round)) == std::vector<std::string>{"0.70", "0.75", "0.80", "0.85"});
  CHECK(labels(make_scale({-1, 1}, false, 4, Fit::tight)) == std::vector<std::string>{"-1.0", "-0.5", "0", "0.5", "1.0"});
  CHECK(labels(make_scale({0, 40000}, false, 4, Fit::tight)).back() == "40k");
  const Scale tight = make_scale({0.3, 9.7}, false, 5, Fit::tight);
  CHECK(tight.low == 0.3);
  CHECK(tight.high == 9.7);
  CHECK(labels(tight) == std::vector<std::string>{"2", "4", "6", "8"});
}

TEST_CASE("scales of every range have ticks within them and finite positions") {
  const auto [low, high] =
      GENERATE(std::pair{0.0, 0.0}, std::pair{5.0, 5.0}, std::pair{-3.0, -3.0}, std::pair{1e-12, 2e-12}, std::pair{-1e30, 1e30},
               std::pair{1e9, 1e9 + 1e-3}, std::pair{0.1, 0.10001}, std::pair{1.0, 0.0});
  for (const Fit fit : {Fit::tight, Fit::round}) {
    for (const bool logarithmic : {false, true}) {
      if (logarithmic && !(low > 0)) continue;
      INFO("range " << low << " to " << high << ", logarithmic " << logarithmic);
      const Scale scale = make_scale({low, high}, logarithmic, 5, fit);
      REQUIRE(scale.low < scale.high);
      REQUIRE(!scale.ticks.empty());
      REQUIRE(scale.ticks.size() <= 24);
      for (const Tick& tick : scale.ticks) {
        REQUIRE(!tick.label.empty());
        REQUIRE((scale.at(tick.value) > -1e-5 && scale.at(tick.value) < 1 + 1e-5));
      }
    }
  }
}

// The accuracy of a run that got all images right stood on an axis up to 110%.
TEST_CASE("an axis of one percentage ends at 0 and 100") {
  const auto ends = [](double value) {
    const Scale scale = make_scale({value, value}, false, 6, Fit::round, percentages);
    return std::pair(scale.low, scale.high);
  };
  CHECK(ends(100) == std::pair(90.0, 100.0));
  CHECK(ends(95).second == 100);
  CHECK(ends(0) == std::pair(0.0, 1.0));
  CHECK(ends(50) == std::pair(44.0, 56.0));
  CHECK(ends(120).second > 120 - 1e-9);
  CHECK(make_scale({98.5, 100}, false, 6, Fit::round, percentages).high == 100);
}

TEST_CASE("logarithmic ticks are at powers of ten") {
  CHECK(labels(make_scale({3, 20000}, true, 6, Fit::round)) ==
        std::vector<std::string>{"1", "10", "100", "1,000", "10k", "100k"});
  CHECK(labels(make_scale({3, 7}, true, 6, Fit::round)) == std::vector<std::string>{"1", "2", "5", "10"});
  const Scale scale = make_scale({1, 100}, true, 6, Fit::round);
  CHECK(scale.at(10) == Catch::Approx(0.5));
}

TEST_CASE("values that cannot be drawn do not widen a range") {
  Range range;
  range.add(nan_value);
  range.add(std::numeric_limits<double>::infinity());
  range.add(1e300);
  CHECK(range.empty());
  range.add(0, true);
  range.add(-1, true);
  CHECK(range.empty());
  range.add(2, true);
  CHECK(range.low == 2);
  CHECK(range.high == 2);
}

TEST_CASE("numbers are written for people") {
  CHECK(tick_label(0.1 + 0.2 - 0.3, 0.1) == "0");
  CHECK(tick_label(1500, 500) == "1,500");
  CHECK(tick_label(2.5e6, 5e5) == "2.5M");
  CHECK(tick_label(1e-6, 1e-6) == "1e-06");
  CHECK(grouped(3981312) == "3,981,312");
  CHECK(grouped(-1234) == "−1,234");
  CHECK(grouped(-0.2) == "0");
  CHECK(grouped(999) == "999");
  CHECK(grouped(1e300) == "1e+300");
  CHECK(grouped(nan_value) == "?");
}
