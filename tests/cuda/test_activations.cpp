// Activation functions of src/nn/cuda, beyond what the cases of all backends have: numbers that are not finite, and what
// follows a product of matrices.
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "core/half.h"
#include "nn/cuda/kernels.h"
#include "nn/few_bit.h"
#include "nn/ops.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
const std::vector<float> extremes = {std::nanf(""), infinity, -infinity, 3e38F, -3e38F, 1e20F,
                                     -1e20F,        1e-40F,   -1e-40F,   0,     -0.0F};

// f(x) and 2 f'(x).
std::vector<float> values_and_gradients(nn::Engine& engine, const nn::Activation& activation) {
  const nn::Shape shape = {extremes.size()};
  const nn::Tensor x = engine.from<float>(extremes, shape, nn::Use::data);
  const nn::Tensor dy = engine.from<float>(std::vector<float>(extremes.size(), 2), shape, nn::Use::data);
  nn::Tensor y = engine.empty(shape, DType::f32, nn::Use::data);
  nn::activate(engine, activation, x, y);
  std::vector<float> all = engine.to_host<float>(y);
  nn::activate_backward(engine, activation, x, dy, y);
  const std::vector<float> gradients = engine.to_host<float>(y);
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

}  // namespace

TEST_CASE("activations of numbers that are not finite, huge or tiny are those of ref", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  nn::Engine reference({}, "ref");
  for (const nn::Activation& activation : nn::activations()) {
    const std::vector<float> is = values_and_gradients(engine, activation);
    const std::vector<float> should_be = values_and_gradients(reference, activation);
    for (std::size_t i = 0; i < is.size(); ++i) {
      INFO(activation.name << (i < extremes.size() ? "" : " derivative") << " at " << extremes[i % extremes.size()] << ": "
                           << is[i] << ", expected " << should_be[i]);
      const bool is_near = std::abs(is[i] - should_be[i]) <= 1e-6F * std::abs(should_be[i]) + 1e-30F;
      CHECK((is[i] == should_be[i] || is_near || (std::isnan(is[i]) && std::isnan(should_be[i]))));
    }
  }
}

TEST_CASE("few bits of NaN are those of the first interval", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  nn::FewBitTable table;
  table.boundaries = {-1, 0, 1};
  table.levels = {10, 20, 30, 40};
  const std::vector<float> x = {std::nanf(""), 2, -infinity, infinity, 1, 0.5F, 0, -0.5F, -1, 1.5F};
  const nn::Shape shape = {x.size()};
  nn::Tensor y = engine.empty(shape, DType::f32, nn::Use::data);
  nn::Tensor stash = engine.empty({3}, DType::u8, nn::Use::data);
  nn::activate_few_bit(engine, nn::find_activation("relu"), table, engine.from<float>(x, shape, nn::Use::data), y, stash);
  CHECK(std::isnan(engine.to_host<float>(y)[0]));
  CHECK(engine.to_host<std::uint8_t>(stash) == std::vector<std::uint8_t>{0xCC, 0x5A, 0x0C});
  nn::activate_few_bit_backward(engine, table, stash, engine.from<float>(std::vector<float>(10, 1), shape, nn::Use::data), y);
  CHECK(engine.to_host<float>(y) == std::vector<float>{10, 40, 10, 40, 30, 30, 20, 20, 10, 40});
}

TEST_CASE("bias and activation after a product", "[cuda]") {
  nn::Engine engine({nn::Device::Kind::cuda, 0}, "cuda");
  constexpr std::size_t rows = 37;
  for (const std::size_t columns : {1U, 5U, 64U, 300U}) {
    std::vector<float> x(rows * columns);
    std::vector<bf16> x_half(x.size());
    std::vector<float> bias(columns);
    for (std::size_t i = 0; i < x.size(); ++i)
      x_half[i] = to_bf16(x[i] = to_float(to_bf16(std::sin(0.7F * static_cast<float>(i)))));
    for (std::size_t c = 0; c < columns; ++c) bias[c] = std::cos(static_cast<float>(c));
    const nn::Tensor device_bias = engine.from<float>(bias, {columns}, nn::Use::data);
    for (const bool has_bias : {false, true}) {
      INFO(columns << " columns, bias: " << has_bias);
      const float* const b = has_bias ? static_cast<const float*>(device_bias.data()) : nullptr;
      std::vector<float> sum(x.size());
      std::vector<float> silu(x.size());
      for (std::size_t i = 0; i < x.size(); ++i) {
        sum[i] = x[i] + (has_bias ? bias[i % columns] : 0);
        silu[i] = static_cast<float>(nn::find_activation("silu").value(sum[i]));
      }
      using nn::cuda::bias_activate;
      using nn::cuda::Function;
      using nn::cuda::Number;
      auto* const stream = static_cast<nn::cuda::Stream>(engine.native_stream());
      const nn::Shape shape = {rows, columns};
      const auto in_place = [&](Function function) {
        const nn::Tensor y = engine.from<float>(x, shape, nn::Use::data);
        bias_activate(stream, Number::f32, y.data(), b, function, Number::f32, y.data(), rows, columns);
        return engine.to_host<float>(y);
      };
      CHECK(in_place(Function::none) == sum);
      CHECK(compare(in_place(Function::silu), silu, 1e-6) == "");
      const auto check_half = [&](Number in, const nn::Tensor& from) {
        const nn::Tensor half = engine.empty(shape, DType::bf16, nn::Use::data);
        bias_activate(stream, in, from.data(), b, Function::silu, Number::bf16, half.data(), rows, columns);
        std::vector<float> y;
        for (const bf16 value : engine.to_host<bf16>(half)) y.push_back(to_float(value));
        CHECK(compare(y, silu, 1e-2) == "");
      };
      check_half(Number::f32, engine.from<float>(x, shape, nn::Use::data));
      check_half(Number::bf16, engine.from<bf16>(x_half, shape, nn::Use::data));
    }
  }
}
