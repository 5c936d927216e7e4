// Layers of which several processes have a part each: together they are the whole layer.
#include <map>
#include <memory>
#include <vector>

#include "core/random.h"
#include "nn/layers/tokens.h"
#include "tests/nn/random_tensor.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/parts.h"

namespace bitloom::nn {
using test::compare;
using test::message_of;
using test::noise;
using test::random_tensor;

namespace {

// Output, gradients of the input and of all parameters, in their places in the whole, of layers that divide the work of one
// between them; the first two are summed. Parameters have their initial values.
struct Divided {
  std::vector<double> y, dx;
  std::map<std::string, std::vector<double>> gradients;
  std::uint64_t kept = 0;

  void add(Engine& engine, Layer& layer, const Tensor& x, const Tensor& dy) {
    const std::vector<Parameter*> parameters = parameters_of(layer);
    initialise(engine, parameters, DType::f64, 5);
    Stash stash;
    Pass pass{engine};
    pass.stash = &stash;
    pass.seed = 3;
    const Tensor result = layer.forward(pass, x);
    CHECK(stash.bytes() == layer.stash_bytes(x.shape(), DType::f64));
    kept += stash.bytes();
    const bool is_sum = result.shape() == dy.shape();
    if (is_sum) add_to(y, engine.to_host<double>(result));
    add_to(dx, engine.to_host<double>(layer.backward(pass, is_sum ? dy : columns_of(engine, dy, result, parameters))));
    for (const Parameter* parameter : parameters) {
      const std::vector<double> gradient = engine.to_host<double>(parameter->gradient);
      std::vector<double>& whole = gradients[parameter->name];
      if (!parameter->part) {
        whole = gradient;
        continue;
      }
      whole.resize(parameter->part->full.size());
      test::put_part(*parameter->part, gradient, whole);
    }
  }

 private:
  static void add_to(std::vector<double>& sum, const std::vector<double>& terms) {
    sum.resize(terms.size());
    for (std::size_t i = 0; i < terms.size(); ++i) sum[i] += terms[i];
  }
  // The columns of dy that a layer's outputs are, by its last parameter, the bias.
  static Tensor columns_of(Engine& engine, const Tensor& dy, const Tensor& y, const std::vector<Parameter*>& parameters) {
    const ElementNumbers columns = parameters.back()->part->numbers();
    const std::vector<double> all = engine.to_host<double>(dy);
    std::vector<double> own;
    for (std::size_t i = 0; i < y.size(); ++i) {
      own.push_back(all[i / y.shape().back() * dy.shape().back() + columns(i % y.shape().back())]);
    }
    return engine.from(std::span<const double>(own), y.shape(), Use::data);
  }
};

void check_equal(const Divided& parts, const Divided& whole) {
  if (!parts.y.empty()) CHECK(compare(parts.y, whole.y, 1e-12) == "");
  CHECK(compare(parts.dx, whole.dx, 1e-12) == "");
  for (const auto& [name, gradient] : parts.gradients) {
    INFO(name);
    CHECK(compare(gradient, whole.gradients.at(name), 1e-12) == "");
  }
}

}  // namespace

TEST_CASE("linear layers that divide outputs or inputs are together the whole one", "[layers]") {
  Engine engine({}, "ref");
  for (const bool transposed : {false, true}) {
    LinearOptions options;
    options.transposed = transposed;
    options.deviation = 0.3;
    options.bias = true;
    const Tensor dy = random_tensor(engine, {5, 9}, 2);
    {
      Divided whole, parts;
      const Tensor x = random_tensor(engine, {5, 4}, 1);
      Linear one("l", 4, 9, options);
      whole.add(engine, one, x, dy);
      options.division = LinearOptions::Division::outputs;
      options.blocks = 3;
      for (const auto& [begin, end] : {std::pair(0U, 2U), {2U, 3U}}) {
        options.begin = begin;
        options.end = end;
        Linear part("l", 4, 9, options);
        parts.add(engine, part, x, dy);
        CHECK(part.output({5, 4}) == Shape{5, 3 * (end - begin)});
      }
      check_equal(parts, whole);
      CHECK(parts.gradients.size() == 2);
    }
    Divided whole, parts;
    options.bias = false;
    options.blocks = 1;
    options.division = LinearOptions::Division::none;
    const std::vector<double> all = noise(5 * 7, 1);
    Linear one("l", 7, 9, options);
    whole.add(engine, one, engine.from(std::span<const double>(all), {5, 7}, Use::data), dy);
    options.division = LinearOptions::Division::inputs;
    std::vector<double> dx;
    for (const auto& [begin, end] : {std::pair(0U, 3U), {3U, 7U}}) {
      options.begin = begin;
      options.end = end;
      std::vector<double> own;
      for (std::size_t row = 0; row < 5; ++row) {
        own.insert(own.end(), all.begin() + static_cast<std::ptrdiff_t>(7 * row + begin),
                   all.begin() + static_cast<std::ptrdiff_t>(7 * row + end));
      }
      Linear part("l", 7, 9, options);
      parts.dx.clear();
      parts.add(engine, part, engine.from(std::span<const double>(own), {5, end - begin}, Use::data), dy);
      std::vector<double> expected;
      for (std::size_t row = 0; row < 5; ++row) {
        for (std::size_t column = begin; column < end; ++column) expected.push_back(whole.dx[7 * row + column]);
      }
      CHECK(compare(parts.dx, expected, 1e-12) == "");
    }
    parts.dx = whole.dx;
    check_equal(parts, whole);
    options.bias = true;
    CHECK(message_of(ErrorKind::internal, [&] { Linear("l", 7, 9, options); }) == "l: a bias beside one of the terms of a sum");
  }
}

TEST_CASE("attentions that divide the heads are together the whole one, dropout included", "[layers]") {
  Engine engine({}, "ref");
  const auto mask = std::make_shared<AttentionMask>(AttentionMask::causal(5, 5));
  SelfAttentionOptions options;
  options.heads = 5;
  options.deviation = options.projection_deviation = 0.3;
  options.dropout = 0.3;
  options.dropout_number = 2;
  for (const bool transposed : {false, true}) {
    options.transposed = transposed;
    const Tensor x = random_tensor(engine, {2, 5, 20}, 1);
    const Tensor dy = random_tensor(engine, {2, 5, 20}, 2);
    Divided whole, parts;
    options.first_head = options.own_heads = 0;
    SelfAttention one("a", 20, mask, options);
    whole.add(engine, one, x, dy);
    double cost = 0;
    for (const auto& [first, count] : {std::pair(0U, 2U), {2U, 3U}}) {
      options.first_head = first;
      options.own_heads = count;
      SelfAttention part("a", 20, mask, options);
      CHECK(parameters_of(part).size() == 3);
      parts.add(engine, part, x, dy);
      cost += part.cost(x.shape());
    }
    check_equal(parts, whole);
    CHECK(cost == one.cost(x.shape()));
    CHECK(parts.kept == whole.kept + x.bytes());  // each keeps x
  }
  options.first_head = 3;
  CHECK(message_of(ErrorKind::internal, [&] { SelfAttention("a", 20, mask, options); }) == "a: heads 3 to 6 of 5");
}

}  // namespace bitloom::nn
