// Muon: orthogonalised momentum for the matrices of residual blocks, AdamW for all else.
#include "train/muon.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <tuple>
#include <vector>

#include "core/random.h"
#include "nn/layers/tokens.h"
#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/train/spiral_training.h"
#include "train/optimizer.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

// (rows, columns), in plain code.
struct Matrix {
  std::size_t rows = 0, columns = 0;
  std::vector<double> values = std::vector<double>(rows * columns);

  double& at(std::size_t r, std::size_t c) { return values[r * columns + c]; }
  double at(std::size_t r, std::size_t c) const { return values[r * columns + c]; }
};

Matrix noise(std::size_t rows, std::size_t columns, std::uint64_t number) {
  Matrix matrix{rows, columns};
  Random random(11, Stream::test, number);
  for (double& value : matrix.values) value = random.normal();
  return matrix;
}

// n orthonormal columns of length `rows`: Gram and Schmidt, twice.
Matrix orthonormal(std::size_t rows, std::size_t n, std::uint64_t number) {
  Matrix q = noise(rows, n, number);
  for (std::size_t c = 0; c < n; ++c) {
    for (int again = 0; again < 2; ++again) {
      for (std::size_t before = 0; before < c; ++before) {
        double product = 0;
        for (std::size_t r = 0; r < rows; ++r) product += q.at(r, c) * q.at(r, before);
        for (std::size_t r = 0; r < rows; ++r) q.at(r, c) -= product * q.at(r, before);
      }
    }
    double squares = 0;
    for (std::size_t r = 0; r < rows; ++r) squares += q.at(r, c) * q.at(r, c);
    for (std::size_t r = 0; r < rows; ++r) q.at(r, c) /= std::sqrt(squares);
  }
  return q;
}

// U diag(s) V^T
Matrix with_singular_values(const Matrix& u, const std::vector<double>& s, const Matrix& v) {
  Matrix product{u.rows, v.rows};
  for (std::size_t r = 0; r < u.rows; ++r) {
    for (std::size_t c = 0; c < v.rows; ++c) {
      for (std::size_t k = 0; k < s.size(); ++k) product.at(r, c) += u.at(r, k) * s[k] * v.at(c, k);
    }
  }
  return product;
}

// A singular value of a matrix of norm 1 after Muon's five steps.
double pushed(double x) {
  for (int step = 0; step < 5; ++step) x = 3.4445 * x - 4.7750 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
  return x;
}

nn::Tensor tensor_of(nn::Engine& engine, const Matrix& matrix, DType type) {
  const nn::Shape shape = {matrix.rows, matrix.columns};
  if (type == DType::f64) return engine.from<double>(matrix.values, shape, nn::Use::workspace);
  return engine.from<float>(std::vector<float>(matrix.values.begin(), matrix.values.end()), shape, nn::Use::workspace);
}

std::vector<double> doubles_of(nn::Engine& engine, const nn::Tensor& tensor) {
  if (tensor.dtype() == DType::f64) return engine.to_host<double>(tensor);
  const std::vector<float> floats = engine.to_host<float>(tensor);
  return {floats.begin(), floats.end()};
}

std::vector<double> values_orthogonalised(nn::Engine& engine, const Matrix& matrix, DType type) {
  return doubles_of(engine, train::orthogonalised(engine, tensor_of(engine, matrix, type)));
}

// Block b of equal blocks of columns.
Matrix columns_of(const Matrix& matrix, std::size_t b, std::size_t blocks) {
  Matrix block{matrix.rows, matrix.columns / blocks};
  for (std::size_t r = 0; r < block.rows; ++r) {
    for (std::size_t c = 0; c < block.columns; ++c) block.at(r, c) = matrix.at(r, b * block.columns + c);
  }
  return block;
}

// Its way back into `all`, which has rows of `columns`.
void put_columns(const std::vector<double>& block, std::size_t b, std::size_t blocks, std::vector<double>& all,
                 std::size_t columns) {
  const std::size_t length = columns / blocks;
  for (std::size_t i = 0; i < block.size(); ++i) all[i / length * columns + b * length + i % length] = block[i];
}

OptimizerOptions muon() {
  OptimizerOptions options;
  options.rule = "muon";
  options.momentum = 0.9;
  options.decay = 0.05;
  return options;
}

// A matrix of a block, its bias, and a table that is outside of all.
struct BlockParameters {
  explicit BlockParameters(const Matrix& first) {
    const auto add = [&](const char* name, const nn::Shape& shape, bool in_block, bool reads_values) {
      nn::Parameter parameter;
      parameter.name = name;
      parameter.shape = shape;
      parameter.reads_values = reads_values;
      parameter.decays = reads_values;
      parameter.deviation = 1;
      if (in_block) parameter.block = 0;
      owned.push_back(parameter);
    };
    add("table", {5, 3}, false, true);
    add("weight", {first.rows, first.columns}, true, true);
    add("bias", {first.columns}, true, false);
    for (nn::Parameter& each : owned) all.push_back(&each);
    nn::initialise(engine, all, DType::f64, 3);
  }
  void set_gradients(std::uint64_t step) {
    for (std::size_t i = 0; i < owned.size(); ++i) {
      const Matrix values = noise(owned[i].shape.size(), 1, 10 * step + i);
      engine.write(owned[i].gradient, std::as_bytes(std::span(values.values)));
    }
  }
  std::vector<double> values(std::size_t i) { return engine.to_host<double>(owned[i].value); }

  nn::Engine engine{nn::Device{}, "ref"};
  std::vector<nn::Parameter> owned;
  std::vector<nn::Parameter*> all;
};

}  // namespace

TEST_CASE("singular values are pushed towards 1, singular vectors stay", "[train]") {
  struct Size {
    std::size_t rows, columns;
  };
  for (const Size& size : {Size{6, 6}, Size{4, 11}, Size{13, 5}, Size{1, 7}, Size{7, 1}}) {
    const std::size_t side = std::min(size.rows, size.columns);
    std::vector<double> s(side);
    for (std::size_t k = 0; k < side; ++k) s[k] = 40 * std::pow(0.6, static_cast<double>(k));
    const double norm = std::sqrt(std::inner_product(s.begin(), s.end(), s.begin(), 0.0));
    const Matrix u = orthonormal(size.rows, side, 1);
    const Matrix v = orthonormal(size.columns, side, 2);
    std::vector<double> expected(side);
    for (std::size_t k = 0; k < side; ++k) {
      expected[k] = pushed(s[k] / norm);
      CHECK(expected[k] > 0.65);
      CHECK(expected[k] < 1.25);
    }
    const Matrix x = with_singular_values(u, s, v);
    const Matrix y = with_singular_values(u, expected, v);
    for (const std::string& backend : test::tested_backends()) {
      INFO(backend << " " << size.rows << " x " << size.columns);
      nn::Engine engine(test::device_of(backend), backend);
      CHECK(compare(values_orthogonalised(engine, x, DType::f32), y.values, 1e-4) == "");
    }
    nn::Engine exact(nn::Device{}, "ref");
    CHECK(compare(values_orthogonalised(exact, x, DType::f64), y.values, 1e-11) == "");
    const Matrix zeros{size.rows, size.columns};
    CHECK(values_orthogonalised(exact, zeros, DType::f64) == zeros.values);
  }
}

TEST_CASE("blocks of columns are made orthogonal each by itself", "[train]") {
  // Queries, keys and values, whose gradients differ much in size.
  const std::size_t blocks = 3;
  for (const std::size_t rows : {1U, 5U, 9U}) {
    Matrix x{rows, blocks * 5};
    std::vector<double> expected(x.values.size());
    nn::Engine exact(nn::Device{}, "ref");
    for (std::size_t b = 0; b < blocks; ++b) {
      Matrix block = noise(rows, 5, b);
      for (double& value : block.values) value *= std::pow(100, static_cast<double>(b));
      put_columns(block.values, b, blocks, x.values, x.columns);
      put_columns(values_orthogonalised(exact, block, DType::f64), b, blocks, expected, x.columns);
    }
    const auto found = [&](nn::Engine& engine, DType type) {
      const nn::Tensor made = train::orthogonalised(engine, tensor_of(engine, x, type), blocks);
      CHECK(made.shape() == nn::Shape{rows, x.columns});
      return doubles_of(engine, made);
    };
    CHECK(compare(found(exact, DType::f64), expected, 1e-13) == "");
    for (const std::string& backend : test::tested_backends()) {
      INFO(backend << " " << rows);
      nn::Engine engine(test::device_of(backend), backend);
      CHECK(compare(found(engine, DType::f32), expected, 1e-4) == "");
    }
  }
}

TEST_CASE("what Muon works with is predicted", "[train]") {
  for (const auto& [rows, columns, blocks] : {std::tuple(24, 96, 1), std::tuple(96, 24, 1), std::tuple(32, 32, 1),
                                              std::tuple(24, 72, 3), std::tuple(9, 72, 3), std::tuple(96, 24, 3)}) {
    CAPTURE(rows, columns, blocks);
    const auto [r, c, b] =
        std::tuple{static_cast<std::size_t>(rows), static_cast<std::size_t>(columns), static_cast<std::size_t>(blocks)};
    nn::Engine engine;
    nn::Tensor x = tensor_of(engine, noise(r, c, 0), DType::f32);
    engine.pool().reset_peaks();
    orthogonalised(engine, std::move(x), b);
    CHECK(engine.pool().count(nn::Use::workspace).peak == orthogonalise_bytes(r, c, b, sizeof(float)));
  }
}

TEST_CASE("weights of queries, keys and values are three matrices to Muon", "[train]") {
  nn::SelfAttentionOptions options;
  options.heads = 2;
  nn::SelfAttention attention("attention", 8, std::make_shared<const nn::AttentionMask>(nn::AttentionMask::causal(4, 4)),
                              options);
  std::vector<nn::Parameter*> all;
  attention.add_parameters(all);
  for (const nn::Parameter* parameter : all) {
    INFO(parameter->name);
    CHECK(parameter->column_blocks == (parameter->name == "attention.qkv.weight" ? 3 : 1));
  }
}

TEST_CASE("steps of Muon equal its equations written out, and those of all else AdamW's", "[train]") {
  const Matrix shape = GENERATE(Matrix{4, 6}, Matrix{6, 4});
  const bool decays = GENERATE(true, false);
  const std::size_t blocks = GENERATE(1U, 2U);
  BlockParameters parameters(shape);
  BlockParameters others(shape);
  for (BlockParameters* each : {&parameters, &others}) {
    each->owned[1].decays = decays;
    each->owned[1].column_blocks = blocks;
  }
  const double longer = blocks == 1 || shape.rows == 6 ? 6 : 4;  // side of a block
  Optimizer optimizer(parameters.engine, parameters.all, muon());
  OptimizerOptions adamw = muon();
  adamw.rule = "adamw";
  Optimizer reference(others.engine, others.all, adamw);
  std::vector<double> value = parameters.values(1);
  std::vector<double> momentum(value.size());
  for (std::uint64_t step = 0; step < 5; ++step) {
    const double rate = 0.1 + 0.02 * static_cast<double>(step);
    for (BlockParameters* each : {&parameters, &others}) each->set_gradients(step);
    optimizer.step(rate, 1, 0.5, 1);
    reference.step(rate, 1, 0.5, 1);
    const std::vector<double> gradient = parameters.engine.to_host<double>(parameters.owned[1].gradient);
    Matrix update = shape;
    for (std::size_t i = 0; i < value.size(); ++i) {
      momentum[i] = 0.9 * momentum[i] + 0.5 * gradient[i];
      update.values[i] = 0.5 * gradient[i] + 0.9 * momentum[i];
    }
    std::vector<double> direction(value.size());
    for (std::size_t b = 0; b < blocks; ++b) {
      const Matrix block = columns_of(update, b, blocks);
      put_columns(values_orthogonalised(others.engine, block, DType::f64), b, blocks, direction, shape.columns);
    }
    for (std::size_t i = 0; i < value.size(); ++i) {
      value[i] -= rate * (0.2 * std::sqrt(longer) * direction[i] + (decays ? 0.05 * value[i] : 0));
    }
    INFO("step " << step);
    CHECK(compare(parameters.values(1), value, 1e-11) == "");
    CHECK(parameters.values(0) == others.values(0));
    CHECK(parameters.values(2) == others.values(2));
  }
  std::vector<StateTensor> state;
  optimizer.add_state(state);
  std::vector<std::string> names;
  for (const StateTensor& each : state) names.push_back(each.name);
  CHECK(names == std::vector<std::string>{"optimizer.momentum.weight", "optimizer.mean.table", "optimizer.mean.bias",
                                          "optimizer.variance.table", "optimizer.variance.bias"});
  CHECK(compare(parameters.engine.to_host<double>(*state[0].tensor), momentum, 1e-11) == "");
  CHECK(moment_bytes(muon(), true, 4) == 4);
  CHECK(moment_bytes(muon(), false, 4) == 8);
}

TEST_CASE("Muon's step of a matrix does not depend on the size of its gradient", "[train]") {
  const Matrix shape{5, 3};
  BlockParameters small(shape);
  BlockParameters large(shape);
  Optimizer first(small.engine, small.all, muon());
  Optimizer second(large.engine, large.all, muon());
  for (std::uint64_t step = 0; step < 3; ++step) {
    small.set_gradients(step);
    large.set_gradients(step);
    first.step(0.1, 1, 1e-3, 1);
    second.step(0.1, 1, 1e3, 1);
  }
  CHECK(compare(small.values(1), large.values(1), 1e-11) == "");
}

TEST_CASE("Muon leaves frozen matrices, and those whose block is skipped", "[train]") {
  BlockParameters parameters({4, 6});
  BlockParameters frozen({4, 6});
  frozen.owned[1].is_frozen = true;
  Optimizer optimizer(parameters.engine, parameters.all, muon());
  Optimizer without(frozen.engine, frozen.all, muon());
  for (BlockParameters* each : {&parameters, &frozen}) each->set_gradients(0);
  const std::vector<double> before = parameters.values(1);
  const auto skipped = [](std::optional<std::size_t> block) { return block ? std::nullopt : std::optional(1.0); };
  optimizer.step(0.1, 1, 1, 1, skipped);
  without.step(0.1, 1, 1, 1);
  CHECK(parameters.values(1) == before);
  CHECK(frozen.values(1) == before);
  CHECK(parameters.values(0) == frozen.values(0));
  // Nor has its momentum moved: the next step is the first.
  BlockParameters fresh({4, 6});
  Optimizer first(fresh.engine, fresh.all, muon());
  for (BlockParameters* each : {&parameters, &fresh}) each->set_gradients(1);
  optimizer.step(0.1, 1, 1, 1);
  first.step(0.1, 1, 1, 1);
  CHECK(parameters.values(1) == fresh.values(1));
  CHECK(parameters.values(1) != before);
}

TEST_CASE("a run of Muon that goes on is the run that never stopped, bit by bit", "[train]") {
  for (const std::string& backend : test::tested_backends()) {
    for (const DType values : {DType::f32, DType::bf16}) {
      INFO(backend << " " << dtype_name(values));
      TrainOptions options;
      options.values = values;
      options.micro_batches = 2;
      options.rate.peak = 0.02;
      options.optimizer = muon();
      test::check_that_it_goes_on(options, backend, 2, "optimizer.momentum.branch.weight");
    }
  }
}

TEST_CASE("averages follow what parameters become once they have moved", "[train]") {
  BlockParameters parameters({4, 6});
  OptimizerOptions options = muon();
  options.average = 0.5;
  Optimizer optimizer(parameters.engine, parameters.all, options);
  nn::Tensor& value = parameters.owned[1].value;
  const std::vector<double> first = parameters.values(1);
  optimizer.on_moved([&] { nn::fill(parameters.engine, value, 0); });
  parameters.set_gradients(0);
  optimizer.step(0.1, 1, 1, 1);
  REQUIRE(optimizer.swap_averages());
  std::vector<double> average = first;
  for (double& each : average) each *= average_decay(0.5, 1);
  CHECK(compare(parameters.values(1), average, 1e-12) == "");
}

TEST_CASE("Muon refuses what it cannot move", "[train]") {
  BlockParameters parameters({4, 6});
  const auto refusal = [&](auto&& spoil) {
    std::vector<nn::Parameter> owned = parameters.owned;
    spoil(owned[1]);
    std::vector<nn::Parameter*> all;
    for (nn::Parameter& each : owned) all.push_back(&each);
    return message_of(ErrorKind::usage, [&] { Optimizer(parameters.engine, all, muon()); });
  };
  CHECK(has(refusal([](nn::Parameter& p) { p.shape = {24}; }), "'weight' is a part of a matrix"));
  CHECK(has(refusal([](nn::Parameter& p) { p.rate = 2; }), "'weight' has a learning rate of its own"));
  OptimizerOptions narrow = muon();
  narrow.narrow_moments = true;
  CHECK(has(message_of(ErrorKind::usage, [&] { Optimizer(parameters.engine, parameters.all, narrow); }),
            "expected `optimizer` adamw"));
}
