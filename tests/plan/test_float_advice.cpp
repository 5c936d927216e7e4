// Advice on how data-parallel ranks exchange what they learn: which of several ways is chosen, by numbers.
#include "plan/float_advice.h"

#include <vector>

#include "tests/support/catch.h"

using namespace bitloom::plan;

namespace {

constexpr double computing = 1;

ExchangeWay whole(double seconds) { return {Exchange::whole, 0, seconds, 0.5, true}; }
ExchangeWay factors(std::uint64_t rank, double seconds) { return {Exchange::factors, rank, seconds, 0.4, true}; }
ExchangeWay local(std::uint64_t steps, double seconds) { return {Exchange::local_steps, steps, seconds, 0.3, true}; }

struct Case {
  std::vector<ExchangeWay> ways;
  Exchange expected;
  std::uint64_t number;
};

}  // namespace

TEST_CASE("ways that leave less of a step are chosen where they save more than little of its time", "[float_plan]") {
  const std::vector<Case> cases = {
      // However much faster others are.
      {{whole(1.04), factors(4, 1.001), local(10, 1)}, Exchange::whole, 0},
      // Factors that suit, but save next to nothing.
      {{whole(1.06), factors(8, 1.049), factors(4, 1.01), local(10, 1)}, Exchange::local_steps, 10},
      {{whole(9), factors(8, 2), factors(4, 1.04), factors(2, 1.02), local(10, 0.9)}, Exchange::factors, 4},
      {{whole(9), factors(8, 3), factors(4, 2), local(10, 1.2), local(30, 1.03), local(100, 1.01)}, Exchange::local_steps, 30},
      // None is about as fast as computing alone: of those that are about as fast as the fastest the first.
      {{whole(9), factors(8, 3), factors(4, 2), local(10, 1.6), local(30, 1.3), local(100, 1.28)}, Exchange::local_steps, 30},
      {{whole(9), factors(8, 3), factors(4, 2)}, Exchange::factors, 4},
      {{whole(1.3), factors(8, 1.29), factors(4, 1.31)}, Exchange::whole, 0},
      {{whole(1.2), factors(8, 1.12), local(10, 1.08)}, Exchange::factors, 8},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    CAPTURE(i);
    const auto advice = choose_exchange(computing, cases[i].ways);
    REQUIRE(advice.has_value());
    CHECK(advice->chosen.exchange == cases[i].expected);
    CHECK(advice->chosen.number == cases[i].number);
    CHECK(advice->computing == computing);
  }
}

TEST_CASE("advice names the best way of each kind, and none that does not fit", "[float_plan]") {
  std::vector<ExchangeWay> ways = {whole(9), factors(8, 3), factors(4, 2.95), factors(2, 2.9), local(10, 1.2), local(30, 1.03)};
  const auto advice = choose_exchange(computing, ways);
  REQUIRE(advice.has_value());
  REQUIRE(advice->best.size() == 3);
  CHECK(advice->best[0].seconds == 9);
  CHECK(advice->best[1].number == 8);  // about as fast as the fastest
  CHECK(advice->best[2].number == 30);
  for (std::size_t i = 1; i < ways.size(); ++i) ways[i].fits = false;
  const auto rest = choose_exchange(computing, ways);
  REQUIRE(rest.has_value());
  CHECK(rest->best.size() == 1);
  CHECK(rest->chosen.exchange == Exchange::whole);
  ways[0].fits = false;
  CHECK_FALSE(choose_exchange(computing, ways).has_value());
}
