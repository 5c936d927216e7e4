// Relaxed categorical variables and the likelihood of pixels: known values, and what their distributions are.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "nn/gumbel.h"
#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"

namespace bitloom::nn {

TEST_CASE("draws of Gumbel noise are numbers of (0,1) that f32 has exactly", "[nn][gumbel]") {
  CHECK(gumbel_uniform(0) == 0x1p-24F);
  CHECK(gumbel_uniform(0xFFFFFFFFU) == 1 - 0x1p-24F);
  CHECK(gumbel_uniform(0x80000000U) == 0.5F + 0x1p-24F);
  // Random123's known answer, as in test_dropout.cpp, whose first word an element of number 4 group has.
  const Philox4x32 draws = gumbel_draws(0x299f31d0a4093822U, 0x0370734413198a2eU, 0x85a308d3243f6a88U);
  CHECK(draws.word[0] == 0xd16cfe09);
}

// The largest of x + noise is column c with the probability softmax(x)[c] (Gumbel 1954), whatever the temperature.
TEST_CASE("the largest of a relaxed variable is distributed as the softmax", "[nn][gumbel]") {
  constexpr std::size_t rows = 20000, columns = 5;
  const std::vector<double> probabilities = {0.05, 0.4, 0.1, 0.15, 0.3};
  std::vector<float> x(rows * columns);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(std::log(probabilities[i % columns]));
  for (const std::string& backend : test::tested_backends()) {
    Engine engine(test::device_of(backend), backend);
    if (backend == "emulated") continue;
    const Tensor logits = engine.from(std::span<const float>(x), {rows, columns}, Use::data);
    std::vector<std::int32_t> before;
    for (const double temperature : {1.0, 0.0625}) {
      INFO(backend << ", temperature " << temperature);
      Tensor y = engine.empty({rows, columns}, DType::f32, Use::data);
      Tensor ids = engine.empty({rows}, DType::i32, Use::data);
      gumbel_softmax(engine, {temperature, 1, 7}, logits, y);
      argmax_rows(engine, y, ids);
      const std::vector<std::int32_t> largest = engine.to_host<std::int32_t>(ids);
      std::vector<double> counts(columns);
      for (const std::int32_t id : largest) ++counts[static_cast<std::size_t>(id)];
      for (std::size_t c = 0; c < columns; ++c) {
        const double deviation = std::sqrt(rows * probabilities[c] * (1 - probabilities[c]));
        CHECK(std::abs(counts[c] - rows * probabilities[c]) < 4 * deviation);
      }
      if (!before.empty()) CHECK(before == largest);
      before = largest;
    }
  }
}

// On CPUs a row that began with NaN had its largest there, on GPUs it had that of its numbers.
TEST_CASE("the largest of a row passes over NaN", "[nn][argmax]") {
  constexpr std::size_t rows = 5, columns = 70;
  constexpr float no_number = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x(rows * columns, 1);
  const auto at = [&](std::size_t row, std::size_t column) -> float& { return x[row * columns + column]; };
  at(0, 0) = no_number;
  at(0, 40) = 2;
  at(1, 3) = 2;
  at(1, 4) = no_number;
  at(1, 50) = 2;
  std::fill_n(&at(2, 0), 2 * columns, no_number);  // nothing else in row 2
  at(3, 69) = -std::numeric_limits<float>::infinity();
  at(4, 0) = no_number;
  at(4, 32) = no_number;
  for (const std::string& backend : test::tested_backends()) {
    INFO(backend);
    Engine engine(test::device_of(backend), backend);
    Tensor ids = engine.empty({rows}, DType::i32, Use::data);
    argmax_rows(engine, engine.from(std::span<const float>(x), {rows, columns}, Use::data), ids);
    CHECK(engine.to_host<std::int32_t>(ids) == std::vector<std::int32_t>{40, 3, 0, 69, 1});
  }
}

TEST_CASE("noise depends on seed, site and number alone", "[nn][gumbel]") {
  Engine engine({}, "cpu");
  const auto relaxed = [&](const Shape& shape, std::uint64_t seed, std::uint64_t site) {
    Tensor x = engine.zeros(shape, DType::f32, Use::data);
    gumbel_softmax(engine, {1, seed, site}, x, x);
    return engine.to_host<float>(x);
  };
  const std::vector<float> first = relaxed({40, 33}, 1, 2);
  CHECK(relaxed({40, 33}, 1, 2) == first);
  CHECK(relaxed({40, 33}, 2, 2) != first);
  CHECK(relaxed({40, 33}, 1, 3) != first);
  const std::vector<float> part = relaxed({20, 33}, 1, 2);
  CHECK(std::vector<float>(first.begin(), first.begin() + 20 * 33) == part);
  Tensor last = engine.zeros({15, 33}, DType::f32, Use::data);
  gumbel_softmax(engine, {1, 1, 2, 25 * 33}, last, last);
  CHECK(std::vector<float>(first.begin() + 25 * 33, first.end()) == engine.to_host<float>(last));
}

TEST_CASE("the divergence from the uniform distribution has its closed form", "[nn][kl]") {
  for (const char* backend : {"ref", "cpu"}) {
    Engine engine({}, backend);
    // Equal logits: 0. One that has everything: log C. Two that have a half each: log C - log 2.
    const std::vector<float> x = {3, 3, 3, 3, 0, 500, 0, 0, 100, -400, 100, -400};
    const Tensor logits = engine.from(std::span<const float>(x), {3, 4}, Use::data);
    Tensor kl = engine.empty({3}, DType::f32, Use::data);
    categorical_kl(engine, logits, 0, kl, nullptr);
    const std::vector<float> found = engine.to_host<float>(kl);
    INFO(backend);
    CHECK(std::abs(found[0]) < 1e-6);
    CHECK(std::abs(found[1] - std::log(4.0)) < 1e-6);
    CHECK(std::abs(found[2] - std::log(2.0)) < 1e-6);
  }
}

// Simpson's rule over t = logit x, where dx = x (1 - x) dt: the density in t is Laplace's, which ends in a corner at mu.
TEST_CASE("the density of the logit-Laplace distribution has the integral 1", "[nn][pixels]") {
  Engine engine({}, "ref");
  for (const auto& [mu, log_b] : {std::pair(0.0, 0.0), {0.7, -1.0}, {-2.0, -2.5}, {1.5, 0.4}}) {
    INFO("mu " << mu << ", ln b " << log_b);
    const double b = std::exp(log_b);
    double integral = 0;
    for (const double side : {-1.0, 1.0}) {
      constexpr std::size_t intervals = 4000;
      const double width = 25 * b / intervals;
      std::vector<double> maps, pixels, slopes, weights;
      for (std::size_t i = 0; i <= intervals; ++i) {
        const double t = mu + side * width * static_cast<double>(i);
        const double x = 1 / (1 + std::exp(-t));
        if (!(x > 0 && x < 1)) continue;
        maps.insert(maps.end(), {mu, log_b});
        pixels.push_back(x);
        slopes.push_back(x * (1 / (1 + std::exp(t))));
        weights.push_back(i == 0 || i == intervals ? 1 : i % 2 == 1 ? 4 : 2);
      }
      const Tensor m = engine.from(std::span<const double>(maps), {pixels.size(), 2}, Use::data);
      const Tensor p = engine.from(std::span<const double>(pixels), {pixels.size(), 1}, Use::data);
      Tensor loss = engine.empty({pixels.size()}, DType::f64, Use::data);
      logit_laplace(engine, {}, m, p, 0, loss, nullptr);
      const std::vector<double> minus_log = engine.to_host<double>(loss);
      for (std::size_t i = 0; i < minus_log.size(); ++i) {
        integral += weights[i] * std::exp(-minus_log[i]) * slopes[i] * width / 3;
      }
    }
    CHECK(std::abs(integral - 1) < 1e-6);
  }
}

TEST_CASE("ln b below its bound counts as the bound, and is only moved up", "[nn][pixels]") {
  Engine engine({}, "cpu");
  // logit 0.5 = 0: a distance of 0 from mu 0, of 3 from mu 3.
  const std::vector<float> maps = {0, -9, 3, -9, 0, -2};
  const std::vector<float> pixels = {0.5F, 0.5F, 0.5F};
  const Tensor m = engine.from(std::span<const float>(maps), {3, 2}, Use::data);
  const Tensor p = engine.from(std::span<const float>(pixels), {3, 1}, Use::data);
  Tensor loss = engine.empty({3}, DType::f32, Use::data);
  Tensor dmaps = engine.empty({3, 2}, DType::f32, Use::data);
  logit_laplace(engine, {-2}, m, p, 1, loss, &dmaps);
  const std::vector<float> found = engine.to_host<float>(loss);
  const std::vector<float> slopes = engine.to_host<float>(dmaps);
  const double at_bound = std::log(2.0) - 2 + 2 * std::log(0.5);
  CHECK(std::abs(found[0] - at_bound) < 1e-6);
  CHECK(std::abs(found[1] - (at_bound + 3 * std::exp(2.0))) < 1e-4);
  CHECK(found[2] == found[0]);
  CHECK(slopes[1] == 0);                                        // would go further down
  CHECK(std::abs(slopes[3] - (1 - 3 * std::exp(2.0))) < 1e-4);  // goes up
  CHECK(slopes[5] == 1);                                        // at the bound, not below it
}

}  // namespace bitloom::nn
