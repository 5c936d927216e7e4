// Values of bf16 without f32 masters: how single numbers are rounded, and AdamW that rounds so, on every backend.
#include "nn/stochastic_rounding.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/half.h"
#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"

namespace bitloom::nn {

using test::device_of;
using test::tested_backends;

namespace {

constexpr double tick = 0x1p-12;  // a sixteenth of the distance of numbers of bf16 below 1

// Every step moves values by one tick against the sign of the gradient, without any rounding in f32: the moments are those of
// this step alone, and beside 1 epsilon is nothing.
AdamWStep tick_step(std::uint64_t number) { return {.rate = tick, .beta1 = 0, .beta2 = 0, .epsilon = 1e-30, .step = number}; }

AdamWTensors make_tensors(Engine& engine, const std::vector<bf16>& value, const std::vector<float>& gradient,
                          std::uint64_t key) {
  const Shape shape = {value.size()};
  AdamWTensors tensors = {engine.from<bf16>(value, shape, Use::parameters), engine.from<float>(gradient, shape, Use::gradients),
                          engine.zeros(shape, DType::f32, Use::optimizer), engine.zeros(shape, DType::f32, Use::optimizer)};
  tensors.rounding_key = key;
  return tensors;
}

bf16 expected_value(bf16 before, float gradient, std::uint64_t key, std::uint64_t step, std::size_t i) {
  const float exact = to_float(before) - std::copysign(static_cast<float>(tick), gradient);
  const std::uint32_t draw = philox_half(rounding_draws(key, step, i / 8), static_cast<unsigned>(i % 8));
  return {static_cast<std::uint16_t>(round_stochastically(std::bit_cast<std::uint32_t>(exact), draw) >> 16U)};
}

}  // namespace

TEST_CASE("stochastic rounding goes up as often as the value is near to the upper neighbour", "[nn][rounding]") {
  for (const float value : {1.0F, 1.001F, -1.001F, 3.14159F, -6e-40F, 1e-45F, 2.5e38F}) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t lower = bits & 0xFFFF0000U;
    std::uint32_t ups = 0;
    for (std::uint32_t draw = 0; draw < 65536; ++draw) {
      const std::uint32_t rounded = round_stochastically(bits, draw);
      if (rounded == lower) continue;
      REQUIRE(rounded == lower + 0x10000U);
      ++ups;
    }
    CHECK(ups == (bits & 0xFFFFU));  // in 2^-16ths of the way
  }
}

TEST_CASE("stochastic rounding leaves alone what bf16 has, and NaN", "[nn][rounding]") {
  std::size_t wrong = 0;
  for (std::uint32_t high = 0; high < 65536; ++high) {
    const std::uint32_t bits = high << 16U;
    const std::uint32_t kept = std::isnan(std::bit_cast<float>(bits)) ? bits | 0x400000U : bits;
    for (const std::uint32_t draw : {0U, 1U, 0x8000U, 0xFFFFU}) wrong += round_stochastically(bits, draw) != kept;
  }
  CHECK(wrong == 0);
  // NaN of which bf16 would lose all that makes it one, or that would carry into another sign.
  for (const std::uint32_t nan : {0x7F800001U, 0xFF800001U, 0x7FFFFFFFU, 0xFFFFFFFFU}) {
    const std::uint32_t rounded = round_stochastically(nan, 0xFFFF);
    CHECK(std::isnan(std::bit_cast<float>(rounded)));
    CHECK(rounded >> 31U == nan >> 31U);
  }
  // Above the largest number of bf16 infinity is the neighbour.
  const auto largest = std::bit_cast<std::uint32_t>(std::numeric_limits<float>::max());
  CHECK(round_stochastically(largest, 0) == 0x7F7F0000U);
  CHECK(round_stochastically(largest, 0xFFFF) == 0x7F800000U);
}

TEST_CASE("AdamW without masters rounds to the same bits on every backend", "[nn][backends][rounding]") {
  for (const std::string& backend : tested_backends()) {
    Engine engine(device_of(backend), backend);
    std::vector<AdamWTensors> tensors;
    std::vector<std::vector<bf16>> values;
    std::vector<std::vector<float>> gradients;
    for (const std::size_t n : {1U, 7U, 8U, 9U, 255U, 256U, 257U, 8191U, 8193U, 20000U}) {
      std::vector<bf16> value(n);
      std::vector<float> gradient(n);
      for (std::size_t i = 0; i < n; ++i) {
        value[i] = to_bf16((i % 2 == 0 ? 1.0F : -1.0F) * (0.5F + static_cast<float>(i % 128) / 256));
        gradient[i] = i % 3 == 0 ? -1.0F : 1.0F;
      }
      tensors.push_back(make_tensors(engine, value, gradient, 0x9E3779B97F4A7C15U + n));
      values.push_back(value);
      gradients.push_back(gradient);
    }
    std::size_t moved = 0;
    for (const std::uint64_t step : {1U, 2U, 3U}) {
      adamw(engine, tensors, tick_step(step));
      for (std::size_t t = 0; t < tensors.size(); ++t) {
        const std::vector<bf16> is = engine.to_host<bf16>(tensors[t].value);
        std::vector<bf16> should_be = values[t];
        for (std::size_t i = 0; i < is.size(); ++i) {
          should_be[i] = expected_value(values[t][i], gradients[t][i], tensors[t].rounding_key, step, i);
          if (should_be[i] != values[t][i]) ++moved;
        }
        INFO(backend << ", step " << step << ", " << is.size() << " elements");
        CHECK((is == should_be));
        values[t] = should_be;
      }
    }
    CHECK(moved > 1000);
  }
}

TEST_CASE("parts of a tensor are rounded as they are in the whole", "[nn][backends][rounding]") {
  // Runs around a group of 8 elements and around what kernels do at once; the whole in one part.
  const std::vector<Part> parts = {{{9, 14}, 1, 2, 0, 3},    {{9, 14}, 1, 2, 3, 7},   {{50, 33}, 0, 1, 17, 50},
                                   {{3, 900}, 1, 3, 1, 300}, {{2, 5, 7}, 1, 1, 1, 2}, {{2, 12000}, 1, 1, 3, 12000},
                                   {{7}, 0, 1, 0, 7}};
  for (const std::string& backend : tested_backends()) {
    Engine engine(device_of(backend), backend);
    std::size_t moved = 0;
    const auto check = [&](const ElementNumbers& numbers, std::size_t n) {
      std::vector<bf16> value(n);
      std::vector<bf16> should_be(n);
      std::vector<float> gradient(n);
      for (std::size_t i = 0; i < n; ++i) {
        value[i] = to_bf16(0.5F + static_cast<float>(i % 128) / 256);
        gradient[i] = i % 3 == 0 ? -1.0F : 1.0F;
        should_be[i] = expected_value(value[i], gradient[i], 77, 1, numbers(i));
      }
      AdamWTensors tensors = make_tensors(engine, value, gradient, 77);
      tensors.numbers = numbers;
      adamw(engine, std::span(&tensors, 1), tick_step(1));
      CHECK((engine.to_host<bf16>(tensors.value) == should_be));
      for (std::size_t i = 0; i < n; ++i) moved += should_be[i] == value[i] ? 0 : 1;
    };
    for (const Part& part : parts) {
      INFO(backend << ", " << part.begin << " to " << part.end << " of " << to_text(part.full));
      ElementNumbers numbers = part.numbers();
      const std::size_t n = part.shape().size();
      check(numbers, n);
      numbers.begin = n / 3;  // a share of the part
      check(numbers, n - n / 3);
    }
    check({.begin = 13}, 1000);
    CHECK(moved > 500);
  }
}

TEST_CASE("AdamW without masters leaves values without gradients as they are", "[nn][backends][rounding]") {
  const std::vector<bf16> values = {{0},      {0x8000}, {0x7FC0}, {0x0001}, {0x8001},  // NaN, subnormals
                                    {0x0080}, {0x7F7F}, {0xFF7F}, {0x3F80}, {0xC040}, {0x3F81}};
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    AdamWTensors tensors = make_tensors(engine, values, std::vector<float>(values.size()), 5);
    adamw(engine, std::span(&tensors, 1), tick_step(1));
    const std::vector<bf16> is = engine.to_host<bf16>(tensors.value);
    for (std::size_t i = 0; i < is.size(); ++i) {
      INFO("element " << i);
      // A device may give NaN other bits.
      CHECK((is[i] == values[i] || (i == 2 && std::isnan(to_float(is[i])))));
    }
  }
}

TEST_CASE("many small updates add up without masters, which rounding to the nearest would lose", "[nn][backends][rounding]") {
  constexpr int steps = 200;
  constexpr std::size_t n = 4096;
  REQUIRE((to_bf16(static_cast<float>(1 - tick)) == to_bf16(1)));
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    AdamWTensors tensors = make_tensors(engine, std::vector<bf16>(n, to_bf16(1)), std::vector<float>(n, 1), 7);
    for (std::uint64_t step = 1; step <= steps; ++step) adamw(engine, std::span(&tensors, 1), tick_step(step));
    double sum = 0;
    for (const bf16 x : engine.to_host<bf16>(tensors.value)) sum += to_float(x);
    // A step moves a value by 2^-8 with probability 1/16.
    const double deviation = std::sqrt(steps * (1.0 / 16) * (15.0 / 16) / n) / 256;
    CHECK(std::abs(sum / n - (1 - steps * tick)) < 5 * deviation);
  }
}

}  // namespace bitloom::nn
