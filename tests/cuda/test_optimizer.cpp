// The optimiser of src/nn/cuda, beyond what the cases of all backends have: many tensors in one launch.
#include <cmath>
#include <limits>
#include <vector>

#include "nn/ops.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// Sizes around those of chunks.
const std::vector<std::size_t> sizes = {8192, 1, 0, 8191, 8193, 5, 16384, 40, 3};

struct Parameter {
  nn::Tensor value, gradient, mean, variance, copy;
};

std::vector<Parameter> make_parameters(nn::Engine& engine, DType copy) {
  std::vector<Parameter> all;
  const auto wave = [&](std::size_t n, float frequency) {
    std::vector<float> values(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = std::sin(frequency * static_cast<float>(i + n));
    return engine.from<float>(values, {n}, nn::Use::data);
  };
  for (const std::size_t n : sizes) {
    all.push_back({wave(n, 0.37F), wave(n, 0.71F), engine.zeros({n}, DType::f32, nn::Use::data),
                   engine.zeros({n}, DType::f32, nn::Use::data), engine.zeros({n}, copy, nn::Use::data)});
  }
  return all;
}

std::vector<Parameter> after_two_steps(nn::Engine& engine, DType copy) {
  std::vector<Parameter> all = make_parameters(engine, copy);
  std::vector<nn::AdamWTensors> tensors;
  for (const Parameter& p : all) {
    const bool is_odd = tensors.size() % 2 == 1;
    tensors.push_back({p.value, p.gradient, p.mean, p.variance, is_odd ? nn::Tensor() : p.copy, is_odd});
  }
  for (const std::uint64_t step : {1U, 2U}) nn::adamw(engine, tensors, {.rate = 0.01, .decay = 0.1, .step = step});
  return all;
}

double sum_of(nn::Engine& engine, const std::vector<Parameter>& parameters) {
  std::vector<nn::Tensor> tensors;
  for (const Parameter& p : parameters) tensors.push_back(p.gradient);
  return nn::sum_of_squares(engine, tensors);
}

}  // namespace

TEST_CASE("one launch updates many tensors, as ref does one by one", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  nn::Engine reference({}, "ref");
  for (const DType copy : {DType::f32, DType::bf16, DType::f16}) {
    const std::vector<Parameter> is = after_two_steps(engine, copy);
    const std::vector<Parameter> should_be = after_two_steps(reference, copy);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 0) continue;
      INFO(sizes[i] << " elements");
      CHECK(compare(engine.to_host<float>(is[i].value), reference.to_host<float>(should_be[i].value), 2e-5) == "");
      CHECK(compare(engine.to_host<float>(is[i].variance), reference.to_host<float>(should_be[i].variance), 2e-5) == "");
      if (copy != DType::f32) continue;
      CHECK(engine.to_host<float>(is[i].copy) ==
            (i % 2 == 1 ? std::vector<float>(sizes[i]) : engine.to_host<float>(is[i].value)));
    }
    CHECK(std::abs(sum_of(engine, is) - sum_of(reference, should_be)) < 1e-11 * sum_of(reference, should_be));
  }
}

TEST_CASE("a sum of squares shows what is not finite", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  std::vector<float> x(20000, 1e30F);
  const auto sum = [&] {
    const std::vector<nn::Tensor> tensors = {engine.from<float>(x, {x.size()}, nn::Use::data)};
    return nn::sum_of_squares(engine, tensors);
  };
  const double huge = static_cast<double>(1e30F) * 1e30F * 20000;  // more than f32 has
  CHECK(std::abs(sum() - huge) < 1e-11 * huge);
  x[19999] = std::numeric_limits<float>::infinity();
  CHECK(std::isinf(sum()));
  x[3] = std::nanf("");
  CHECK(std::isnan(sum()));
}
