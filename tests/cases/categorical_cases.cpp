#include <fmt/format.h>

#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

// The noise makes what is compared as much as x does.
OpCase gumbel_softmax_case(const nn::Shape& shape, double temperature, std::uint64_t site, bool is_large = false) {
  const nn::Gumbel gumbel{temperature, 0x299f31d0a4093822U, site, 0x500000001U + site};
  OpCase c;
  c.ops = {"gumbel_softmax", "gumbel_softmax_backward"};
  c.name = fmt::format("{}, temperature {}", to_text(shape), temperature);
  c.inputs = {values("x", shape, 1, 2)};
  c.outputs = {overwritten("y", shape)};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::gumbel_softmax(engine, gumbel, t["x"], t["y"]); };
  c.upstream = {values("dy", shape, 2)};
  c.gradients = {overwritten("dx", shape)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::gumbel_softmax_backward(engine, temperature, t["y"], t["dy"], t["dx"]);
  };
  c.forward_in_place = {{"y", "x"}};
  c.backward_in_place = {{"dx", "dy"}};
  c.is_large = is_large;
  // A low temperature multiplies what rounding does to x + noise.
  c.limit = std::max(1.0, 2 / temperature);
  return c;
}

OpCase categorical_kl_case(const nn::Shape& shape, double size_of_logits, bool is_large = false) {
  constexpr double scale = 0.125;
  const std::size_t rows = shape.rows();
  OpCase c;
  c.ops = {"categorical_kl"};
  c.name = fmt::format("{}, logits of {}", to_text(shape), size_of_logits);
  c.inputs = {values("x", shape, 1, size_of_logits)};
  c.outputs = {overwritten("kl", {rows}, Kind::parameters)};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::categorical_kl(engine, t["x"], 0, t["kl"], nullptr); };
  c.upstream = {{"dkl", Kind::parameters, {rows}, std::vector<double>(rows, scale)}};
  c.gradients = {added_to("dx", shape, 3, Kind::values)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::Tensor kl = engine.empty({rows}, t["kl"].dtype(), nn::Use::workspace);
    nn::categorical_kl(engine, t["x"], scale, kl, &t["dx"]);
  };
  c.is_large = is_large;
  return c;
}

// Pixels are drawn evenly from what phi makes of bytes, 0.1 to 0.9.
std::vector<double> pixel_numbers(std::size_t n, std::uint64_t seed) {
  Random random(seed, Stream::test);
  std::vector<double> numbers(n);
  for (double& x : numbers) x = 0.1 + 0.8 * random.uniform();
  return numbers;
}

OpCase logit_laplace_case(std::size_t rows, std::size_t channels, double mean_log_b = -0.5, double least_log_b = -100,
                          bool is_large = false) {
  constexpr double scale = 0.125;
  const nn::LogitLaplace distribution{least_log_b};
  const nn::Shape maps = {rows, 2 * channels};
  OpCase c;
  c.ops = {"logit_laplace"};
  c.name = fmt::format("{} pixels of {} channels, ln b {}, at least {}", rows, channels, mean_log_b, least_log_b);
  Slot x = values("x", maps, 1);
  for (std::size_t i = 0; i < x.numbers.size(); ++i) {
    if (i % (2 * channels) >= channels) x.numbers[i] = mean_log_b + 0.3 * x.numbers[i];
  }
  c.inputs = {x, {"pixels", Kind::parameters, {rows, channels}, pixel_numbers(rows * channels, 2)}};
  c.outputs = {overwritten("loss", {rows}, Kind::parameters)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::logit_laplace(engine, distribution, t["x"], t["pixels"], 0, t["loss"], nullptr);
  };
  c.upstream = {{"dloss", Kind::parameters, {rows}, std::vector<double>(rows, scale)}};
  c.gradients = {overwritten("dx", maps)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::Tensor loss = engine.empty({rows}, t["loss"].dtype(), nn::Use::workspace);
    nn::logit_laplace(engine, distribution, t["x"], t["pixels"], scale, loss, &t["dx"]);
  };
  c.backward_in_place = {{"dx", "x"}};
  // Where ln b is below its bound, the gradient is not the derivative by intention.
  c.is_differentiable = least_log_b < mean_log_b - 3;
  c.is_large = is_large;
  return c;
}

// Whole numbers, so that rows have equals.
OpCase argmax_rows_case(const nn::Shape& shape, bool is_large = false) {
  OpCase c;
  c.ops = {"argmax_rows"};
  c.name = to_text(shape);
  c.inputs = {{"x", Kind::values, shape, whole_numbers(shape.size(), 1, -9, 3)}};
  c.outputs = {overwritten("ids", {shape.rows()}, Kind::i32)};
  c.forward = [](nn::Engine& engine, Tensors& t) { nn::argmax_rows(engine, t["x"], t["ids"]); };
  c.is_large = is_large;
  return c;
}

}  // namespace

std::vector<OpCase> categorical_cases() {
  std::vector<OpCase> cases;
  for (const std::size_t columns : odd_sizes) {
    cases.push_back(gumbel_softmax_case({7, columns}, 1, columns));
    cases.push_back(gumbel_softmax_case({3, columns}, 0.5, 1));
    cases.push_back(categorical_kl_case({7, columns + 1}, 1));
    cases.push_back(argmax_rows_case({7, columns + 2}));
    cases.push_back(logit_laplace_case(columns, 3));
  }
  cases.push_back(gumbel_softmax_case({2, 3, 5, 7}, 1, 0));
  cases.push_back(gumbel_softmax_case({0, 7}, 1, 0));
  cases.push_back(gumbel_softmax_case({5, 0}, 1, 0));
  cases.push_back(gumbel_softmax_case({301, 129}, 1, 2, true));
  cases.push_back(gumbel_softmax_case({5, 512}, 0.0625, 3, true));
  cases.push_back(gumbel_softmax_case({3, 8203}, 1, 4, true));
  cases.push_back(categorical_kl_case({2, 3, 5, 7}, 3));
  cases.push_back(categorical_kl_case({0, 7}, 1));
  cases.push_back(categorical_kl_case({5, 33}, 30));
  cases.push_back(categorical_kl_case({301, 129}, 2, true));
  cases.push_back(categorical_kl_case({3, 8203}, 1, true));
  cases.push_back(logit_laplace_case(0, 3));
  cases.push_back(logit_laplace_case(5, 1));
  cases.push_back(logit_laplace_case(33, 3, -4));
  cases.push_back(logit_laplace_case(33, 3, -2, -2));
  cases.push_back(logit_laplace_case(40001, 3, -1, -1.2, true));
  cases.push_back(argmax_rows_case({2, 3, 5, 7}));
  cases.push_back(argmax_rows_case({301, 129}, true));
  cases.push_back(argmax_rows_case({3, 8203}, true));
  return cases;
}

OpCase random_categorical_case(Draw& draw) {
  switch (draw.any_of({0, 1, 2, 3})) {
    case 0: return categorical_kl_case({draw.size(1, 60), draw.size(2, 3000)}, draw.any_of({1.0, 4.0}));
    case 1: return logit_laplace_case(draw.size(1, 3000), draw.any_of({1U, 3U, 4U}), draw.any_of({0.0, -2.0}));
    case 2: return argmax_rows_case({draw.size(2, 60), draw.size(8, 3000)});
    default: {
      const nn::Shape shape = {draw.size(1, 60), draw.size(8, 3000)};
      return gumbel_softmax_case(shape, draw.any_of({1.0, 0.5}), draw.size(1, 100));
    }
  }
}

}  // namespace bitloom::test
