#include <fmt/format.h>
#include <cmath>

#include "nn/few_bit.h"
#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

// Not so near to 0 that a difference would step over the kinks of relu and selu.
std::vector<double> off_zero(std::size_t n, std::uint64_t seed) {
  std::vector<double> numbers = normal_numbers(n, seed, 2);
  for (double& x : numbers) x += x < 0 ? -0.01 : 0.01;
  return numbers;
}

OpCase activation_case(const nn::Activation& activation, std::vector<double> x, bool is_differentiable = true) {
  const nn::Shape shape = {x.size()};
  OpCase c;
  c.ops = {"activate", "activate_backward"};
  c.name = fmt::format("{}, {} elements", activation.name, x.size());
  c.inputs = {{"x", Kind::values, shape, std::move(x)}};
  c.outputs = {overwritten("y", shape)};
  c.forward = [&activation](nn::Engine& engine, Tensors& t) { nn::activate(engine, activation, t["x"], t["y"]); };
  c.upstream = {values("dy", shape, 2)};
  c.gradients = {overwritten("dx", shape)};
  c.backward = [&activation](nn::Engine& engine, Tensors& t) {
    nn::activate_backward(engine, activation, t["x"], t["dy"], t["dx"]);
  };
  c.forward_in_place = {{"y", "x"}};
  c.backward_in_place = {{"dx", "dy"}, {"dx", "x"}};
  c.is_differentiable = is_differentiable;
  c.is_large = shape.size() > 10000;
  return c;
}

// Any boundaries and levels do; some x lie on boundaries, and beyond the first and last.
OpCase few_bit_case(const nn::Activation& activation, unsigned bits, bool even, std::size_t n) {
  nn::FewBitTable table;
  table.even = even;
  const std::size_t levels = std::size_t{1} << bits;
  for (std::size_t i = 0; i < levels; ++i) {
    const double place = (static_cast<double>(i) + 0.7) / static_cast<double>(levels);
    table.levels.push_back(std::sin(5 * place));
    if (i + 1 < levels) table.boundaries.push_back(even ? 4 * place : 8 * place - 4);
  }
  std::vector<double> x = normal_numbers(n, 1, 2);
  for (std::size_t i = 0; i < n; i += 5) x[i] = (i % 2 == 0 ? 1 : -1) * table.boundaries[i % (levels - 1)];
  const nn::Shape shape = {n};
  OpCase c;
  c.ops = {"activate_few_bit", "activate_few_bit_backward"};
  c.name = fmt::format("{}, {} bits{}, {} elements", activation.name, bits, even ? " by |x|" : "", n);
  c.inputs = {{"x", Kind::values, shape, std::move(x)}};
  c.outputs = {overwritten("y", shape), overwritten("stash", {(n * bits + 7) / 8}, Kind::u8)};
  c.forward = [=, &activation](nn::Engine& engine, Tensors& t) {
    nn::activate_few_bit(engine, activation, table, t["x"], t["y"], t["stash"]);
  };
  c.upstream = {values("dy", shape, 2)};
  c.gradients = {overwritten("dx", shape)};
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    nn::activate_few_bit_backward(engine, table, t["stash"], t["dy"], t["dx"]);
  };
  c.forward_in_place = {{"y", "x"}};
  c.backward_in_place = {{"dx", "dy"}};
  c.is_differentiable = false;
  c.is_large = n > 10000;
  return c;
}

// Every third group has equal values.
OpCase quantiser_case(unsigned bits, std::size_t n, std::uint64_t first) {
  constexpr std::size_t group = 256;
  std::vector<double> x = normal_numbers(n, 1, 2);
  for (std::size_t i = 0; i < n; ++i) {
    if (i / group % 3 == 2) x[i] = -0.75;
  }
  const nn::Shape shape = {n};
  OpCase c;
  c.ops = {"quantise_groups", "restore_groups"};
  c.name = fmt::format("{} bits, {} elements from number {} on", bits, n, first);
  c.inputs = {{"x", Kind::values, shape, std::move(x)}};
  c.outputs = {overwritten("packed", {(n * bits + 7) / 8}, Kind::u8),
               overwritten("ranges", {(n + group - 1) / group, 2}, Kind::f32), overwritten("y", shape)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::quantise_groups(engine, {bits, 7, 11, first}, t["x"], t["packed"], t["ranges"]);
    nn::restore_groups(engine, bits, t["packed"], t["ranges"], t["y"]);
  };
  c.is_differentiable = false;
  c.is_large = n > 10000;
  return c;
}

}  // namespace

std::vector<OpCase> activation_cases() {
  std::vector<OpCase> cases;
  for (const nn::Activation& activation : nn::activations()) {
    for (const std::size_t n : {1U, 7U, 33U, 127U, 0U}) cases.push_back(activation_case(activation, off_zero(n, 1)));
    // Both tails, where naive formulas lose their digits or overflow, and the kinks.
    cases.push_back(activation_case(
        activation, {0.0, -0.0, 0.001, -0.001, 4, -4, 6, -6, 10, -10, 20, -20, 50, -50, 90, -90, 300, -300, 1e4, -1e4}, false));
    cases.push_back(activation_case(activation, off_zero(30011, 1), false));
  }
  const nn::Activation& gelu = nn::find_activation("gelu");
  for (unsigned bits = 1; bits <= 8; ++bits) {
    for (const std::size_t n : {1U, 7U, 33U, 127U, 0U}) cases.push_back(few_bit_case(gelu, bits, false, n));
    cases.push_back(few_bit_case(nn::find_activation("tanh"), bits, true, 65));
    cases.push_back(few_bit_case(gelu, bits, false, 30011));
    for (const std::size_t n : {1U, 7U, 255U, 256U, 777U, 0U}) cases.push_back(quantiser_case(bits, n, 0));
    cases.push_back(quantiser_case(bits, 30011, (std::uint64_t{1} << 33U) + 8));
  }
  return cases;
}

OpCase random_activation_case(Draw& draw) {
  const std::size_t n = draw.size(1, 20000);
  const nn::Activation& gelu = nn::find_activation("gelu");
  const nn::Activation& other = nn::find_activation(draw.any_of({"gelu_tanh", "silu", "sigmoid", "tanh", "selu", "softplus"}));
  const auto bits = static_cast<unsigned>(draw.size(1, 8));
  switch (draw.any_of({0, 1, 2, 3})) {
    case 0: return activation_case(other, off_zero(n, n));
    case 1: return few_bit_case(gelu, bits, false, n);
    case 2: return quantiser_case(bits, n, 8 * draw.size(0, 1000));
    default: return few_bit_case(nn::find_activation("tanh"), bits, true, n);
  }
}

}  // namespace bitloom::test
