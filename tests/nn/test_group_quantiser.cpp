#include "nn/group_quantiser.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/random.h"
#include "nn/activation.h"
#include "nn/bit_pack.h"
#include "nn/ops.h"
#include "tests/support/catch.h"
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

struct Quantised {
  std::vector<std::uint8_t> packed;
  std::vector<float> ranges, values;
};

Quantised quantised(const std::vector<float>& x, const GroupRounding& rounding) {
  Engine engine;
  const nn::Tensor from = engine.from<float>(x, {x.size()}, Use::data);
  nn::Tensor packed = engine.empty({packed_bytes(x.size(), rounding.bits)}, DType::u8, Use::data);
  nn::Tensor ranges = engine.empty({quantiser_groups(x.size()), 2}, DType::f32, Use::data);
  nn::Tensor values = engine.empty({x.size()}, DType::f32, Use::data);
  quantise_groups(engine, rounding, from, packed, ranges);
  restore_groups(engine, rounding.bits, packed, ranges, values);
  return {engine.to_host<std::uint8_t>(packed), engine.to_host<float>(ranges), engine.to_host<float>(values)};
}

// The ends of the group that element i is in.
std::pair<float, float> ends_of(const std::vector<float>& x, std::size_t i) {
  const auto begin = x.begin() + static_cast<std::ptrdiff_t>(i / quantiser_group * quantiser_group);
  const std::size_t end = std::min(x.size(), (i / quantiser_group + 1) * quantiser_group);
  const auto [low, high] = std::minmax_element(begin, x.begin() + static_cast<std::ptrdiff_t>(end));
  return {*low, *high};
}

}  // namespace

TEST_CASE("ActNN's quantiser rounds a value to one of its neighbours and keeps the ends of a group", "[group_quantiser]") {
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const std::size_t size : {1U, 255U, 256U, 257U, 1009U}) {
      CAPTURE(bits, size);
      const std::vector<float> x = random_inputs(size);
      const std::vector<float> back = quantised(x, {.bits = bits, .seed = 1, .site = 2}).values;
      for (std::size_t i = 0; i < size; ++i) {
        const auto [low, high] = ends_of(x, i);
        const double step = (static_cast<double>(high) - low) / ((1U << bits) - 1);
        REQUIRE(std::abs(static_cast<double>(back[i]) - x[i]) < step + 1e-6);
        if (step > 0) REQUIRE(std::abs(std::remainder(static_cast<double>(back[i]) - low, step)) < 2e-6);
        if (x[i] == low || x[i] == high) REQUIRE(back[i] == x[i]);
      }
    }
  }
}

TEST_CASE("ActNN's quantiser is unbiased: means over many roundings are as far off as chance has it", "[group_quantiser]") {
  constexpr std::size_t size = 300;
  constexpr int rounds = 2000;
  const std::vector<float> x = random_inputs(size);
  for (const unsigned bits : {1U, 2U, 4U}) {
    std::vector<double> sum(size);
    for (int round = 0; round < rounds; ++round) {
      const std::vector<float> back = quantised(x, {.bits = bits, .seed = 5, .site = static_cast<std::uint64_t>(round)}).values;
      for (std::size_t i = 0; i < size; ++i) sum[i] += static_cast<double>(back[i]) - x[i];
    }
    // Rounded up with probability p, by a step, an element has the variance step^2 p (1 - p).
    int elements = 0, beyond = 0;
    double total = 0, variance = 0;
    for (std::size_t i = 0; i < size; ++i) {
      const auto [low, high] = ends_of(x, i);
      const double step = (static_cast<double>(high) - low) / ((1U << bits) - 1);
      const double u = (static_cast<double>(x[i]) - low) / step, p = u - std::floor(u);
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

TEST_CASE("ActNN's rounding depends on seed, site and number alone", "[group_quantiser]") {
  const std::vector<float> x = random_inputs(1024);
  const GroupRounding rounding{.bits = 2, .seed = 3, .site = 4};
  const Quantised all = quantised(x, rounding);
  CHECK(quantised(x, {.bits = 2, .seed = 3, .site = 5}).packed != all.packed);
  CHECK(quantised(x, {.bits = 2, .seed = 4, .site = 4}).packed != all.packed);
  // Halves, as two micro-batches have them.
  const Quantised first = quantised({x.begin(), x.begin() + 512}, rounding);
  const Quantised second = quantised({x.begin() + 512, x.end()}, {.bits = 2, .seed = 3, .site = 4, .first = 512});
  CHECK(std::equal(first.packed.begin(), first.packed.end(), all.packed.begin()));
  CHECK(std::equal(second.packed.begin(), second.packed.end(), all.packed.begin() + 128));
  // Equal groups are rounded differently.
  std::vector<float> twice(x.begin(), x.begin() + 256);
  twice.insert(twice.end(), x.begin(), x.begin() + 256);
  const Quantised both = quantised(twice, rounding);
  CHECK_FALSE(std::equal(both.packed.begin(), both.packed.begin() + 64, both.packed.begin() + 64));
}

TEST_CASE("ActNN's quantiser takes groups that are constant, huge, tiny or not finite", "[group_quantiser]") {
  constexpr float largest = std::numeric_limits<float>::max(), infinity = std::numeric_limits<float>::infinity();
  std::vector<float> x(256 * 5 + 5, 1.5F);
  for (std::size_t i = 0; i < 256; ++i) {
    x[256 + i] = i % 2 == 0 ? largest : -largest;
    x[1024 + i] = i % 2 == 0 ? 1e-38F : 2e-38F;
  }
  x[600] = infinity;
  x[800] = std::nanf("");
  const Quantised all = quantised(x, {.bits = 3, .seed = 1, .site = 1});
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i);
    if (i >= 512 && i < 1024) {
      CHECK(std::isnan(all.values[i]));
      CHECK(std::isnan(all.ranges[i / 256 * 2]));
    } else if (i >= 1024 && i < 1280) {
      CHECK(std::abs(all.values[i] - x[i]) < 2e-38F);
    } else {
      CHECK(all.values[i] == x[i]);
    }
  }
}

TEST_CASE("ActNN's quantiser refuses wrong bits and numbers", "[group_quantiser]") {
  const std::vector<float> x(10);
  CHECK(has(message_of(ErrorKind::usage, [&] { quantised(x, {.bits = 9}); }), "bits: 9; expected 1 to 8"));
  CHECK(
      has(message_of(ErrorKind::usage, [&] { quantised(x, {.bits = 3, .first = 4}); }), "first: 4; expected a multiple of 8"));
  CHECK(has(message_of(ErrorKind::usage, [] { find_quantiser("actnn"); }), "`activation_quantiser`"));
}
