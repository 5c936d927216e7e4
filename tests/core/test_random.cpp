#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <set>
#include <vector>

#include "core/random.h"
#include "tests/support/catch.h"

using namespace bitloom;

TEST_CASE("SplitMix64 gives its published sequence", "[random]") {
  // Outputs for seed 1234567 (Rosetta Code, "Pseudo-random numbers/Splitmix64"): the generator adds the golden gamma to its
  // state before each output, as mix64 does to its argument.
  constexpr std::uint64_t gamma = 0x9e3779b97f4a7c15U;
  CHECK(mix64(1234567) == 6457827717110365317U);
  CHECK(mix64(1234567 + gamma) == 3203168211198807973U);
  CHECK(mix64(1234567 + 2 * gamma) == 9817491932198370423U);
}

TEST_CASE("a draw is a function of seed, stream, counters and position only", "[random]") {
  Random first(1, Stream::test, 2, 3);
  Random second(1, Stream::test, 2, 3);
  std::array<std::uint64_t, 100> draws;
  for (std::uint64_t& draw : draws) draw = first.next();
  for (const std::uint64_t draw : draws) CHECK(second.next() == draw);
}

TEST_CASE("every part of the key changes the sequence", "[random]") {
  std::set<std::uint64_t> seen;
  std::size_t drawn = 0;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (const Stream stream : {Stream::shuffle, Stream::augment, Stream::test}) {
      for (std::uint64_t a = 0; a < 4; ++a) {
        for (std::uint64_t b = 0; b < 4; ++b) {
          Random random(seed, stream, a, b);
          for (int i = 0; i < 10; ++i, ++drawn) seen.insert(random.next());
        }
      }
    }
  }
  CHECK(seen.size() == drawn);
}

TEST_CASE("bounded draws stay in range and are even", "[random]") {
  Random random(5, Stream::test);
  std::array<int, 7> counts{};
  constexpr int draws = 70000;
  for (int i = 0; i < draws; ++i) {
    const std::uint32_t value = random.below(7);
    REQUIRE(value < 7);
    ++counts[value];
  }
  // 10000 expected each, standard deviation 93.
  for (const int count : counts) CHECK(std::abs(count - 10000) < 465);
  CHECK(random.below(1) == 0);
  CHECK(random.below(0xffffffffU) < 0xffffffffU);
}

TEST_CASE("uniform and normal draws have the right moments", "[random]") {
  Random random(6, Stream::test);
  constexpr int draws = 100000;
  double sum = 0, normal_sum = 0, normal_squares = 0;
  for (int i = 0; i < draws; ++i) {
    const double uniform = random.uniform();
    REQUIRE(uniform >= 0.0);
    REQUIRE(uniform < 1.0);
    sum += uniform;
    const double normal = random.normal();
    normal_sum += normal;
    normal_squares += normal * normal;
  }
  CHECK(std::abs(sum / draws - 0.5) < 0.005);  // five standard deviations
  CHECK(std::abs(normal_sum / draws) < 0.016);
  CHECK(std::abs(normal_squares / draws - 1.0) < 0.023);
}

TEST_CASE("shuffle permutes, and every place is equally likely", "[random]") {
  std::array<std::array<int, 5>, 5> counts{};
  for (std::uint64_t trial = 0; trial < 5000; ++trial) {
    std::array<int, 5> items{0, 1, 2, 3, 4};
    shuffle(items.data(), items.size(), Random(7, Stream::shuffle, trial));
    for (std::size_t place = 0; place < items.size(); ++place) ++counts[static_cast<std::size_t>(items[place])][place];
    std::sort(items.begin(), items.end());
    REQUIRE(items == std::array<int, 5>{0, 1, 2, 3, 4});
  }
  // 1000 expected each, standard deviation 28.
  for (const auto& row : counts) {
    for (const int count : row) CHECK(std::abs(count - 1000) < 142);
  }
}

TEST_CASE("shuffling nothing or one item changes nothing", "[random]") {
  int item = 3;
  shuffle(&item, 0, Random(1, Stream::test));
  shuffle(&item, 1, Random(1, Stream::test));
  CHECK(item == 3);
}

TEST_CASE("random sequences never change between versions", "[random]") {
  // A change here changes every trained net: the stored values are those of the first release.
  Random random(42, Stream::weight_init, 1, 2);
  CHECK(random.next() == 3580488060587242128U);
  CHECK(random.below(1000) == 849);
  CHECK(random.uniform() == 0x1.d7e03d339581cp-3);
  CHECK(random.normal() == 0x1.76df3896890dp-5);
  std::vector<int> order(8);
  std::iota(order.begin(), order.end(), 0);
  shuffle(order.data(), order.size(), Random(42, Stream::shuffle));
  CHECK(order == std::vector<int>{4, 1, 5, 7, 2, 0, 6, 3});
}
