// Stochastic gradient descent with Nesterov momentum, RMSProp, lookahead, and averages that begin with given values.
#include <cmath>
#include <vector>

#include "core/random.h"
#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "tests/train/norm_of.h"
#include "tests/train/spiral_training.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

constexpr std::size_t size = 6;

// Parameters with gradients that tests write: a matrix, a vector that does not decay, a fast one, a frozen one.
struct Parameters {
  Parameters() {
    const auto add = [&](const char* name, bool decays, double rate, bool is_frozen) {
      nn::Parameter parameter;
      parameter.name = name;
      parameter.shape = {size};
      parameter.decays = decays;
      parameter.rate = rate;
      parameter.is_frozen = is_frozen;
      parameter.deviation = 1;
      owned.push_back(parameter);
    };
    add("matrix", true, 1, false);
    add("vector", false, 1, false);
    add("fast", true, 64, false);
    add("frozen", true, 1, true);
    for (nn::Parameter& each : owned) all.push_back(&each);
    nn::initialise(engine, all, DType::f64, 3);
    buffer = engine.zeros({size}, DType::f64, nn::Use::parameters);
    set(buffer, noise(100));
  }

  static std::vector<double> noise(std::uint64_t number) {
    Random random(9, Stream::test, number);
    std::vector<double> values(size);
    for (double& value : values) value = random.normal();
    return values;
  }
  void set(nn::Tensor& tensor, const std::vector<double>& values) { engine.write(tensor, std::as_bytes(std::span(values))); }
  std::vector<double> values(std::size_t i) { return engine.to_host<double>(owned[i].value); }
  // Writes the gradients of step `step`, counted from 0, and gives that of parameter i as a function.
  static std::vector<double> gradient(std::size_t i, int step) { return noise(10 * static_cast<std::uint64_t>(step) + i); }
  void write_gradients(int step) {
    for (std::size_t i = 0; i < owned.size(); ++i) {
      if (!owned[i].is_frozen) set(owned[i].gradient, gradient(i, step));
    }
  }

  nn::Engine engine{nn::Device{}, "ref"};
  std::vector<nn::Parameter> owned;
  std::vector<nn::Parameter*> all;
  nn::Tensor buffer;
};

OptimizerOptions sgd() {
  OptimizerOptions options;
  options.rule = "sgd";
  options.momentum = 0.85;
  options.decay = 0.03;
  return options;
}

double rate_of(int step) { return 0.1 + 0.05 * step; }
constexpr double peak = 0.4;

// SGD as PyTorch documents it, with its weight decay of decay / peak rate.
struct PlainSgd {
  std::vector<double> value, velocity = std::vector<double>(size);
  bool decays = true;
  double factor = 1;

  void step(const std::vector<double>& gradient, double rate, double scale) {
    const double decay = decays ? 0.03 / (peak * factor) : 0;
    for (std::size_t i = 0; i < size; ++i) {
      const double g = scale * gradient[i] + decay * value[i];
      velocity[i] = 0.85 * velocity[i] + g;
      value[i] -= rate * factor * (g + 0.85 * velocity[i]);
    }
  }
};

OptimizerOptions rmsprop() {
  OptimizerOptions options;
  options.rule = "rmsprop";
  options.beta2 = 0.9;
  options.epsilon = 1e-3;
  options.decay = 0.03;
  return options;
}

// RMSProp as PyTorch documents it, with the weight decay of AdamW.
struct PlainRmsProp {
  std::vector<double> value, square = std::vector<double>(size);
  bool decays = true;

  void step(const std::vector<double>& gradient, double rate, double scale) {
    for (std::size_t i = 0; i < size; ++i) {
      const double g = scale * gradient[i];
      square[i] = 0.9 * square[i] + 0.1 * g * g;
      value[i] -= rate * (g / (std::sqrt(square[i]) + 1e-3) + (decays ? 0.03 * value[i] : 0));
    }
  }
};

}  // namespace

TEST_CASE("steps of SGD equal Nesterov momentum and decay written out", "[train]") {
  Parameters parameters;
  OptimizerOptions options = sgd();
  options.clip = 2;
  Optimizer optimizer(parameters.engine, parameters.all, options);
  std::vector<PlainSgd> plain(3);
  for (std::size_t i = 0; i < 3; ++i) {
    plain[i].value = parameters.values(i);
    plain[i].decays = parameters.owned[i].decays;
    plain[i].factor = parameters.owned[i].rate;
  }
  const std::vector<double> frozen = parameters.values(3);
  for (int step = 0; step < 7; ++step) {
    parameters.write_gradients(step);
    const double norm = test::norm_of(parameters.engine, parameters.all, 0.5);
    double squares = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      for (const double g : Parameters::gradient(i, step)) squares += 0.25 * g * g;
    }
    CHECK(norm == Approx(std::sqrt(squares)).epsilon(1e-12));
    const double rate = rate_of(step);
    optimizer.step(rate, rate / peak, 0.5, norm);
    for (std::size_t i = 0; i < 3; ++i) {
      plain[i].step(Parameters::gradient(i, step), rate, 0.5 * std::min(1.0, 2 / norm));
      INFO(parameters.owned[i].name << ", step " << step);
      CHECK(compare(parameters.values(i), plain[i].value, 1e-11) == "");
    }
    CHECK(parameters.values(3) == frozen);
  }
}

TEST_CASE("steps of RMSProp equal its equations written out", "[train]") {
  Parameters parameters;
  parameters.owned[2].rate = 1;
  OptimizerOptions options = rmsprop();
  options.clip = 2;
  Optimizer optimizer(parameters.engine, parameters.all, options);
  std::vector<PlainRmsProp> plain(3);
  for (std::size_t i = 0; i < 3; ++i) {
    plain[i].value = parameters.values(i);
    plain[i].decays = parameters.owned[i].decays;
  }
  const std::vector<double> frozen = parameters.values(3);
  for (int step = 0; step < 7; ++step) {
    parameters.write_gradients(step);
    const double norm = test::norm_of(parameters.engine, parameters.all, 0.5);
    optimizer.step(rate_of(step), rate_of(step) / peak, 0.5, norm);
    for (std::size_t i = 0; i < 3; ++i) {
      plain[i].step(Parameters::gradient(i, step), rate_of(step), 0.5 * std::min(1.0, 2 / norm));
      INFO(parameters.owned[i].name << ", step " << step);
      CHECK(compare(parameters.values(i), plain[i].value, 1e-11) == "");
    }
    CHECK(parameters.values(3) == frozen);
  }
  // One moment, the mean of squares: with value and gradient 12 bytes per parameter in f32.
  std::vector<StateTensor> state;
  optimizer.add_state(state);
  REQUIRE(state.size() == 3);
  CHECK(state[1].name == "optimizer.square.vector");
  CHECK(compare(parameters.engine.to_host<double>(*state[1].tensor), plain[1].square, 1e-11) == "");
  CHECK(find_update_rule("rmsprop").moments == 1);
}

TEST_CASE("RMSProp in f32 is that in double precision, and goes on to the same bits", "[train]") {
  for (const std::string& backend : test::tested_backends()) {
    for (const auto& [values, masters] :
         {std::pair(DType::f32, nn::MasterWeights::f32), std::pair(DType::bf16, nn::MasterWeights::f32),
          std::pair(DType::bf16, nn::MasterWeights::none)}) {
      INFO(backend << " " << dtype_name(values) << ", masters " << (masters == nn::MasterWeights::f32));
      TrainOptions options;
      options.values = values;
      options.master_weights = masters;
      options.micro_batches = 2;
      options.rate = {0.01, 5, 15, 0.001, {}, 0, false};
      options.optimizer = rmsprop();
      // The seed is that of the rounding of values without masters, too.
      const std::vector<double> losses = test::check_that_it_goes_on(options, backend, 1, "optimizer.square.first.weight");
      if (values != DType::f32) continue;
      options.values = DType::f64;
      test::SpiralTraining exact(options, "ref");
      for (int i = 0; i < 20; ++i)
        CHECK(exact.trainer.step().loss == Approx(losses[static_cast<std::size_t>(i)]).epsilon(1e-4));
    }
  }
}

TEST_CASE("a step at the learning rate 0 moves nothing", "[train]") {
  for (const OptimizerOptions& options : {sgd(), rmsprop()}) {
    Parameters parameters;
    parameters.owned[2].rate = 1;
    Optimizer optimizer(parameters.engine, parameters.all, options);
    const std::vector<double> before = parameters.values(0);
    parameters.write_gradients(0);
    optimizer.step(0, 0, 1, test::norm_of(parameters.engine, parameters.all, 1));
    CHECK(parameters.values(0) == before);
    CHECK(optimizer.steps(0) == 1);
  }
}

TEST_CASE("lookahead equals slow weights written out, buffers and the last step included", "[train]") {
  constexpr int steps = 8;  // no multiple of 3
  for (const bool looks : {false, true}) {
    Parameters parameters;
    OptimizerOptions options = sgd();
    options.lookahead = looks ? 3 : 0;
    options.lookahead_steps = steps;
    Optimizer optimizer(parameters.engine, parameters.all, options, 1, {{"buffer", &parameters.buffer}});
    PlainSgd plain;
    plain.value = parameters.values(0);
    std::vector<double> slow = plain.value;
    std::vector<double> slow_buffer = parameters.engine.to_host<double>(parameters.buffer);
    for (int step = 1; step <= steps; ++step) {
      parameters.write_gradients(step);
      // The buffer moves by what the net does.
      std::vector<double> buffer = parameters.engine.to_host<double>(parameters.buffer);
      for (double& value : buffer) value += 0.5 * step;
      parameters.set(parameters.buffer, buffer);
      // The last one is skipped, as where its gradients are not finite.
      if (step != steps) {
        optimizer.step(rate_of(step), rate_of(step) / peak, 1, test::norm_of(parameters.engine, parameters.all, 1));
        plain.step(Parameters::gradient(0, step), rate_of(step), 1);
      }
      CHECK(optimizer.look_ahead(static_cast<std::uint64_t>(step)) == (looks && (step % 3 == 0 || step == steps)));
      if (looks && (step % 3 == 0 || step == steps)) {
        // Jordan 2024: decay 0.95^5 (step / steps)^3, and 1 at the end.
        const double keeps = step == steps ? 1 : std::pow(0.95, 5) * std::pow(step / static_cast<double>(steps), 3);
        for (std::size_t i = 0; i < size; ++i) {
          slow[i] += (1 - keeps) * (plain.value[i] - slow[i]);
          plain.value[i] = slow[i];
          slow_buffer[i] += (1 - keeps) * (buffer[i] - slow_buffer[i]);
          buffer[i] = slow_buffer[i];
        }
      }
      INFO("step " << step);
      CHECK(compare(parameters.values(0), plain.value, 1e-11) == "");
      CHECK(compare(parameters.engine.to_host<double>(parameters.buffer), buffer, 1e-11) == "");
      CHECK(parameters.engine.to_host<double>(parameters.owned[0].read()) == parameters.values(0));
    }
    std::vector<StateTensor> state;
    optimizer.add_state(state);
    const auto find = [&](const std::string& name) { return std::ranges::find(state, name, &StateTensor::name); };
    CHECK((find(slow_name("matrix")) != state.end()) == looks);
    CHECK((find(slow_name("buffer")) != state.end()) == looks);
    CHECK(find(slow_name("frozen")) == state.end());
    if (looks) {
      const std::vector<double> kept = parameters.engine.to_host<double>(*find(slow_name("matrix"))->tensor);
      CHECK(compare(std::span<const double>(kept), std::span<const double>(slow), 1e-11) == "");
    }
  }
}

TEST_CASE("a run of SGD and lookahead that goes on is the run that never stopped, bit by bit", "[train]") {
  for (const std::string& backend : test::tested_backends()) {
    for (const DType values : {DType::f32, DType::bf16}) {
      INFO(backend << " " << dtype_name(values));
      TrainOptions options;
      options.values = values;
      options.micro_batches = 2;
      options.rate = {0.2, 5, 15, 0.02, {}, 0.05, true};
      options.optimizer = sgd();
      options.optimizer.decay = 1e-3;
      options.optimizer.lookahead = 3;
      options.optimizer.lookahead_steps = 20;
      // 10 is no multiple of 3: fast and slow weights differ.
      test::check_that_it_goes_on(options, backend, 2, "optimizer.velocity.first.weight");
    }
  }
}

// With --init the average began at the random initial values, which it kept for hundreds of steps.
TEST_CASE("averages and slow weights begin with the values that a training is given", "[train]") {
  for (const bool looks : {false, true}) {
    TrainOptions options;
    options.optimizer.average = looks ? 0 : 0.9;
    options.optimizer.lookahead = looks ? 2 : 0;
    options.optimizer.lookahead_steps = 1000;
    test::SpiralTraining run(options, "cpu");
    std::vector<std::pair<std::string, nn::Tensor*>> buffers;
    run.task.net().add_buffers(run.engine, DType::f32, buffers);
    REQUIRE(buffers.size() == 2);
    TensorFile given;
    const auto give = [&](const std::string& name, const nn::Shape& shape) {
      given.put(name, {shape.lengths().begin(), shape.lengths().end()}, std::vector<float>(shape.size(), 0.25F));
    };
    for (const nn::Parameter* parameter : run.trainer.parameters()) give(parameter->name, parameter->shape);
    for (const auto& [name, tensor] : buffers) give(name, tensor->shape());
    run.trainer.load_model(&given);
    std::size_t others = 0;
    const TensorFile file = test::saved(run.trainer);
    for (const auto& [name, tensor] : file.tensors) {
      if (!name.starts_with("optimizer.average.") && !name.starts_with("optimizer.slow.")) continue;
      INFO(name);
      ++others;
      for (const float value : tensor.as<float>()) CHECK(value == 0.25F);
    }
    CHECK(others == run.trainer.parameters().size() + buffers.size());
    run.trainer.averaged([&] {
      for (const double value : run.values()) CHECK(value == 0.25);
    });
    for (const nn::Parameter* parameter : run.trainer.parameters()) {
      CHECK(run.engine.to_host<float>(parameter->read()) == run.engine.to_host<float>(parameter->value));
    }
  }
}

TEST_CASE("what SGD and lookahead cannot take is named", "[train]") {
  Parameters parameters;
  const auto message = [&](const std::function<void(OptimizerOptions&)>& change) {
    OptimizerOptions options = sgd();
    change(options);
    return message_of(ErrorKind::usage, [&] { Optimizer(parameters.engine, parameters.all, options); });
  };
  CHECK(message([](OptimizerOptions&) {}) == "no error");
  CHECK(has(message([](OptimizerOptions& o) { o.rule = "sdg"; }), "`optimizer`: 'sdg'; did you mean 'sgd'?"));
  CHECK(has(message([](OptimizerOptions& o) { o.momentum = 1; }), "`momentum`: 1"));
  CHECK(has(message([](OptimizerOptions& o) { o.lookahead_keeps = 1; }), "lookahead_keeps: 1; expected 0 up to 1"));
  CHECK(has(message([](OptimizerOptions& o) { o.decay = -1; }), "`weight_decay`: -1"));
  CHECK(
      has(message([](OptimizerOptions& o) { o.variance_limit = 5; }), "`variance_limit`: 5; expected 0 with `optimizer` sgd"));
  CHECK(has(message([](OptimizerOptions& o) { o.variance_limit = -5; }), "`variance_limit`: -5; expected 0 or more"));
  CHECK(has(message([](OptimizerOptions& o) { o.narrow_moments = true; }),
            "`optimizer_state`: 16-bit with `optimizer` sgd; expected `optimizer` adamw"));
  CHECK(has(message([](OptimizerOptions& o) { o.average = 0.9, o.lookahead = 5; }),
            "`average`: 0.9; expected 0 with `lookahead` 5"));
  CHECK(has(message([](OptimizerOptions& o) { o.rule = "adamw"; }),
            "`optimizer`: adamw; 'fast' has a learning rate of its own; expected sgd"));
  CHECK(has(message([](OptimizerOptions& o) { o.rule = "rmsprop"; }),
            "`optimizer`: rmsprop; 'fast' has a learning rate of its own; expected sgd"));
  TrainOptions options;
  options.values = DType::bf16;
  options.master_weights = nn::MasterWeights::none;
  options.optimizer = sgd();
  CHECK(has(message_of(ErrorKind::usage, [&] { test::SpiralTraining(options, "cpu"); }),
            "`master_weights`: none; expected f32 with `optimizer` sgd"));
}
