#include "layerwise/rules.h"

#include <cmath>

#include "core/bits.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

// One row of n weights, of which every 64th word's upper bits are tails.
struct Row {
  explicit Row(std::size_t n, bool ternary = false)
      : state(n),
        gradient(n, 0.0F),
        valid(n / 64, (std::uint64_t{1} << 50U) - 1),
        sign(n / 64),
        nonzero(ternary ? n / 64 : 0) {}

  RuleRow view() {
    return {state.data(), gradient.data(), valid.data(), sign.data(), nonzero.empty() ? nullptr : nonzero.data(), state.size()};
  }
  bool is_valid(std::size_t k) const { return get_bit(valid.data(), k); }
  bool negative(std::size_t k) const { return get_bit(sign.data(), k); }

  std::vector<std::int16_t> state;
  std::vector<float> gradient;
  std::vector<std::uint64_t> valid, sign, nonzero;
};

}  // namespace

TEST_CASE("rules are found by name", "[rules]") {
  CHECK(update_rules().size() >= 4);
  for (const UpdateRule& rule : update_rules()) {
    CHECK(&find_rule(rule.name) == &rule);
    CHECK_FALSE(std::string(rule.description).empty());
    CHECK(rule.state_bits <= 16);
  }
  const std::string message = message_of(ErrorKind::usage, [] { find_rule("accumulat"); });
  CHECK(has(message, "`rule`: 'accumulat'; did you mean 'accumulate'?"));
}

TEST_CASE("no rule sets the bits of tails, and all are deterministic", "[rules]") {
  RuleOptions options;
  options.learning_rate = 0.3;
  options.flip_rate = 0.5;
  for (const UpdateRule& rule : update_rules()) {
    for (const bool ternary : {false, true}) {
      if (ternary && !rule.ternary) continue;
      INFO(rule.name << (ternary ? " ternary" : ""));
      Row row(640, ternary), again(640, ternary), other(640, ternary);
      rule.initialise(options, 5, row.view());
      rule.initialise(options, 5, again.view());
      rule.initialise(options, 6, other.view());
      CHECK(row.sign == again.sign);
      CHECK(row.sign != other.sign);
      Random random(1, Stream::test);
      std::size_t moved = 0;
      for (int step = 0; step < 10; ++step) {
        const auto before = row.sign;
        for (std::size_t k = 0; k < 640; ++k) row.gradient[k] = again.gradient[k] = static_cast<float>(random.normal());
        rule.update(options, 1.0, 100 + static_cast<std::uint64_t>(step), row.view());
        rule.update(options, 1.0, 100 + static_cast<std::uint64_t>(step), again.view());
        REQUIRE(row.sign == again.sign);
        REQUIRE(row.state == again.state);
        REQUIRE(row.nonzero == again.nonzero);
        moved += before != row.sign ? 1 : 0;
        for (std::size_t w = 0; w < row.sign.size(); ++w) {
          REQUIRE((row.sign[w] & ~row.valid[w]) == 0);
          if (!ternary) continue;
          REQUIRE((row.nonzero[w] & ~row.valid[w]) == 0);
          REQUIRE((row.sign[w] & ~row.nonzero[w]) == 0);
        }
      }
      CHECK((moved > 0 || rule.score != nullptr));  // topk's flips are chosen by the trainer
    }
  }
}

TEST_CASE("half of the weights start negative", "[rules]") {
  for (const UpdateRule& rule : update_rules()) {
    Row row(64 * 1000);
    rule.initialise({}, 9, row.view());
    double negative = 0;
    for (std::size_t k = 0; k < row.state.size(); ++k) negative += row.negative(k) ? 1 : 0;
    const double n = 50.0 * 1000.0;
    INFO(rule.name);
    // Accumulators of 8 bits start at 0 now and then, and 0 is positive.
    CHECK(std::fabs(negative - n / 2) < 0.03 * n);
  }
}

TEST_CASE("weights that learn again are those that were there", "[rules]") {
  for (const UpdateRule& rule : update_rules()) {
    for (const bool ternary : {false, true}) {
      if (ternary && !rule.ternary) continue;
      INFO(rule.name << (ternary ? ", ternary" : ""));
      Row row(4096, ternary);
      Random random(4, Stream::test);
      for (std::size_t w = 0; w < row.sign.size(); ++w) {
        row.sign[w] = random.next() & row.valid[w];
        if (!ternary) continue;
        row.nonzero[w] = random.next() & row.valid[w];
        row.sign[w] &= row.nonzero[w];
      }
      const auto sign = row.sign;
      const auto nonzero = row.nonzero;
      std::fill(row.state.begin(), row.state.end(), std::int16_t{77});
      rule.adopt({}, 5, row.view());
      // A step without gradient changes nothing.
      rule.update({}, 1.0, 6, row.view());
      CHECK(row.sign == sign);
      CHECK(row.nonzero == nonzero);
    }
  }
}

TEST_CASE("accumulators descend the gradient and are clipped", "[rules]") {
  const UpdateRule& rule = find_rule("accumulate");
  RuleOptions options;
  options.learning_rate = 0.01;
  Row row(64);
  for (std::size_t k = 0; k < 64; ++k) row.state[k] = static_cast<std::int16_t>(1000 * (static_cast<int>(k) - 32));
  row.state[0] = -32700;
  row.state[1] = 32700;
  row.state[2] = 100;
  row.gradient = std::vector<float>(64, 1.0F);
  row.gradient[0] = 3.0F;
  row.gradient[1] = -3.0F;
  row.gradient[3] = 0.0F;
  const auto before = row.state;
  rule.update(options, 0.5, 0, row.view());
  CHECK(row.state[0] == -32767);
  CHECK(row.state[1] == 32767);
  CHECK(row.state[2] == -64);  // 100 - 0.005 x 32767
  CHECK(row.negative(2));
  CHECK(row.state[3] == before[3]);
  for (std::size_t k = 4; k < 64; ++k) REQUIRE(before[k] - row.state[k] == 164);
  for (std::size_t k = 0; k < 50; ++k) REQUIRE(row.negative(k) == (row.state[k] < 0));
}

TEST_CASE("ternary weights are 0 within the dead zone", "[rules]") {
  const UpdateRule& rule = find_rule("accumulate");
  CHECK(rule.ternary);
  RuleOptions options;
  options.dead_zone = 0.03;  // 983 of 32767
  Row row(64, true);
  const std::vector<std::int16_t> states = {0, 983, 984, -983, -984, 20000, -20000};
  std::copy(states.begin(), states.end(), row.state.begin());
  rule.update(options, 1.0, 0, row.view());
  const std::vector<int> expected = {0, 0, 1, 0, -1, 1, -1};
  for (std::size_t k = 0; k < expected.size(); ++k) {
    const int value = get_bit(row.nonzero.data(), k) ? bit_value(row.negative(k)) : 0;
    CHECK(value == expected[k]);
  }
}

TEST_CASE("topk averages gradients over steps", "[rules]") {
  const UpdateRule& rule = find_rule("topk");
  RuleOptions options;
  options.momentum = 0.9;
  Row row(64);
  row.gradient[0] = 1.0F;
  row.gradient[1] = -1.0F;
  row.gradient[2] = 1000.0F;
  for (int step = 1; step <= 7; ++step) rule.update(options, 1.0, 0, row.view());
  // 1 - 0.9^7 of a root mean square, rounded in every step; the average is clipped at four of them.
  CHECK(std::abs(row.state[0] - 2137) <= 4);
  CHECK(row.state[1] == -row.state[0]);
  CHECK(row.state[2] == 16383);
  CHECK(row.state[3] == 0);
  // By how much a weight of +1 and of -1 wants to flip.
  CHECK(rule.score(row.state[0], false) == row.state[0]);
  CHECK(rule.score(row.state[0], true) == -row.state[0]);
}

TEST_CASE("stochastic flips happen at the rate of the gradient", "[rules]") {
  const UpdateRule& rule = find_rule("stochastic");
  CHECK(rule.state_bits == 1);
  RuleOptions options;
  options.flip_rate = 0.02;
  constexpr std::size_t n = 64 * 2000;
  Row row(n);
  for (std::size_t w = 0; w < n / 64; ++w) row.sign[w] = row.valid[w] & 0xFFFF0000FFFF0000ULL;
  const auto before = row.sign;
  // Gradient 2 pushes +1 weights over, and never -1 weights; half of the rate: probability 0.02.
  std::fill(row.gradient.begin(), row.gradient.end(), 2.0F);
  rule.update(options, 0.5, 77, row.view());
  double flips = 0;
  double positive = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const bool was = get_bit(before.data(), k);
    if (was) REQUIRE(row.negative(k));
    if (was || !row.is_valid(k)) continue;
    positive += 1;
    flips += row.negative(k) ? 1 : 0;
  }
  CHECK(std::fabs(flips - 0.02 * positive) < 5 * std::sqrt(0.02 * positive));
}

TEST_CASE("greedy wants the single flip that this batch likes best", "[rules]") {
  const UpdateRule& rule = find_rule("greedy");
  RuleOptions options;
  CHECK(rule.flips(options, 0.3, 1e6) == 1);
  CHECK(find_rule("topk").flips(options, 0.5, 1e6) == 1500);
  Row row(64);
  row.gradient[5] = 2.0F;
  row.gradient[6] = -3.0F;
  rule.update(options, 1.0, 0, row.view());
  CHECK(rule.score(row.state[5], false) > 0);
  CHECK(rule.score(row.state[6], false) < 0);
  CHECK(rule.score(row.state[6], true) > rule.score(row.state[5], false));
}
