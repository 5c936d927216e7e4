// The split of a net's layers into parts of least variance, against all splits; and splits given by hand.
#include "train/parallel/partition.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>

#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

// Variance of the parts' costs.
double variance(std::span<const double> costs, const Partition& partition) {
  std::vector<double> parts;
  for (const LayerRange& range : partition) {
    parts.push_back(0);
    for (std::size_t i = range.first; i < range.last; ++i) parts.back() += costs[i];
  }
  double mean = 0, sum = 0;
  for (const double part : parts) mean += part / static_cast<double>(parts.size());
  for (const double part : parts) sum += (part - mean) * (part - mean) / static_cast<double>(parts.size());
  return sum;
}

// All splits, those with a shorter first part first, then with a shorter second one, ...
void for_each_split(std::size_t layers, std::size_t parts, const std::function<void(const Partition&)>& f,
                    const Partition& begun = {}) {
  const std::size_t begin = begun.empty() ? 0 : begun.back().last;
  if (parts == 0) {
    if (begin == layers) f(begun);
    return;
  }
  for (std::size_t end = begin + 1; end <= layers; ++end) {
    Partition longer = begun;
    longer.push_back({begin, end});
    for_each_split(layers, parts - 1, f, longer);
  }
}

Partition brute_force(std::span<const double> costs, std::size_t parts) {
  Partition best;
  double least = std::numeric_limits<double>::infinity();
  for_each_split(costs.size(), parts, [&](const Partition& split) {
    // Equal variances of integers may differ by rounding.
    if (const double each = variance(costs, split); each < least - 1e-6) {
      least = each;
      best = split;
    }
  });
  return best;
}

}  // namespace

TEST_CASE("the split of least variance is the best of all splits, the first of equals", "[partition]") {
  std::size_t ties = 0, compared = 0;
  for (std::size_t layers = 1; layers <= 12; ++layers) {
    for (std::size_t parts = 1; parts <= layers; ++parts) {
      for (std::uint64_t trial = 0; trial < 4; ++trial) {
        // Costs of 1 to 3 tie often, those up to 1000 seldom.
        Random random(trial, Stream::test, layers, parts);
        std::vector<double> costs(layers);
        for (double& cost : costs) cost = 1 + random.below(trial % 2 == 0 ? 3 : 1000);
        const Partition found = partition(costs, parts);
        CAPTURE(layers, parts, trial);
        CHECK(found == brute_force(costs, parts));
        std::size_t equals = 0;
        for_each_split(layers, parts, [&](const Partition& split) {
          equals += std::abs(variance(costs, split) - variance(costs, found)) < 1e-6 ? 1U : 0U;
        });
        ties += equals > 1 ? 1U : 0U;
        ++compared;
      }
    }
  }
  CHECK(compared == 4 * 78);
  CHECK(ties > 40);  // otherwise the rule for ties was hardly tested
}

TEST_CASE("costs of any size, fractions too, are split as well as by all splits", "[partition]") {
  for (const double unit : {1e-12, 0.1, 7.3e14}) {
    for (std::uint64_t trial = 0; trial < 20; ++trial) {
      Random random(trial, Stream::test);
      std::vector<double> costs(11);
      for (double& cost : costs) cost = unit * random.uniform();
      const double least = variance(costs, [&] {
        Partition best;
        for_each_split(costs.size(), 4, [&](const Partition& split) {
          if (best.empty() || variance(costs, split) < variance(costs, best)) best = split;
        });
        return best;
      }());
      CAPTURE(unit, trial);
      CHECK(variance(costs, partition(costs, 4)) <= least + 1e-7 * unit * unit);
    }
  }
}

TEST_CASE("equal layers make equal parts, longer ones last", "[partition]") {
  const std::vector<double> costs(14, 1.2345e11);
  CHECK(to_text(partition(costs, 4)) == "3,3,4,4");
  CHECK(to_text(partition(costs, 7)) == "2,2,2,2,2,2,2");
  CHECK(to_text(partition(std::vector<double>(3, 0.0), 2)) == "1,2");  // nothing is known of them
}

TEST_CASE("splits that there are not and costs that are none are refused", "[partition]") {
  const std::vector<double> costs{1, 2, 3};
  CHECK(has(message_of(ErrorKind::usage, [&] { partition(costs, 0); }), "`partition`: 0 parts of 3 layers; expected 1 to 3"));
  CHECK(has(message_of(ErrorKind::usage, [&] { partition(costs, 4); }), "`partition`: 4 parts of 3 layers; expected 1 to 3"));
  for (const double bad : {-1.0, std::nan(""), std::numeric_limits<double>::infinity(), 1.7e308}) {
    const std::vector<double> with{1.7e308, bad};
    CAPTURE(bad);
    CHECK(has(message_of(ErrorKind::usage, [&] { partition(with, 1); }), "`partition`: layer 1 costs"));
  }
}

TEST_CASE("a split given by hand is read, and must be one of the net's layers", "[partition]") {
  CHECK(parse_partition("3,4,5", 12, 3) == Partition{{0, 3}, {3, 7}, {7, 12}});
  CHECK(parse_partition(" 1 , 1 ", 2, 2) == Partition{{0, 1}, {1, 2}});
  const auto refused = [](const char* text, std::size_t layers, std::size_t parts) {
    return message_of(ErrorKind::usage, [&] { parse_partition(text, layers, parts); });
  };
  CHECK(refused("3,x,5", 12, 3) == "`partition`: '3,x,5' has 'x'; expected numbers of layers, at least 1 each, between commas");
  for (const char* text : {"", "3,,5", "3,0,9", "3,-1,10", "3.5,4,5", "3,4,5,"}) {
    CAPTURE(text);
    CHECK(has(refused(text, 12, 3), "expected numbers of layers, at least 1 each, between commas"));
  }
  CHECK(refused("6,6", 12, 3) == "`partition`: '6,6' has 2 parts; expected 3");
  CHECK(refused("3,4,4", 12, 3) == "`partition`: '3,4,4' has 11 layers; expected the net's, 12");
  CHECK(refused("3,4,6", 12, 3) == "`partition`: '3,4,6' has more layers than the net, 12");
  CHECK(refused("9223372036854775807,9223372036854775807,2", 12, 3) ==
        "`partition`: '9223372036854775807,9223372036854775807,2' has more layers than the net, 12");
}
