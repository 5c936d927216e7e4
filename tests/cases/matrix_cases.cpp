#include <fmt/format.h>

#include "tests/cases/case.h"

namespace bitloom::test {
namespace {

struct Product {
  std::size_t m, k, n;
  std::size_t products = 0;  // 0: matrices of two axes
  nn::MatmulOptions options = {};
  bool has_bias = false;
  const char* activation = nullptr;
  Kind out = Kind::values;
  bool is_large = false;
};

// a and b of the shapes that the options say, their gradients as a layer computes them: da of type V, db of type P added to.
OpCase matmul_case(const Product& p) {
  const auto shape = [&](std::size_t rows, std::size_t columns, bool transposed) {
    const nn::Shape two = transposed ? nn::Shape{columns, rows} : nn::Shape{rows, columns};
    return p.products == 0 ? two : nn::Shape{p.products, two[0], two[1]};
  };
  const nn::Shape a = shape(p.m, p.k, p.options.transpose_a);
  const nn::Shape b = shape(p.k, p.n, p.options.transpose_b);
  const nn::Shape out = shape(p.m, p.n, false);
  const nn::Activation* activation = p.activation == nullptr ? nullptr : &nn::find_activation(p.activation);

  OpCase c;
  c.ops = {"matmul"};
  c.name = fmt::format("{}x{}x{}, {} products{}{}{}{}{}{}", p.m, p.k, p.n, p.products, p.options.transpose_a ? ", a'" : "",
                       p.options.transpose_b ? ", b'" : "", p.options.accumulate ? ", accumulated" : "",
                       p.options.scale != 1 ? ", scaled" : "", p.has_bias ? ", bias" : "",
                       p.activation != nullptr ? std::string(", ") + p.activation : "");
  c.inputs = {values("a", a, 1), values("b", b, 2)};
  if (p.has_bias) c.inputs.push_back(parameters("bias", {p.n}, 3));
  c.outputs = {p.options.accumulate ? added_to("y", out, 4, p.out) : overwritten("y", out, p.out)};
  c.forward = [=](nn::Engine& engine, Tensors& t) {
    nn::MatmulOptions options = p.options;
    if (p.has_bias) options.bias = t["bias"];
    options.activation = activation;
    nn::matmul(engine, t["a"], t["b"], t["y"], options);
  };
  c.is_large = p.is_large;
  if (p.out != Kind::values) return c;  // backward takes a gradient of type V
  c.upstream = {values("dy", out, 5)};
  c.gradients = {overwritten("da", a), added_to("db", b, 6)};
  if (p.has_bias) {
    c.ops.push_back("add_row_sums");
    c.gradients.push_back(added_to("dbias", {p.n}, 7));
  }
  c.backward = [=](nn::Engine& engine, Tensors& t) {
    const bool ta = p.options.transpose_a;
    const bool tb = p.options.transpose_b;
    nn::Tensor g = t["dy"];
    if (activation != nullptr) {
      nn::MatmulOptions options = p.options;
      if (p.has_bias) options.bias = t["bias"];
      nn::Tensor x = engine.empty(out, g.dtype(), nn::Use::workspace);
      nn::matmul(engine, t["a"], t["b"], x, options);
      g = engine.empty(out, g.dtype(), nn::Use::workspace);
      nn::activate_backward(engine, *activation, x, t["dy"], g);
    }
    const double scale = p.options.scale;
    if (ta) {
      nn::matmul(engine, t["b"], g, t["da"], {.transpose_a = tb, .transpose_b = true, .scale = scale});
    } else {
      nn::matmul(engine, g, t["b"], t["da"], {.transpose_b = !tb, .scale = scale});
    }
    if (tb) {
      nn::matmul(engine, g, t["a"], t["db"], {.transpose_a = true, .transpose_b = ta, .accumulate = true, .scale = scale});
    } else {
      nn::matmul(engine, t["a"], g, t["db"], {.transpose_a = !ta, .accumulate = true, .scale = scale});
    }
    if (p.has_bias) nn::add_row_sums(engine, g, t["dbias"]);
  };
  return c;
}

OpCase row_sums_case(const nn::Shape& shape, bool is_large = false) {
  OpCase c;
  c.ops = {"add_row_sums"};
  c.name = to_text(shape);
  c.inputs = {values("x", shape, 1)};
  c.outputs = {added_to("sums", {shape.back()}, 2)};
  c.forward = [](nn::Engine& engine, Tensors& t) { nn::add_row_sums(engine, t["x"], t["sums"]); };
  c.is_large = is_large;
  return c;
}

}  // namespace

std::vector<OpCase> matrix_cases() {
  std::vector<OpCase> cases;
  for (const auto& [m, k, n] :
       {std::array<std::size_t, 3>{1, 1, 1}, {3, 5, 7}, {31, 65, 33}, {1, 127, 65}, {33, 7, 1}, {7, 1, 127}}) {
    cases.push_back(matmul_case({.m = m, .k = k, .n = n}));
    cases.push_back(matmul_case({.m = m, .k = k, .n = n, .options = {.scale = 0.3}, .has_bias = true}));
  }
  for (const std::size_t products : {0U, 3U}) {
    for (const bool ta : {false, true}) {
      for (const bool tb : {false, true}) {
        const nn::MatmulOptions options = {.transpose_a = ta, .transpose_b = tb, .scale = -1.5};
        cases.push_back(matmul_case({.m = 7, .k = 33, .n = 31, .products = products, .options = options}));
        nn::MatmulOptions accumulate = options;
        accumulate.accumulate = true;
        cases.push_back(matmul_case({.m = 33, .k = 5, .n = 17, .products = products, .options = accumulate}));
        cases.push_back(
            matmul_case({.m = 5, .k = 31, .n = 9, .products = products, .options = accumulate, .out = Kind::parameters}));
      }
    }
  }
  for (const char* activation : {"gelu", "gelu_tanh", "relu", "silu", "tanh"}) {
    cases.push_back(
        matmul_case({.m = 9, .k = 5, .n = 19, .options = {.scale = 0.5}, .has_bias = true, .activation = activation}));
  }
  cases.push_back(matmul_case({.m = 3, .k = 4, .n = 5, .activation = "sigmoid"}));
  cases.push_back(matmul_case({.m = 13, .k = 31, .n = 33, .has_bias = true, .out = Kind::parameters}));
  cases.push_back(matmul_case({.m = 0, .k = 5, .n = 3, .has_bias = true}));
  cases.push_back(matmul_case({.m = 5, .k = 3, .n = 0}));
  cases.push_back(matmul_case({.m = 5, .k = 0, .n = 3, .has_bias = true}));  // out is the bias
  cases.push_back(matmul_case({.m = 5, .k = 0, .n = 3, .options = {.accumulate = true}}));
  cases.push_back(matmul_case({.m = 257, .k = 129, .n = 131, .has_bias = true, .activation = "gelu", .is_large = true}));
  cases.push_back(matmul_case({.m = 65, .k = 64, .n = 63, .products = 5, .is_large = true}));
  // Large enough for every backend to divide them.
  cases.push_back(matmul_case({.m = 130, .k = 140, .n = 150, .products = 2, .is_large = true}));
  cases.push_back(matmul_case(
      {.m = 210, .k = 90, .n = 230, .options = {.transpose_b = true, .scale = 0.5}, .has_bias = true, .is_large = true}));
  cases.push_back(matmul_case({.m = 7, .k = 300, .n = 1100, .has_bias = true, .is_large = true}));
  // Long enough to be summed in parts.
  cases.push_back(matmul_case({.m = 5, .k = 33000, .n = 19, .has_bias = true, .is_large = true}));
  for (const nn::Shape& shape : {nn::Shape{1, 1}, {3, 7}, {127, 33}, {1, 65}, {31, 1}, {0, 5}, {2, 3, 5, 7}, {9}}) {
    cases.push_back(row_sums_case(shape));
  }
  cases.push_back(row_sums_case({1000, 129}, true));
  return cases;
}

OpCase random_matrix_case(Draw& draw) {
  if (draw.size(1, 8) == 8) return row_sums_case({draw.size(1, 2000), draw.size(1, 300)});
  Product p = {
      .m = draw.size(1, 400), .k = draw.size(1, 400), .n = draw.size(8, 400), .products = draw.any_of({0UL, 0UL, 2UL, 3UL})};
  p.options = {.transpose_a = draw.coin(), .transpose_b = draw.coin(), .scale = draw.any_of({1.0, 0.25, -1.5})};
  p.options.accumulate = draw.any_of({false, false, true});
  p.out = draw.any_of({Kind::values, Kind::values, Kind::parameters});
  if (!p.options.accumulate) {
    p.has_bias = draw.coin();
    p.activation = draw.any_of<const char*>({nullptr, nullptr, "gelu_tanh", "gelu", "silu"});
  }
  return matmul_case(p);
}

}  // namespace bitloom::test
