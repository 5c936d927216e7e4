// AdamW's moments of 16 bits: how numbers are rounded to 1-6-9 and 0-6-10, on every backend, and why stochastically.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/narrow.h"
#include "core/random.h"
#include "nn/ops.h"
#include "nn/stochastic_rounding.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"

namespace bitloom::nn {

using test::compare;
using test::device_of;
using test::tested_backends;

namespace {

template <typename T>
T rounded(float x, std::uint32_t draw) {
  using Rounding = NarrowRounding<T::fraction_bits, T::bias>;
  const float raised = std::fabs(x) + std::bit_cast<float>(Rounding::least_normal);
  const std::uint32_t code =
      Rounding::code(std::bit_cast<std::uint32_t>(std::fabs(x)), std::bit_cast<std::uint32_t>(raised), draw);
  const std::uint32_t sign = std::is_same_v<T, f1_6_9> && std::signbit(x) ? 0x8000U : 0;
  return {static_cast<std::uint16_t>(code | sign)};
}

template <typename T>
std::vector<T> all_codes() {
  std::vector<T> codes(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i].bits = static_cast<std::uint16_t>(i);
  return codes;
}

std::uint32_t draw_of(std::uint64_t key, std::uint64_t step, Rounded what, std::size_t number) {
  return philox_half(rounding_draws(key, rounding_step(step, what), number / 8), static_cast<unsigned>(number % 8));
}

struct Moments {
  Tensor value, gradient, mean, variance;
};

// Moments of `n` parameters that are 1, with gradients of 0 and means of 0.
Moments narrow_moments(Engine& engine, std::size_t n) {
  return {engine.from<float>(std::vector<float>(n, 1), {n}, Use::parameters), engine.zeros({n}, DType::f32, Use::gradients),
          engine.zeros({n}, DType::f1_6_9, Use::optimizer), engine.zeros({n}, DType::f0_6_10, Use::optimizer)};
}

AdamWTensors tensors_of(const Moments& moments, std::uint64_t key) {
  AdamWTensors tensors = {moments.value, moments.gradient, moments.mean, moments.variance};
  tensors.rounding_key = key;
  return tensors;
}

template <typename T>
double mean_of(const std::vector<T>& codes) {
  double sum = 0;
  for (const T code : codes) sum += to_float(code);
  return sum / static_cast<double>(codes.size());
}

}  // namespace

TEMPLATE_TEST_CASE("narrow rounding goes up as often as a number is near to the upper neighbour", "[nn][rounding]", f1_6_9,
                   f0_6_10) {
  using Rounding = NarrowRounding<TestType::fraction_bits, TestType::bias>;
  constexpr std::uint32_t step = 1U << (16U - Rounding::dropped);  // draws that differ in what counts of them
  Random random(3, Stream::test);
  std::vector<float> numbers = {0, 1, 1.001F, 4.9F, 7.9F, 0x1p-58F, 0x1p-59F, 0x1.8p-68F, 0x1.9p-66F, 1e-30F};
  for (int i = 0; i < 60; ++i) numbers.push_back(std::exp2(static_cast<float>(70 * random.uniform() - 68)));
  for (const float number : numbers) {
    CAPTURE(number);
    double sum = 0;
    std::size_t far = 0;
    for (std::uint32_t draw = 0; draw < 65536; draw += step) {
      const TestType code = rounded<TestType>(number, draw);
      sum += to_float(code);
      // A neighbour: what comes after or before is on the other side.
      const float next = to_float(TestType{static_cast<std::uint16_t>(code.bits + 1)});
      const float before = code.bits == 0 ? -1 : to_float(TestType{static_cast<std::uint16_t>(code.bits - 1)});
      far += next > number && before < number ? 0 : 1;
    }
    CHECK(far == 0);
    const double mean = sum / (65536.0 / step);
    const double gap = std::max(std::ldexp(double{number}, -static_cast<int>(TestType::fraction_bits)),
                                std::ldexp(1.0, 1 - static_cast<int>(TestType::bias + TestType::fraction_bits)));
    CHECK(std::abs(mean - number) <= gap * std::ldexp(1.0, -static_cast<int>(Rounding::dropped)));
  }
}

TEMPLATE_TEST_CASE("narrow rounding leaves alone what the format has, and NaN, and ends at the largest number",
                   "[nn][rounding]", f1_6_9, f0_6_10) {
  std::size_t wrong = 0;
  for (const TestType code : all_codes<TestType>()) {
    const float number = to_float(code);
    for (const std::uint32_t draw : {0U, 1U, 0x8000U, 0xFFFFU}) {
      const TestType is = rounded<TestType>(number, draw);
      if (std::isnan(number)) {
        wrong += std::isnan(to_float(is)) ? 0 : 1;
      } else if (std::isinf(number)) {
        wrong += to_float(is) == std::copysign(std::is_same_v<TestType, f1_6_9> ? 15.984375F : 7.99609375F, number) ? 0 : 1;
      } else {
        wrong += is == code ? 0 : 1;
      }
    }
  }
  CHECK(wrong == 0);
  const float largest = std::is_same_v<TestType, f1_6_9> ? 15.984375F : 7.99609375F;
  for (const float number : {std::nextafter(largest, 100.0F), 16.0F, 1e30F, std::numeric_limits<float>::infinity()}) {
    CHECK(to_float(rounded<TestType>(number, 0xFFFF)) == largest);
  }
}

// With beta of 1 moments stay, so that all that happens to them is that they are read, widened, rounded and written.
TEST_CASE("all codes of narrow moments come through AdamW, on every backend", "[nn][backends][rounding]") {
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    // Infinity becomes the largest number and is tested above; -0 becomes 0 in the sum with 0 times the gradient.
    std::vector<f1_6_9> means = all_codes<f1_6_9>();
    std::vector<f0_6_10> variances = all_codes<f0_6_10>();
    for (f1_6_9& code : means) code.bits = std::isinf(to_float(code)) || code.bits == 0x8000 ? 0 : code.bits;
    for (f0_6_10& code : variances) code.bits = std::isinf(to_float(code)) ? 0 : code.bits;
    const Shape shape = {means.size()};
    const Moments moments = {engine.zeros(shape, DType::f32, Use::parameters), engine.zeros(shape, DType::f32, Use::gradients),
                             engine.from<f1_6_9>(means, shape, Use::optimizer),
                             engine.from<f0_6_10>(variances, shape, Use::optimizer)};
    const AdamWTensors tensors = tensors_of(moments, 5);
    adamw(engine, std::span(&tensors, 1), {.rate = 0, .beta1 = 1, .beta2 = 1, .step = 3});
    const std::vector<f1_6_9> new_means = engine.to_host<f1_6_9>(moments.mean);
    const std::vector<f0_6_10> new_variances = engine.to_host<f0_6_10>(moments.variance);
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < means.size(); ++i) {
      const bool is_nan = std::isnan(to_float(means[i])) && std::isnan(to_float(new_means[i]));
      wrong += is_nan || new_means[i] == means[i] ? 0 : 1;
      const bool is_nan_too = std::isnan(to_float(variances[i])) && std::isnan(to_float(new_variances[i]));
      wrong += is_nan_too || new_variances[i] == variances[i] ? 0 : 1;
    }
    CHECK(wrong == 0);
  }
}

// With betas of 0 moments are the gradient and its square, rounded.
TEST_CASE("narrow moments are rounded to the same bits on every backend, in parts as in the whole",
          "[nn][backends][rounding]") {
  const Part columns = {{9, 140}, 1, 2, 3, 61};
  for (const std::string& backend : tested_backends()) {
    Engine engine(device_of(backend), backend);
    for (const auto& [n, numbers] : std::vector<std::pair<std::size_t, ElementNumbers>>{
             {1, {}}, {33, {}}, {1025, {}}, {20000, {}}, {1000, {.begin = 13}}, {columns.shape().size(), columns.numbers()}}) {
      INFO(backend << ", " << n << " elements from " << numbers.begin);
      Moments moments = narrow_moments(engine, n);
      std::vector<float> gradient(n);
      Random random(n, Stream::test);
      // Powers of two and sums of two of them, whose squares f32 has exactly.
      for (float& g : gradient) {
        const float power = std::exp2(static_cast<float>(random.below(36)) - 33);
        g = (random.below(2) == 0 ? 1.0F : -1.0F) * power * (1 + std::exp2(-static_cast<float>(1 + random.below(11))));
      }
      engine.write(moments.gradient, std::as_bytes(std::span(gradient)));
      AdamWTensors tensors = tensors_of(moments, 0x123456789ABCDEFU);
      tensors.numbers = numbers;
      constexpr std::uint64_t step = 0x100000007U;
      adamw(engine, std::span(&tensors, 1), {.rate = 0.5, .beta1 = 0, .beta2 = 0, .epsilon = 1e-30, .step = step});
      std::vector<f1_6_9> means(n);
      std::vector<f0_6_10> variances(n);
      for (std::size_t i = 0; i < n; ++i) {
        means[i] = rounded<f1_6_9>(gradient[i], draw_of(tensors.rounding_key, step, Rounded::mean, numbers(i)));
        const float square = gradient[i] * gradient[i];
        variances[i] = rounded<f0_6_10>(square, draw_of(tensors.rounding_key, step, Rounded::variance, numbers(i)));
      }
      CHECK((engine.to_host<f1_6_9>(moments.mean) == means));
      CHECK((engine.to_host<f0_6_10>(moments.variance) == variances));
      // The step is that of moments before they are rounded: half against the sign of the gradient.
      const std::vector<float> values = engine.to_host<float>(moments.value);
      std::vector<double> is(values.begin(), values.end()), should_be;
      for (const float g : gradient) should_be.push_back(g > 0 ? 0.5 : 1.5);
      CHECK(compare(is, should_be, 1e-5) == "");
    }
  }
}

// A thousandth of the distance to squared gradients that are 1.4 times the variance is 0.4 of a step of 0-6-10 there.
TEST_CASE("a narrow variance follows its gradients with beta2 = 0.999, where rounding to the nearest would not move",
          "[nn][backends][rounding]") {
  constexpr std::size_t n = 4096;
  constexpr int steps = 3000;
  constexpr double square = 1.4;
  float nearest = 1;
  for (int i = 0; i < steps; ++i) nearest = to_float(to_f0_6_10(0.999F * nearest + 0.001F * static_cast<float>(square)));
  CHECK(nearest == 1);
  const double expected = square - (square - 1) * std::pow(0.999, steps);
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    Moments moments = narrow_moments(engine, n);
    const auto fill_with = [&](Tensor& tensor, double value) { fill(engine, tensor, value); };
    fill_with(moments.gradient, std::sqrt(square));
    const std::vector<f0_6_10> ones(n, to_f0_6_10(1));
    engine.write(moments.variance, std::as_bytes(std::span(ones)));
    const AdamWTensors tensors = tensors_of(moments, 9);
    for (std::uint64_t step = 1; step <= steps; ++step) {
      adamw(engine, std::span(&tensors, 1), {.rate = 0, .beta1 = 0.9, .beta2 = 0.999, .step = step});
    }
    // An element strays by sqrt(p (1 - p)) of a step, 2^-10, each time, and forgets that at a rate of 0.001: 0.5% of it.
    CHECK(mean_of(engine.to_host<f0_6_10>(moments.variance)) == Approx(expected).epsilon(0.001));
    CHECK(mean_of(engine.to_host<f1_6_9>(moments.mean)) == Approx(std::sqrt(square)).epsilon(0.001));
    std::size_t far = 0;
    for (const f0_6_10 code : engine.to_host<f0_6_10>(moments.variance))
      far += std::abs(to_float(code) / expected - 1) < 0.06 ? 0 : 1;
    CHECK(far == 0);
  }
}

TEST_CASE("AdamW with narrow moments follows the reference in double precision", "[nn][backends][rounding]") {
  constexpr std::size_t n = 2048;
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    Moments moments = narrow_moments(engine, n);
    const AdamWTensors tensors = tensors_of(moments, 11);
    std::vector<double> value(n, 1), mean(n), variance(n);
    for (int t = 1; t <= 40; ++t) {
      Random random(4, Stream::test, static_cast<std::uint64_t>(t));
      std::vector<float> gradient(n);
      for (std::size_t i = 0; i < n; ++i) {
        gradient[i] = static_cast<float>(1e-3 * (1 + random.normal()));
        const double g = gradient[i];
        mean[i] = 0.9 * mean[i] + 0.1 * g;
        variance[i] = std::min(0.96 * variance[i] + 0.04 * g * g, 2e-6);
        const double m = mean[i] / (1 - std::pow(0.9, t));
        value[i] -= 1e-3 * (m / (std::sqrt(variance[i] / (1 - std::pow(0.96, t))) + 1e-8) + 0.045 * value[i]);
      }
      engine.write(moments.gradient, std::as_bytes(std::span(gradient)));
      adamw(engine, std::span(&tensors, 1),
            {.rate = 1e-3,
             .beta1 = 0.9,
             .beta2 = 0.96,
             .decay = 0.045,
             .variance_limit = 2e-6,
             .step = static_cast<std::uint64_t>(t)});
    }
    const std::vector<float> is = engine.to_host<float>(moments.value);
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i) worst = std::max(worst, std::abs(is[i] - value[i]));
    CHECK(worst < 40 * 1e-3 * 0.003);  // of moments, rounding costs at most 2^-9 a step
    CHECK(worst > 0);
  }
}

TEST_CASE("narrow moments of other types are refused", "[nn][ops]") {
  Engine engine({}, "ref");
  const auto complaint = [&](DType type, DType mean, DType variance) {
    const auto zeros = [&](DType dtype) { return engine.zeros({4}, dtype, Use::data); };
    const AdamWTensors tensors = {zeros(type), zeros(type), zeros(mean), zeros(variance)};
    try {
      adamw(engine, std::span(&tensors, 1), {});
    } catch (const std::exception& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const auto has = [](const std::string& text, const char* part) { return text.find(part) != std::string::npos; };
  CHECK(complaint(DType::f32, DType::f1_6_9, DType::f0_6_10).empty());
  CHECK(has(complaint(DType::f32, DType::f1_6_9, DType::f32), "adamw: variance: f32 (4); expected 0-6-10 (4)"));
  CHECK(has(complaint(DType::f32, DType::f32, DType::f0_6_10), "adamw: variance: 0-6-10 (4); expected f32 (4)"));
  CHECK(has(complaint(DType::f64, DType::f1_6_9, DType::f0_6_10), "adamw: mean: 1-6-9 (4); expected f64 (4)"));
}

}  // namespace bitloom::nn
