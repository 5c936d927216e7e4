#include <algorithm>
#include <cmath>
#include <limits>

#include "core/random.h"
#include "tests/simd/tables_under_test.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

std::vector<float> normal_numbers(std::size_t n, double scale, std::uint64_t use) {
  Random random(11, Stream::test, use);
  std::vector<float> numbers(n);
  for (float& x : numbers) x = static_cast<float>(scale * random.normal());
  return numbers;
}

}  // namespace

TEST_CASE("prepare_rounding says between which powers of two a gradient lies, and where", "[simd][elementwise]") {
  const std::vector<float> slope = {1.0F, 2.0F, 0.0F};
  struct Case {
    float gradient, scaled;
  };
  std::vector<float> gradient = {0.0F, 0.25F, 7.0F, 1.0F, -0.75F, -1.0F, 3.0F, 63.9F, 1e30F, -127.0F, -64.0F, 1e-30F};
  for (const float x : normal_numbers(900, 20, 1)) gradient.push_back(x);
  for (const std::string& name : all_tables()) {
    INFO(name);
    Guarded<std::uint32_t> out(gradient.size());
    table(name).prepare_rounding(gradient.data(), slope.data(), gradient.size(), 3, 0.5F, out.data());
    for (std::size_t i = 0; i < gradient.size(); ++i) {
      const float value = gradient[i] * slope[i % 3] * 0.5F;
      const std::uint32_t level = out.data()[i] & 0xFFU;
      const double fraction = (out.data()[i] >> 16U) / 65536.0;
      REQUIRE(level <= 8);
      const double low = level == 0 ? 0.0 : std::exp2(level - 1.0);
      const double high = std::exp2(level);
      const double magnitude = std::min(std::fabs(static_cast<double>(value)), 128.0);
      INFO("gradient " << gradient[i] << " times " << slope[i % 3] << " / 2");
      CHECK(std::fabs(low + fraction * (high - low) - magnitude) <= (high - low) / 65536);
      CHECK(((out.data()[i] >> 8U) & 1U) == (value < 0 ? 1U : 0U));
    }
    CHECK(out.guards_intact());
  }
}

TEST_CASE("centre_gradient subtracts the sums from the expectation and returns the squares", "[simd][elementwise]") {
  constexpr std::size_t n = 200;
  Random random(12, Stream::test);
  std::vector<std::int32_t> sums(n);
  for (std::int32_t& s : sums) s = static_cast<std::int32_t>(random.below(2000001)) - 1000000;
  std::vector<float> density = normal_numbers(n, 0.3, 2);
  const float total = 12345.0F;
  Guarded<float> expected(n);
  const double expected_squares = table("ref").centre_gradient(sums.data(), density.data(), n, total, expected.data());
  double squares = 0;
  for (std::size_t k = 0; k < n; ++k) {
    const float g = total * density[k] - static_cast<float>(sums[k]);
    CHECK(expected.data()[k] == g);
    squares += static_cast<double>(g) * static_cast<double>(g);
  }
  CHECK(std::fabs(expected_squares - squares) <= 1e-12 * squares);
  for (const std::string& name : contenders()) {
    INFO(name);
    Guarded<float> gradient(n);
    CHECK(table(name).centre_gradient(sums.data(), density.data(), n, total, gradient.data()) == expected_squares);
    CHECK(same(gradient, expected));
    CHECK(gradient.guards_intact());
  }
}

TEST_CASE("descend moves integers down the gradient, rounds to the nearest and stops at the limit", "[simd][elementwise]") {
  constexpr std::size_t n = 333;
  Random random(13, Stream::test);
  std::vector<std::int16_t> start(n);
  for (std::int16_t& s : start) s = static_cast<std::int16_t>(static_cast<std::int32_t>(random.below(65535)) - 32767);
  std::vector<float> gradient = normal_numbers(n, 1, 3);
  gradient[0] = 1e9F, gradient[1] = -1e9F, gradient[2] = 0.0F;
  for (const std::string& name : all_tables()) {
    INFO(name);
    Guarded<std::int16_t> state(n);
    std::copy(start.begin(), start.end(), state.data());
    table(name).descend(state.data(), gradient.data(), n, 300.5F, 32767.0F);
    for (std::size_t k = 0; k < n; ++k) {
      const float moved = std::clamp(static_cast<float>(start[k]) - 300.5F * gradient[k], -32767.0F, 32767.0F);
      CHECK(state.data()[k] == static_cast<std::int16_t>(moved + (moved < 0 ? -0.5F : 0.5F)));
    }
    CHECK(state.data()[0] == -32767);
    CHECK(state.data()[1] == 32767);
    CHECK(state.data()[2] == start[2]);
    CHECK(state.guards_intact());
  }
}

TEST_CASE("combine_s16 adds multiples, rounds to the nearest and stops at the limits", "[simd][elementwise]") {
  constexpr std::size_t n = 333;
  Random random(15, Stream::test);
  std::vector<std::int16_t> values(n);
  std::vector<std::int32_t> sums(n);
  for (std::int16_t& v : values) v = static_cast<std::int16_t>(static_cast<std::int32_t>(random.below(65536)) - 32768);
  for (std::int32_t& s : sums) s = static_cast<std::int32_t>(random.next());
  sums[0] = 2147483647, sums[1] = -2147483647 - 1, sums[2] = 0, values[2] = 0;
  constexpr float factor = 3.4445F, share = 2.0315F * 0x1p-15F;
  for (const std::string& name : all_tables()) {
    INFO(name);
    Guarded<std::int16_t> out(n);
    std::copy(values.begin(), values.end(), out.data());
    table(name).combine_s16(out.data(), sums.data(), n, factor, share, out.data());  // in place
    for (std::size_t k = 0; k < n; ++k) {
      const float sum = factor * static_cast<float>(values[k]) + share * static_cast<float>(sums[k]);
      const float within = std::clamp(sum, -32768.0F, 32767.0F);
      CHECK(out.data()[k] == static_cast<std::int16_t>(within + (within < 0 ? -0.5F : 0.5F)));
    }
    CHECK(out.data()[2] == 0);
    CHECK(out.guards_intact());
  }
}

TEST_CASE("adam is the same step in every table, and the textbook's", "[simd][elementwise]") {
  constexpr std::size_t n = 101;
  Random random(14, Stream::test);
  std::vector<std::int64_t> sums(n);
  for (std::int64_t& s : sums) s = static_cast<std::int64_t>(random.next() >> 23U) - (std::int64_t{1} << 40U);
  sums[0] = 0;
  const std::vector<float> value = normal_numbers(n, 1, 4), mean = normal_numbers(n, 0.1, 5);
  std::vector<float> variance = normal_numbers(n, 0.1, 6);
  for (float& v : variance) v *= v;
  const float factor = 1e-12F, rate = 0.01F, bias_correction = 1.25F, decay_factor = 0.999F;
  Guarded<float> reference[3] = {Guarded<float>(n), Guarded<float>(n), Guarded<float>(n)};
  const auto step = [&](const std::string& name, Guarded<float>* parts) {
    std::copy(value.begin(), value.end(), parts[0].data());
    std::copy(mean.begin(), mean.end(), parts[1].data());
    std::copy(variance.begin(), variance.end(), parts[2].data());
    table(name).adam(sums.data(), n, factor, rate, bias_correction, decay_factor, parts[0].data(), parts[1].data(),
                     parts[2].data());
  };
  step("ref", reference);
  for (std::size_t k = 0; k < n; ++k) {
    const double g = static_cast<double>(sums[k]) * 1e-12;
    const double m = 0.9 * mean[k] + 0.1 * g;
    const double v = 0.999 * variance[k] + 0.001 * g * g;
    CHECK(std::fabs(reference[0].data()[k] - (value[k] * 0.999 - 0.01 * m / (std::sqrt(v * 1.25) + 1e-8))) < 1e-5);
    CHECK(std::fabs(reference[1].data()[k] - m) < 1e-6);
    CHECK(std::fabs(reference[2].data()[k] - v) < 1e-6);
  }
  for (const std::string& name : contenders()) {
    INFO(name);
    Guarded<float> parts[3] = {Guarded<float>(n), Guarded<float>(n), Guarded<float>(n)};
    step(name, parts);
    for (int i = 0; i < 3; ++i) {
      CHECK(same(parts[i], reference[i]));
      CHECK(parts[i].guards_intact());
    }
  }
}
