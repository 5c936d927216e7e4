#include "nn/act_nn.h"

#include <algorithm>
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

std::vector<float> random_inputs(std::size_t size) {
  Random random(21, Stream::test);
  std::vector<float> x(size);
  for (float& each : x) each = static_cast<float>(random.normal());
  return x;
}

std::vector<float> restored(const ActNNStash& stash) {
  Guarded<float> out(stash.size);
  act_nn_restore(stash, out.span());
  CHECK(out.guards_intact());
  return {out.data(), out.data() + out.size()};
}

}  // namespace

TEST_CASE("ActNN rounds each value to one of its two neighbours and keeps the ends of a group", "[act_nn]") {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const std::size_t size :
         {std::size_t{0}, std::size_t{1}, std::size_t{255}, std::size_t{256}, std::size_t{257}, std::size_t{1009}}) {
      const std::vector<float> x = random_inputs(size);
      const ActNNStash stash = act_nn_quantise(x, bits, 1, 2);
      const std::size_t groups = (size + 255) / 256;
      CAPTURE(bits, size);
      CHECK(stash.packed.size() == (size * bits + 7) / 8);
      CHECK(stash.bytes() == (size * bits + 7) / 8 + 8 * groups);
      const std::vector<float> back = restored(stash);
      for (std::size_t group = 0; group < groups; ++group) {
        const auto begin = x.begin() + static_cast<std::ptrdiff_t>(256 * group);
        const auto end = x.begin() + static_cast<std::ptrdiff_t>(std::min(size, 256 * (group + 1)));
        const auto [low, high] = std::minmax_element(begin, end);
        const double step = (static_cast<double>(*high) - *low) / ((1U << bits) - 1);
        for (auto each = begin; each != end; ++each) {
          const double value = back[static_cast<std::size_t>(each - x.begin())];
          REQUIRE(std::abs(value - *each) < step + 1e-6);
          if (step > 0) REQUIRE(std::abs(std::remainder(value - *low, step)) < 1e-6);
        }
        REQUIRE(back[static_cast<std::size_t>(low - x.begin())] == *low);
        REQUIRE(back[static_cast<std::size_t>(high - x.begin())] == *high);
      }
    }
  }
}

TEST_CASE("ActNN is unbiased: means over many roundings are within three deviations", "[act_nn]") {
  constexpr std::size_t size = 300;
  constexpr int rounds = 2000;
  const std::vector<float> x = random_inputs(size);
  for (const unsigned bits : {1U, 2U, 4U}) {
    std::vector<double> sum(size);
    for (int round = 0; round < rounds; ++round) {
      const std::vector<float> back = restored(act_nn_quantise(x, bits, 5, static_cast<std::uint64_t>(round)));
      for (std::size_t i = 0; i < size; ++i) sum[i] += static_cast<double>(back[i]) - x[i];
    }
    // Rounded up with probability p, by a step, an element has the variance step^2 p (1 - p).
    const auto ends = [&](std::size_t i) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i / 256 * 256);
      return std::minmax_element(begin, x.begin() + static_cast<std::ptrdiff_t>(std::min(size, (i / 256 + 1) * 256)));
    };
    int elements = 0, beyond = 0;
    double total = 0, variance = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const auto [low, high] = ends(i);
      const double step = (static_cast<double>(*high) - *low) / ((1U << bits) - 1);
      const double u = (static_cast<double>(x[i]) - *low) / step, p = u - std::floor(u);
      const double of_mean = step * step * p * (1 - p) / rounds;
      total += sum[i] / rounds;
      variance += of_mean;
      if (rounds * p * (1 - p) < 10) continue;  // too rare for their sums to be normal
      CAPTURE(bits, i);
      CHECK(std::abs(sum[i] / rounds) < 5 * std::sqrt(of_mean));
      beyond += std::abs(sum[i] / rounds) > 3 * std::sqrt(of_mean) ? 1 : 0;
      ++elements;
    }
    CAPTURE(bits, elements, beyond);
    CHECK(elements > 250);
    CHECK(beyond <= 4);                                // 0.27% of 300 are expected
    CHECK(std::abs(total) < 3 * std::sqrt(variance));  // all elements together
  }
}

TEST_CASE("ActNN's rounding depends on seed, use and group alone", "[act_nn]") {
  const std::vector<float> x = random_inputs(1000);
  const ActNNStash stash = act_nn_quantise(x, 2, 3, 4);
  CHECK(act_nn_quantise(x, 2, 3, 4).packed == stash.packed);
  CHECK(act_nn_quantise(x, 2, 3, 5).packed != stash.packed);
  CHECK(act_nn_quantise(x, 2, 4, 4).packed != stash.packed);
  // The first groups do not depend on what follows; 256 * 2 bits end on a byte.
  const ActNNStash head = act_nn_quantise(std::span(x).first(512), 2, 3, 4);
  CHECK(std::equal(head.packed.begin(), head.packed.end(), stash.packed.begin()));
  // Equal groups are rounded differently.
  std::vector<float> twice(x.begin(), x.begin() + 256);
  twice.insert(twice.end(), x.begin(), x.begin() + 256);
  const ActNNStash both = act_nn_quantise(twice, 2, 3, 4);
  CHECK_FALSE(std::equal(both.packed.begin(), both.packed.begin() + 64, both.packed.begin() + 64));
}

TEST_CASE("ActNN takes groups that are constant, huge or not finite", "[act_nn]") {
  std::vector<float> x(256 * 3 + 5, 1.5F);
  const float largest = std::numeric_limits<float>::max();
  for (std::size_t i = 256; i < 512; ++i) x[i] = i % 2 == 0 ? largest : -largest;
  x[600] = std::numeric_limits<float>::infinity();
  const std::vector<float> back = restored(act_nn_quantise(x, 3, 1, 1));
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    if (i >= 512 && i < 768) {
      CHECK(std::isnan(back[i]));
    } else {
      CHECK(back[i] == x[i]);
    }
  }
}

TEST_CASE("ActNN refuses wrong bits and sizes", "[act_nn]") {
  const std::vector<float> x(10);
  CHECK(message_of(ErrorKind::usage, [&] { act_nn_quantise(x, 0, 1, 1); }) == "bits: 0, expected 1 to 8");
  CHECK(message_of(ErrorKind::usage, [&] { act_nn_quantise(x, 9, 1, 1); }) == "bits: 9, expected 1 to 8");
  const ActNNStash stash = act_nn_quantise(x, 3, 1, 1);
  std::vector<float> nine(9);
  CHECK(has(message_of(ErrorKind::usage, [&] { act_nn_restore(stash, nine); }), "x: 9 elements, but the stash has 10"));
}
