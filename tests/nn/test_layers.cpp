// Layers: their gradients against finite differences in double precision, what they keep, and blocks that are computed again.
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "core/random.h"
#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "nn/layers/images.h"
#include "nn/layers/tokens.h"
#include "tests/nn/random_tensor.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {
using test::compare;
using test::device_of;
using test::message_of;
using test::noise;
using test::random_tensor;
using test::tested_backends;

namespace {

// A layer in double precision under the loss sum(y r), r random.
class Setting {
 public:
  const BranchScales* branch_scales = nullptr;

  Setting(LayerPointer layer, const Tensor& x, Engine& engine)
      : engine_(engine), layer_(std::move(layer)), x_(x), parameters_(parameters_of(*layer_)) {
    initialise(engine, parameters_, DType::f64, 7);
    for (Parameter* parameter : parameters_) {  // gains and biases too get something to do
      if (parameter->deviation > 0) continue;
      std::vector<double> values = noise(parameter->shape.size(), 8);
      for (double& value : values) value = parameter->constant + 0.3 * value;
      engine.write(parameter->value, std::as_bytes(std::span(values)));
    }
  }

  Pass pass(Stash* stash) {
    Pass pass{engine_};
    pass.stash = stash;
    pass.seed = 3;
    pass.step = 5;
    pass.micro_batch = 2;
    pass.branch_scales = branch_scales;
    return pass;
  }
  double loss() {
    Pass forward = pass(nullptr);
    const std::vector<double> y = engine_.to_host<double>(layer_->forward(forward, x_));
    const std::vector<double> r = noise(y.size(), 9);
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * r[i];
    return sum;
  }
  Tensor run_backward() {
    clear_gradients(engine_, parameters_);
    Pass both = pass(&stash_);
    const Tensor y = layer_->forward(both, x_);
    CHECK(y.shape() == layer_->output(x_.shape()));
    kept_ = stash_.bytes();
    Tensor dx = layer_->backward(both, random_tensor(engine_, y.shape(), 9));
    CHECK(stash_.empty());
    return dx;
  }
  // Checks some elements of a tensor by central differences.
  void check_gradient(const std::string& what, Tensor& tensor, const Tensor& gradient) {
    std::vector<double> values = engine_.to_host<double>(tensor);
    const std::vector<double> expected_all = engine_.to_host<double>(gradient);
    std::vector<double> found;
    std::vector<double> expected;
    const std::size_t step = std::max<std::size_t>(1, values.size() / 40);
    for (std::size_t i = 0; i < values.size(); i += step) {
      const double middle = values[i];
      const double h = 1e-5;
      const auto at = [&](double value) {
        values[i] = value;
        engine_.write(tensor, std::as_bytes(std::span(values)));
        return loss();
      };
      found.push_back((at(middle + h) - at(middle - h)) / (2 * h));
      at(middle);
      expected.push_back(expected_all[i]);
    }
    INFO(what);
    CHECK(compare(found, expected, 2e-7) == "");
  }
  void check_all(bool of_input = true) {
    const Tensor dx = run_backward();
    if (of_input) check_gradient("x", x_, dx);
    std::vector<Tensor> gradients;
    for (const Parameter* parameter : parameters_) gradients.push_back(parameter->gradient);
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      check_gradient(parameters_[i]->name, parameters_[i]->value, gradients[i]);
    }
    CHECK(kept_ == layer_->stash_bytes(x_.shape(), DType::f64));
  }

  std::uint64_t kept() const { return kept_; }
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  Layer& layer() { return *layer_; }

 private:
  Engine& engine_;
  LayerPointer layer_;
  Tensor x_;
  std::vector<Parameter*> parameters_;
  Stash stash_;
  std::uint64_t kept_ = 0;
};

void check_layer(LayerPointer layer, const Shape& x) {
  Engine engine({}, "ref");
  Setting(std::move(layer), random_tensor(engine, x, 1), engine).check_all();
}

LayerPointer transformer_block(std::size_t tokens, std::size_t width, double dropout) {
  const auto mask = std::make_shared<AttentionMask>(AttentionMask::causal(tokens, tokens));
  SelfAttentionOptions options;
  options.heads = 3;
  options.deviation = options.projection_deviation = 0.2;
  options.dropout = dropout;
  options.dropout_number = 1;
  auto attention = std::make_unique<Sequence>();
  attention->emplace<LayerNorm>("norm1", width);
  attention->emplace<SelfAttention>("attention", width, mask, options);
  attention->emplace<DropoutLayer>(dropout, 2);
  LinearOptions linear;
  linear.deviation = 0.2;
  auto mlp = std::make_unique<Sequence>();
  mlp->emplace<LayerNorm>("norm2", width);
  mlp->emplace<Linear>("up", width, 4 * width, linear);
  mlp->emplace<Activate>(find_activation("gelu"));
  mlp->emplace<Linear>("down", 4 * width, width, linear);
  mlp->emplace<DropoutLayer>(dropout, 3);
  auto block = std::make_unique<Sequence>();
  block->emplace<Residual>(std::move(attention), 0);
  block->emplace<Residual>(std::move(mlp), 1);
  return block;
}

}  // namespace

TEST_CASE("gradients of linear layers", "[layers]") {
  LinearOptions options;
  options.deviation = 0.3;
  check_layer(std::make_unique<Linear>("l", 5, 7, options), {3, 4, 5});
  options.transposed = true;
  options.bias = false;
  check_layer(std::make_unique<Linear>("l", 5, 7, options), {11, 5});
}

TEST_CASE("gradients of normalisation and activation", "[layers]") {
  check_layer(std::make_unique<LayerNorm>("n", 9), {2, 3, 9});
  check_layer(std::make_unique<BatchNorm>("n", 4), {2, 3, 3, 4});
  for (const Activation& activation : activations()) {
    if (std::string(activation.name) == "relu") continue;  // has a kink, which differences may straddle
    check_layer(std::make_unique<Activate>(activation), {3, 17});
  }
  check_layer(std::make_unique<DropoutLayer>(0.3, 4), {5, 13});
}

TEST_CASE("gradients of layers of images", "[layers]") {
  Convolution::Options options;
  options.conv = {2, 1};
  options.deviation = 0.3;
  check_layer(std::make_unique<Convolution>("c", 3, 5, 3, options), {2, 7, 5, 3});
  Convolution::Options bare;
  bare.bias = false;
  check_layer(std::make_unique<MaxPool>(2), {2, 4, 6, 3});
  check_layer(std::make_unique<MaxPool>(3), {2, 4, 8, 3});  // a row and two columns are left over
  for (const std::size_t side : {3U, 16U, 17U, 31U}) check_layer(std::make_unique<MeanPool>(), {2, side, side, 5});
  check_layer(std::make_unique<Scale>(-0.75), {2, 3, 5});
  auto branch = std::make_unique<Sequence>();
  branch->emplace<Convolution>("b1", 3, 5, 3, options);
  branch->emplace<Activate>(find_activation("gelu"));
  branch->emplace<Convolution>("b2", 5, 4, 1, bare);
  Convolution::Options skip = options;
  skip.conv = {2, 0};
  check_layer(std::make_unique<Residual>(std::move(branch), 0, std::make_unique<Convolution>("s", 3, 4, 1, skip)),
              {2, 7, 5, 3});
  check_layer(std::make_unique<Upsample>(3), {2, 4, 3, 2});
  check_layer(std::make_unique<Flatten>(Shape{4, 3, 2}), {2, 4, 3, 2});
}

TEST_CASE("gradients of a transformer block, with dropout and computed again", "[layers]") {
  check_layer(transformer_block(5, 12, 0), {2, 5, 12});
  check_layer(transformer_block(5, 12, 0.2), {2, 5, 12});
  check_layer(std::make_unique<Recomputed>(transformer_block(5, 12, 0.2)), {2, 5, 12});
}

TEST_CASE("gradients of an embedding", "[layers]") {
  Engine engine({}, "ref");
  const std::vector<std::int32_t> ids = {1, 0, 4, 4, 1, 2};
  const Tensor x = engine.from(std::span<const std::int32_t>(ids), {2, 3}, Use::data);
  Setting setting(std::make_unique<Embedding>("e", 5, 4, 7, 0.5), x, engine);
  setting.check_all(false);
  CHECK_FALSE(setting.run_backward());
}

TEST_CASE("a block that is computed again gives the same bits and keeps its input alone", "[layers]") {
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    Engine engine(device_of(backend), backend);
    std::vector<std::vector<float>> results;
    std::vector<std::uint64_t> kept;
    for (const bool again : {false, true}) {
      LayerPointer block = transformer_block(37, 48, 0.1);
      if (again) block = std::make_unique<Recomputed>(std::move(block));
      const std::vector<Parameter*> parameters = parameters_of(*block);
      initialise(engine, parameters, DType::f32, 7);
      std::vector<float> values(2 * 37 * 48);
      const std::vector<double> precise = noise(values.size(), 1);
      std::copy(precise.begin(), precise.end(), values.begin());
      const Tensor x = engine.from(std::span<const float>(values), {2, 37, 48}, Use::activations);
      Stash stash;
      Pass pass{engine};
      pass.stash = &stash;
      pass.seed = 3;
      const Tensor y = block->forward(pass, x);
      kept.push_back(stash.bytes());
      CHECK(stash.bytes() == block->stash_bytes(x.shape(), DType::f32));
      std::vector<float> all = engine.to_host<float>(y);
      const std::vector<float> dx = engine.to_host<float>(block->backward(pass, x));
      all.insert(all.end(), dx.begin(), dx.end());
      for (const Parameter* parameter : parameters) {
        const std::vector<float> gradient = engine.to_host<float>(parameter->gradient);
        all.insert(all.end(), gradient.begin(), gradient.end());
      }
      results.push_back(std::move(all));
    }
    CHECK(results[0] == results[1]);
    CHECK(kept[1] == 2 * 37 * 48 * sizeof(float));
    CHECK(kept[0] > 10 * kept[1]);
  }
}

TEST_CASE("gradients in a residual branch have its block's scale, and those around it none", "[layers]") {
  Engine engine({}, "ref");
  LinearOptions options;
  options.deviation = 0.3;
  Setting setting(std::make_unique<Residual>(std::make_unique<Linear>("l", 6, 6, options), 3), random_tensor(engine, {4, 6}, 1),
                  engine);
  for (const Parameter* parameter : setting.parameters()) CHECK(parameter->block == 3);
  const std::vector<double> plain_dx = engine.to_host<double>(setting.run_backward());
  const std::vector<double> plain = engine.to_host<double>(setting.parameters()[0]->gradient);
  const BranchScales scales = {DType::f64, [](std::size_t block) { return block == 3 ? 1024.0 : 1.0; }};
  setting.branch_scales = &scales;
  CHECK(engine.to_host<double>(setting.run_backward()) == plain_dx);
  std::vector<double> gradient = engine.to_host<double>(setting.parameters()[0]->gradient);
  for (double& value : gradient) value /= 1024;
  CHECK(gradient == plain);
}

// A gradient that was cleared only by a mark must neither show what it held before nor keep the second product from adding.
TEST_CASE("the first product after clearing overwrites a gradient", "[layers]") {
  Engine engine({}, "ref");
  Linear layer("l", 3, 2);
  const std::vector<Parameter*> parameters = parameters_of(layer);
  initialise(engine, parameters, DType::f64, 1);
  Parameter& weight = *parameters[0];
  const Tensor x = random_tensor(engine, {4, 3}, 1);
  const Tensor dy = random_tensor(engine, {4, 2}, 2);
  const auto backward = [&] {
    Pass pass{engine};
    layer.apply_backward(pass, x, dy);
    return engine.to_host<double>(weight.gradient);
  };
  const std::vector<double> once = backward();  // added to the zeros of initialise()
  fill(engine, weight.gradient, std::numeric_limits<double>::quiet_NaN());
  clear_gradients(engine, parameters);
  CHECK(backward() == once);
  std::vector<double> twice = once;
  for (double& value : twice) value *= 2;
  CHECK(backward() == twice);

  clear_gradients(engine, parameters);
  settle_gradients(engine, parameters);
  CHECK(engine.to_host<double>(weight.gradient) == std::vector<double>(6, 0.0));
  CHECK(backward() == once);
}

TEST_CASE("every gradient that is ready is announced once, the last layer's first", "[layers]") {
  Engine engine({}, "ref");
  LayerPointer block = transformer_block(5, 12, 0);
  const std::vector<Parameter*> parameters = parameters_of(*block);
  initialise(engine, parameters, DType::f64, 1);
  Stash stash;
  Pass pass{engine};
  pass.stash = &stash;
  pass.is_last = true;
  std::vector<std::string> order;
  pass.on_gradient = [&](Parameter& parameter) { order.push_back(parameter.name); };
  block->backward(pass, block->forward(pass, random_tensor(engine, {1, 5, 12}, 1)));
  REQUIRE(order.size() == parameters.size());
  CHECK(order.front().starts_with("down."));
  CHECK(order.back().starts_with("norm1."));
  std::sort(order.begin(), order.end());
  CHECK(std::adjacent_find(order.begin(), order.end()) == order.end());
}

// All attentions with a cache had one causal mask, whatever their own was.
TEST_CASE("tokens passed one after the other through a cache see what the layers' own masks show", "[layers]") {
  constexpr std::size_t text = 4, grid = 3, tokens = text + grid * grid, width = 12;
  const auto row = std::make_shared<AttentionMask>(AttentionMask::row(text, grid));
  const auto column = std::make_shared<AttentionMask>(AttentionMask::column(text, grid));
  Engine engine({}, "ref");
  Sequence net;
  SelfAttentionOptions options;
  options.heads = 3;
  options.deviation = options.projection_deviation = 0.5;
  for (const auto& [name, mask] : {std::pair("a", row), {"b", column}, {"c", row}}) {
    net.emplace<SelfAttention>(name, width, mask, options);
  }
  const std::vector<Parameter*> parameters = parameters_of(net);
  initialise(engine, parameters, DType::f64, 1);
  const Tensor x = random_tensor(engine, {1, tokens, width}, 2);
  Pass pass{engine};
  pass.training = false;
  const std::vector<double> expected = engine.to_host<double>(net.forward(pass, x));
  KeyValueCache cache(1, tokens);
  pass.cache = &cache;
  std::vector<double> found;
  const Tensor rows = x.reshaped({tokens, width});
  for (const std::size_t count : {3U, 1U, 1U, 4U, 4U}) {
    cache.begin(count);
    const Tensor some = rows.slice(cache.size(), cache.size() + count).reshaped({1, count, width});
    const std::vector<double> y = engine.to_host<double>(net.forward(pass, some));
    found.insert(found.end(), y.begin(), y.end());
    cache.end();
  }
  CHECK(compare(found, expected, 1e-12) == "");
  KeyValueCache other(1, tokens + 1);
  pass.cache = &other;
  other.begin(tokens);
  CHECK(message_of(ErrorKind::usage, [&] { net.forward(pass, x); }) ==
        "cache: of 14 tokens for a mask of 13; expected as many");
}

TEST_CASE("an attention is the same in another order of its tokens", "[layers]") {
  constexpr std::size_t text = 3, grid = 4, tokens = text + grid * grid, width = 12;
  const auto mask = std::make_shared<AttentionMask>(AttentionMask::column(text, grid));
  auto order = std::make_shared<TokenOrder>();
  for (std::size_t t = 0; t < tokens; ++t) {
    const std::size_t i = t - text;
    order->tokens.push_back(static_cast<std::int32_t>(t < text ? t : text + i % grid * grid + i / grid));
  }
  const auto at = [&](std::size_t i) { return static_cast<std::size_t>(order->tokens[i]); };
  order->mask = AttentionMask(tokens, tokens, [&](std::size_t q, std::size_t k) { return mask->sees(at(q), at(k)); });
  Engine engine({}, "ref");
  SelfAttentionOptions options;
  options.heads = 3;
  options.deviation = options.projection_deviation = 0.5;
  std::vector<std::vector<double>> results[2];
  for (const bool is_ordered : {false, true}) {
    options.order = is_ordered ? order : nullptr;
    SelfAttention layer("a", width, mask, options);
    const std::vector<Parameter*> parameters = parameters_of(layer);
    initialise(engine, parameters, DType::f64, 1);
    Stash stash;
    Pass pass{engine};
    pass.stash = &stash;
    for (const std::size_t sequences : {2U, 3U}) {
      clear_gradients(engine, parameters);
      const Tensor y = layer.forward(pass, random_tensor(engine, {sequences, tokens, width}, 2));
      CHECK(stash.bytes() == layer.stash_bytes(y.shape(), DType::f64));
      const Tensor dx = layer.backward(pass, random_tensor(engine, y.shape(), 3));
      results[is_ordered].push_back(engine.to_host<double>(y));
      results[is_ordered].push_back(engine.to_host<double>(dx));
      for (const Parameter* parameter : parameters) results[is_ordered].push_back(engine.to_host<double>(parameter->gradient));
    }
  }
  REQUIRE(results[0].size() == results[1].size());
  for (std::size_t i = 0; i < results[0].size(); ++i) CHECK(compare(results[1][i], results[0][i], 1e-12) == "");
  order->tokens.pop_back();
  options.order = order;
  CHECK(message_of(ErrorKind::internal, [&] { SelfAttention("a", width, mask, options); }) ==
        "a: an order of 18 tokens, not all of them once; expected one of 19");
}

TEST_CASE("moving averages follow the statistics of a step's mini-batch, whatever its micro-batches", "[layers]") {
  Engine engine({}, "ref");
  BatchNorm norm("n", 1, {.momentum = 0.25});
  const std::vector<Parameter*> parameters = parameters_of(norm);
  initialise(engine, parameters, DType::f64, 1);
  Pass pass{engine};
  const auto show = [&](const std::vector<double>& values) {
    norm.forward(pass, engine.from(std::span<const double>(values), {values.size(), 1}, Use::activations));
  };
  show({0, 2});
  show({4, 8});
  pass.again = true;
  show({100, 200});
  std::vector<std::pair<std::string, Tensor*>> buffers;
  norm.add_buffers(engine, DType::f64, buffers);
  REQUIRE(buffers.size() == 2);
  CHECK(engine.to_host<double>(*buffers[0].second)[0] == 0);
  norm.end_step(pass, true, 1);
  const double variance = (3.5 * 3.5 + 1.5 * 1.5 + 0.5 * 0.5 + 4.5 * 4.5) / 3;  // of 0, 2, 4 and 8
  CHECK(engine.to_host<double>(*buffers[0].second)[0] == Approx(0.25 * 3.5));
  CHECK(engine.to_host<double>(*buffers[1].second)[0] == Approx(0.75 + 0.25 * variance));
  norm.end_step(pass, true, 1);  // without micro-batches nothing moves
  CHECK(engine.to_host<double>(*buffers[0].second)[0] == Approx(0.25 * 3.5));

  // Two processes that have summed.
  pass.again = false;
  BatchNorm shared("n", 1, {.momentum = 0.25}), whole("n", 1, {.momentum = 0.25});
  for (BatchNorm* each : {&shared, &whole}) {
    initialise(engine, parameters_of(*each), DType::f64, 1);
    const std::vector<double> values{0, 2, 4, 8};
    const std::size_t rows = each == &shared ? 2 : 4;
    for (std::size_t i = 0; i < 4; i += rows) {
      each->forward(pass, engine.from(std::span<const double>(values).subspan(i, rows), {rows, 1}, Use::activations));
    }
  }
  std::vector<Tensor*> sums;
  shared.add_step_sums(sums);
  REQUIRE(sums.size() == 3);
  for (Tensor* sum : sums) scale_add(engine, 2, *sum, 0, *sum);
  shared.end_step(pass, true, 2);
  whole.end_step(pass, true, 1);
  std::vector<std::pair<std::string, Tensor*>> of_shared, of_whole;
  shared.add_buffers(engine, DType::f64, of_shared);
  whole.add_buffers(engine, DType::f64, of_whole);
  CHECK(engine.to_host<double>(*of_whole[1].second)[0] == Approx(0.75 + 0.25 * variance));
  // As many values twice: the variance of eight.
  CHECK(engine.to_host<double>(*of_shared[1].second)[0] == Approx(0.75 + 0.25 * variance * 6 / 7));
}

// Squares of f32 means near 1000 have errors larger than such variances.
TEST_CASE("moving variances survive means far from 0", "[layers]") {
  Engine engine({}, "ref");
  BatchNorm norm("n", 1, {.momentum = 0.5});
  initialise(engine, parameters_of(norm), DType::f32, 1);
  Pass pass{engine};
  std::vector<std::pair<std::string, Tensor*>> buffers;
  norm.add_buffers(engine, DType::f32, buffers);
  for (int step = 0; step < 30; ++step) {
    for (const float value : {1000.0F, 1000.25F, 1000.5F}) {
      norm.forward(pass, engine.from(std::span<const float>(std::vector<float>{value, value}), {2, 1}, Use::activations));
    }
    norm.end_step(pass, true, 1);
    CHECK(engine.to_host<float>(*buffers[1].second)[0] >= 0);
  }
  CHECK(engine.to_host<float>(*buffers[1].second)[0] == Approx(0.05).epsilon(0.01));
}

// The moving variance became NaN: evaluation, steps later, failed without a reason.
TEST_CASE("batch norm of one value per channel is refused in training", "[layers]") {
  Engine engine({}, "ref");
  BatchNorm norm("layers.3", 2);
  const std::vector<Parameter*> parameters = parameters_of(norm);
  initialise(engine, parameters, DType::f64, 1);
  Pass pass{engine};
  const Tensor one = random_tensor(engine, {1, 1, 1, 2}, 1);
  CHECK(message_of(ErrorKind::usage, [&] { norm.forward(pass, one); }) ==
        "layers.3: x (1, 1, 1, 2), one value per channel, has no variance; expected larger maps or a larger micro-batch");
  CHECK_NOTHROW(norm.forward(pass, random_tensor(engine, {2, 1, 1, 2}, 1)));
  pass.training = false;
  CHECK_NOTHROW(norm.forward(pass, one));
}

TEST_CASE("layers name what they cannot take", "[layers]") {
  Engine engine({}, "ref");
  Pass pass{engine};
  Linear linear("blocks.0.up", 5, 7);
  const std::vector<Parameter*> parameters = parameters_of(linear);
  initialise(engine, parameters, DType::f64, 1);
  CHECK(message_of(ErrorKind::usage, [&] {
          linear.forward(pass, engine.zeros({3, 4}, DType::f64, Use::data));
        }) == "blocks.0.up: x (3, 4); expected rows of 5");
  CHECK(message_of(ErrorKind::usage, [&] {
          MaxPool(2).output({1, 4, 1, 3});
        }) == "max_pool: x (1, 4, 1, 3); expected maps whose sides are at least 2");
  const auto mask = std::make_shared<AttentionMask>(AttentionMask::causal(4, 4));
  SelfAttentionOptions options;
  options.heads = 5;
  CHECK(message_of(ErrorKind::usage, [&] { SelfAttention("a", 12, mask, options); }) ==
        "a: 5 heads; expected a divisor of the width, 12");
}

}  // namespace bitloom::nn
