#include <fmt/format.h>
#include <limits>

#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

std::vector<std::size_t> sizes() {
  std::vector<std::size_t> sizes = odd_sizes;
  sizes.insert(sizes.end(), {0, 8, 1000});
  return sizes;
}

constexpr std::size_t large = 100001;

OpCase convert_case(std::size_t n, Kind from, Kind to, std::vector<DType> types) {
  OpCase c;
  c.ops = {"convert"};
  c.name = fmt::format("{} elements", n);
  c.inputs = {{"x", from, {n}, normal_numbers(n, 1, 10)}};
  c.outputs = {overwritten("y", {n}, to)};
  c.forward = [](nn::Engine& engine, Tensors& t) { nn::convert(engine, t["x"], t["y"]); };
  c.types = std::move(types);
  c.is_large = n == large;
  return c;
}

OpCase fill_case(std::size_t n, Kind kind, double value) {
  OpCase c;
  c.ops = {"fill"};
  c.name = fmt::format("{} elements with {}", n, value);
  c.outputs = {overwritten("y", {n}, kind)};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::fill(engine, t["y"], value); };
  return c;
}

OpCase add_case(std::size_t n) {
  OpCase c;
  c.ops = {"add"};
  c.name = fmt::format("{} elements", n);
  c.inputs = {values("a", {n}, 1), values("b", {n}, 2)};
  c.outputs = {overwritten("y", {n})};
  c.forward = [](nn::Engine& engine, Tensors& t) { nn::add(engine, t["a"], t["b"], t["y"]); };
  c.forward_in_place = {{"y", "a"}};
  c.is_large = n == large;
  return c;
}

OpCase scale_add_case(std::size_t n, double alpha, double beta, Kind from, Kind to) {
  OpCase c;
  c.ops = {"scale_add"};
  c.name = fmt::format("{} elements, {} x + {} y", n, alpha, beta);
  c.inputs = {{"x", from, {n}, normal_numbers(n, 1)}};
  // Poison must not get through a factor of 0.
  c.outputs = {{"y", to, {n}, beta == 0 ? std::vector<double>() : normal_numbers(n, 2)}};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::scale_add(engine, alpha, t["x"], beta, t["y"]); };
  c.is_large = n == large;
  return c;
}

// Numbers that are not finite stand at every seventh element.
OpCase add_finite_case(std::size_t n, double alpha, Kind from, Kind to) {
  OpCase c;
  c.ops = {"add_finite"};
  c.name = fmt::format("{} elements, {} x", n, alpha);
  std::vector<double> x = normal_numbers(n, 1);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double others[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()};
  for (std::size_t i = 3; i < n; i += 7) x[i] = others[i % 3];
  c.inputs = {{"x", from, {n}, x}};
  c.outputs = {{"y", to, {n}, normal_numbers(n, 2)}};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::add_finite(engine, alpha, t["x"], t["y"]); };
  c.is_large = n == large;
  return c;
}

// at_limit: every third element is at the limit or twice as large, and one is infinite; otherwise none is so near to it that a
// difference would step over it.
OpCase clamp_case(std::size_t n, double limit, bool at_limit) {
  OpCase c;
  c.ops = {"clamp", "clamp_backward"};
  c.name = fmt::format("{} elements, limit {}", n, limit);
  std::vector<double> x = normal_numbers(n, 1);
  if (at_limit) {
    for (std::size_t i = 0; i < n; i += 3) x[i] = i % 2 == 0 ? limit : -2 * limit;
    if (n > 5) x[5] = std::numeric_limits<double>::infinity();
  } else {
    for (double& each : x) each *= std::abs(std::abs(each) - limit) < 0.02 ? 1.05 : 1;
  }
  c.inputs = {{"x", Kind::values, {n}, x}};
  c.outputs = {overwritten("y", {n})};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::clamp(engine, limit, t["x"], t["y"]); };
  c.upstream = {values("dy", {n}, 2)};
  c.gradients = {overwritten("dx", {n})};
  c.backward = [=](nn::Engine& engine, Tensors& t) { nn::clamp_backward(engine, limit, t["x"], t["dy"], t["dx"]); };
  c.forward_in_place = {{"y", "x"}};
  c.backward_in_place = {{"dx", "dy"}};
  c.is_differentiable = !at_limit;
  c.is_large = n == large;
  return c;
}

OpCase dropout_case(const nn::Shape& shape, const nn::Dropout& dropout) {
  OpCase c;
  c.ops = {"dropout"};
  c.name = fmt::format("{}, rate {}", to_text(shape), dropout.rate);
  c.inputs = {values("x", shape, 1)};
  c.outputs = {overwritten("y", shape)};
  c.forward = [=](nn::Engine& engine, Tensors& t) { nn::dropout(engine, dropout, t["x"], t["y"]); };
  c.upstream = {values("dy", shape, 2)};
  c.gradients = {overwritten("dx", shape)};
  c.backward = [=](nn::Engine& engine, Tensors& t) { nn::dropout(engine, dropout, t["dy"], t["dx"]); };
  c.forward_in_place = {{"y", "x"}};
  c.backward_in_place = {{"dx", "dy"}};
  c.is_large = shape.size() >= large;
  return c;
}

}  // namespace

std::vector<OpCase> element_cases() {
  std::vector<OpCase> cases;
  std::vector<std::size_t> all = sizes();
  all.push_back(large);
  for (const std::size_t n : all) {
    cases.push_back(convert_case(n, Kind::values, Kind::f32, {DType::f64, DType::bf16, DType::f16}));
    cases.push_back(convert_case(n, Kind::f32, Kind::values, {DType::f64, DType::bf16, DType::f16}));
    cases.push_back(add_case(n));
    cases.push_back(scale_add_case(n, 0.7, -1.25, Kind::values, Kind::values));
    cases.push_back(scale_add_case(n, 0.7, 0, Kind::values, Kind::values));
    cases.push_back(scale_add_case(n, -3, 1, Kind::values, Kind::parameters));
    cases.push_back(scale_add_case(n, 2, 0.5, Kind::parameters, Kind::values));
    cases.push_back(add_finite_case(n, 0.7, Kind::values, Kind::values));
    cases.push_back(add_finite_case(n, -3, Kind::values, Kind::parameters));
    cases.push_back(clamp_case(n, 1.5, false));
    cases.push_back(clamp_case(n, 1.5, true));
    cases.push_back(fill_case(n, Kind::values, -1.5));
    cases.push_back(fill_case(n, Kind::i32, -7));
    cases.push_back(fill_case(n, Kind::u8, 255));
    cases.push_back(dropout_case({n}, {.rate = 0.25, .seed = 5, .site = 77, .first = 8 * n}));
  }
  OpCase add_other = add_case(33);
  add_other.forward_in_place = {{"y", "b"}};
  cases.push_back(add_other);
  cases.push_back(fill_case(33, Kind::parameters, 0.25));
  cases.push_back(scale_add_case(33, 0, 1, Kind::values, Kind::values));
  const std::uint64_t big = 0xFEDCBA9876543210U;
  for (const double rate : {0.0, 1e-6, 0.1, 0.5, 0.97}) cases.push_back(dropout_case({7, 33}, {rate, big, ~big}));
  return cases;
}

OpCase random_element_case(Draw& draw) {
  const std::size_t n = draw.size(1, 20000);
  switch (draw.any_of({0, 1, 2, 3, 4})) {
    case 0: return convert_case(n, Kind::values, Kind::f32, {DType::f64, DType::bf16, DType::f16});
    case 1: return add_case(n);
    case 2: return scale_add_case(n, draw.any_of({1.0, 0.7}), draw.any_of({0.0, 1.0, -1.25}), Kind::values, Kind::values);
    case 3: return scale_add_case(n, 0.7, 1, Kind::values, Kind::parameters);
    default: return dropout_case({n}, {.rate = draw.any_of({0.1, 0.25, 0.5}), .seed = n, .site = draw.size(1, 1000)});
  }
}

}  // namespace bitloom::test
