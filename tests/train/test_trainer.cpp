// The float trainer: what a step does, what it refuses, and that a run that goes on is the run that never stopped.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "tests/train/norm_of.h"
#include "tests/train/spirals.h"
#include "train/memory.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::compare;
using bitloom::test::device_of;
using bitloom::test::has;
using bitloom::test::message_of;
using bitloom::test::SpiralOptions;
using bitloom::test::tested_backends;

namespace {

// A trainer with what it needs.
template <typename T = double>
struct SpiralRun {
  SpiralRun(const TrainOptions& options, const SpiralOptions& spirals, const std::string& backend = "ref")
      : engine(device_of(backend), backend),
        task(test::spiral_net(spirals), {spirals.examples, 2}, test::spirals<T>(engine, spirals, options.values)),
        trainer(engine, task, options) {}

  std::vector<double> values() { return test::all_of(engine, trainer.parameters(), &nn::Parameter::value); }

  nn::Engine engine;
  Classification task;
  Trainer trainer;
};

TrainOptions options_of(DType values) {
  TrainOptions options;
  options.values = values;
  options.rate.peak = 0.01;
  return options;
}

}  // namespace

TEST_CASE("a net learns spirals, on every backend and in every type", "[train]") {
  for (const std::string& backend : tested_backends()) {
    for (const DType values : {DType::f32, DType::bf16}) {
      INFO(backend << " " << dtype_name(values));
      TrainOptions options = options_of(values);
      options.rate.warmup = 5;
      SpiralOptions spirals;
      spirals.examples = 64;
      SpiralRun<float> run(options, spirals, backend);
      const double first = run.trainer.step().loss;
      for (int i = 0; i < 150; ++i) run.trainer.step();
      const Loss loss = run.trainer.evaluate(1000, 0, 4);
      CHECK(first > 0.9);
      CHECK(loss.sum / static_cast<double>(loss.count) < 0.5);
      CHECK(loss.count == 4 * 64);
    }
  }
}

TEST_CASE("losses of any number of micro-batches are summed once each", "[train]") {
  nn::Engine engine({}, "ref");
  LossSum sum(engine);
  double expected = 0;
  for (int i = 0; i < 35; ++i) {
    const std::vector<float> losses = {static_cast<float>(i), 0.25F};
    sum.add({engine.from(std::span<const float>(losses), {2}, nn::Use::activations), 2});
    expected += i + 0.25;
    if (i == 20) CHECK(sum.total().sum == expected);
  }
  CHECK(sum.total().sum == expected);
  CHECK(sum.total().count == 70);
}

TEST_CASE("micro-batches add up to the batch", "[train]") {
  TrainOptions whole = options_of(DType::f64);
  SpiralOptions spirals;
  spirals.examples = 24;
  SpiralRun<> one(whole, spirals);
  TrainOptions parts = whole;
  parts.micro_batches = spirals.per_step = 4;
  spirals.examples = 6;
  SpiralRun<> four(parts, spirals);
  for (int i = 0; i < 5; ++i) {
    const StepReport a = one.trainer.step();
    const StepReport b = four.trainer.step();
    CHECK(a.loss == Approx(b.loss).epsilon(1e-12));
    CHECK(a.targets == b.targets);
    CHECK(b.stash_bytes * 4 == a.stash_bytes);
  }
  CHECK(compare(four.values(), one.values(), 1e-9) == "");
}

TEST_CASE("every pass of a micro-batch is a sign of life", "[train]") {
  TrainOptions options = options_of(DType::f32);
  options.micro_batches = 3;
  SpiralRun<float> run(options, {}, "cpu");
  int signs = 0;
  run.trainer.on_micro_batch([&] { ++signs; });
  run.trainer.step();
  CHECK(signs == 6);
  run.trainer.evaluate(0, 0, 2);
  CHECK(signs == 8);
  run.trainer.on_micro_batch(nullptr);
  run.trainer.step();
  CHECK(signs == 8);
}

// Under a limit that some elements of the variance reach and others do not: it is cut off before it moves anything.
TEST_CASE("ten steps equal AdamW written out", "[train]") {
  const double variance_limit = GENERATE(0, 2e-4);
  CAPTURE(variance_limit);
  TrainOptions options = options_of(DType::f64);
  options.rate = {0.02, 3, 6, 0.001, {8}};
  options.optimizer = {0.9, 0.99, 1e-8, 0.1, 0.5, 0, 1};
  options.optimizer.variance_limit = variance_limit;
  SpiralOptions spirals;
  SpiralRun<> run(options, spirals);
  std::vector<double> expected = run.values();
  std::vector<double> m(expected.size());
  std::vector<double> v(expected.size());
  bool clipped = false;
  std::size_t cut_off = 0;
  for (int t = 1; t <= 10; ++t) {
    const StepReport report = run.trainer.step();
    std::vector<double> gradient;
    std::vector<bool> decays;
    for (const nn::Parameter* parameter : run.trainer.parameters()) {
      const std::vector<double> each = run.engine.to_host<double>(parameter->gradient);
      gradient.insert(gradient.end(), each.begin(), each.end());
      decays.insert(decays.end(), each.size(), parameter->shape.axes() > 1);
    }
    double norm = 0;
    for (const double g : gradient) norm += g * g;
    norm = std::sqrt(norm);
    CHECK(report.gradient_norm == Approx(norm).epsilon(1e-12));
    clipped |= norm > 0.5;
    double rate =
        t <= 3 ? 0.02 * t / 4 : 0.001 + (0.02 - 0.001) * 0.5 * (1 + std::cos(std::acos(-1.0) * std::min(1.0, (t - 4) / 6.0)));
    if (t > 8) rate /= 2;
    CHECK(report.rate == Approx(rate).epsilon(1e-9));
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const double g = gradient[i] * std::min(1.0, 0.5 / norm);
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.99 * v[i] + 0.01 * g * g;
      if (variance_limit > 0 && v[i] > variance_limit) {
        v[i] = variance_limit;
        ++cut_off;
      }
      const double step = m[i] / (1 - std::pow(0.9, t)) / (std::sqrt(v[i] / (1 - std::pow(0.99, t))) + 1e-8);
      expected[i] -= rate * (step + (decays[i] ? 0.1 * expected[i] : 0));
    }
    CHECK(compare(run.values(), expected, 1e-9) == "");
  }
  CHECK(clipped);
  CHECK((cut_off > 0) == (variance_limit > 0));
  CHECK(cut_off < 10 * expected.size());
}

TEST_CASE("a run that goes on from a checkpoint is the run that never stopped, bit by bit", "[train]") {
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    TrainOptions options = options_of(DType::bf16);
    options.micro_batches = 2;
    options.rate = {0.01, 5, 15, 0, {}};
    options.optimizer.average = 0.9;
    options.optimizer.average_every = 3;
    SpiralOptions spirals;
    spirals.per_step = 2;
    spirals.dropout = 0.2;
    spirals.batch_norm = true;
    SpiralRun<float> whole(options, spirals, backend);
    std::vector<double> losses;
    for (int i = 0; i < 20; ++i) losses.push_back(whole.trainer.step().loss);
    SpiralRun<float> first(options, spirals, backend);
    for (int i = 0; i < 10; ++i) first.trainer.step();
    const TensorFile file = test::saved(first.trainer);
    SpiralRun<float> second(options, spirals, backend);
    second.trainer.step();  // whatever it has is replaced
    test::load(second.trainer, TensorFile::parse(file.serialize(), "memory"));
    CHECK(second.trainer.steps() == 10);
    for (int i = 10; i < 20; ++i) CHECK(second.trainer.step().loss == losses[static_cast<std::size_t>(i)]);
    CHECK(second.values() == whole.values());
    CHECK(second.trainer.evaluate(100, 0, 1).sum == whole.trainer.evaluate(100, 0, 1).sum);
    CHECK(whole.trainer.evaluate(100, 0, 1).sum != losses.back());
  }
}

// Workers of local steps dropped the same elements of their examples, all in the same step.
TEST_CASE("a seed of their own for what passes draw changes dropout and nothing else", "[train]") {
  for (const double dropout : {0.2, 0.0}) {
    TrainOptions options = options_of(DType::f32);
    SpiralOptions spirals;
    spirals.dropout = dropout;
    SpiralRun<float> one(options, spirals, "cpu");
    options.draw_seed = options.seed + 1;
    SpiralRun<float> other(options, spirals, "cpu");
    CHECK(one.values() == other.values());
    CHECK((one.trainer.step().loss == other.trainer.step().loss) == (dropout == 0));
  }
}

TEST_CASE("without masters a run goes on bit by bit, learns as well, and has matrices of blocks in bf16 alone", "[train]") {
  for (const std::string& backend : tested_backends()) {
    INFO(backend);
    TrainOptions options = options_of(DType::bf16);
    options.rate = {0.01, 5, 15, 0, {}};
    options.optimizer.clip = 1;
    SpiralRun<float> masters(options, {}, backend);
    options.master_weights = nn::MasterWeights::none;
    SpiralRun<float> whole(options, {}, backend);
    SpiralRun<float> first(options, {}, backend);
    options.seed = 2;
    SpiralRun<float> other(options, {}, backend);
    options.seed = 1;
    const auto steps = [](SpiralRun<float>& run, int count) {
      double sum = 0;
      for (int i = 0; i < count; ++i) sum += run.trainer.step().loss;
      return sum / count;
    };
    for (const nn::Parameter* parameter : whole.trainer.parameters()) {
      CHECK(parameter->value.dtype() == (parameter->is_block_matrix() ? DType::bf16 : DType::f32));
      CHECK((parameter->copy.data() == parameter->value.data()) == (parameter->is_block_matrix() || !parameter->reads_values));
      CHECK(parameter->gradient.dtype() == DType::f32);
    }
    const double with = steps(masters, 100);
    CHECK(steps(whole, 100) == Approx(with).epsilon(0.05));
    steps(first, 40);
    const TensorFile file = test::saved(first.trainer);
    SpiralRun<float> second(options, {}, backend);
    steps(second, 1);  // whatever it has is replaced
    test::load(second.trainer, TensorFile::parse(file.serialize(), "memory"));
    steps(second, 60);
    CHECK(second.values() == whole.values());
    // Checkpoints had what is in no block in bf16.
    TensorFile before = TensorFile::parse(file.serialize(), "memory");
    const std::span<const float> wide = before.get("first.weight").as<float>();
    std::vector<bf16> narrow;
    std::vector<double> rounded;
    for (const float each : wide) {
      narrow.push_back(to_bf16(each));
      rounded.push_back(static_cast<double>(to_float(narrow.back())));
    }
    before.put("first.weight", before.get("first.weight").shape, narrow);
    test::load(second.trainer, before);
    CHECK(test::all_of(second.engine, {second.trainer.parameters().front()}, &nn::Parameter::value) == rounded);
    steps(other, 100);
    CHECK(other.values() != whole.values());
  }
}

TEST_CASE("a checkpoint of another net is refused by name", "[train]") {
  SpiralRun<> run(options_of(DType::f64), {});
  TensorFile file = test::saved(run.trainer);
  file.tensors.erase("branch.bias");
  CHECK(has(message_of(ErrorKind::data, [&] { test::load(run.trainer, file); }), "branch.bias"));
  file.put("branch.bias", {3}, std::vector<double>(3));
  CHECK(has(message_of(ErrorKind::data, [&] { test::load(run.trainer, file); }), "branch.bias"));
}

TEST_CASE("a gradient that is no number names the step and the tensor", "[train]") {
  TrainOptions options = options_of(DType::f64);
  SpiralOptions spirals;
  nn::Engine engine({}, "ref");
  const Classification::Source good = test::spirals<double>(engine, spirals, DType::f64);
  const auto bad = [&](std::uint64_t step, std::uint64_t micro_batch) {
    Classification::Batch batch = good(step, micro_batch);
    if (step == 3) nn::fill(engine, batch.x, std::numeric_limits<double>::infinity());
    return batch;
  };
  Classification task(test::spiral_net(spirals), {spirals.examples, 2}, bad);
  Trainer trainer(engine, task, options);
  for (int i = 0; i < 3; ++i) trainer.step();
  const std::string message = message_of(ErrorKind::data, [&] { trainer.step(); });
  CHECK(has(message, "step 3: the gradient of 'first.weight' is not finite"));
}

TEST_CASE("the loss scale falls where f16 overflows, skips that step and leaves everything as it was", "[train]") {
  TrainOptions options = options_of(DType::f16);
  options.loss_scale = LossScaleOptions{std::ldexp(1, 29), 3, std::ldexp(1, 29)};
  SpiralRun<float> run(options, {});
  const std::vector<double> before = run.values();
  double expected = options.loss_scale->first;
  int clean = 0;
  int skipped = 0;
  int doubled = 0;
  for (int i = 0; i < 40; ++i) {
    const StepReport report = run.trainer.step();
    REQUIRE(report.loss_scale == expected);
    if (report.skipped) {
      expected /= 2;
      clean = 0;
      ++skipped;
    } else if (++clean == 3) {
      expected *= 2;
      clean = 0;
      ++doubled;
    }
    if (skipped == i + 1) CHECK(run.values() == before);
  }
  CHECK(skipped > 3);
  CHECK(doubled > 3);
  CHECK(run.values() != before);
  // The moments of skipped steps were never touched: bias correction counts steps that were made.
  const TensorFile file = test::saved(run.trainer);
  const auto steps = file.get("optimizer.steps").as<std::uint64_t>();
  CHECK(steps.front() + static_cast<std::uint64_t>(skipped) == run.trainer.steps());
}

// The moving averages of batch norm followed the statistics of a step before it was known whether the step counts.
TEST_CASE("a step that is skipped leaves moving averages as they were", "[train]") {
  TrainOptions options = options_of(DType::f16);
  options.loss_scale = LossScaleOptions{std::ldexp(1, 29), 3, std::ldexp(1, 29)};
  SpiralOptions spirals;
  spirals.batch_norm = true;
  SpiralRun<float> run(options, spirals);
  const auto moving_mean = [&] {
    const TensorFile file = test::saved(run.trainer);
    const auto mean = file.get("norm.moving_mean").as<float>();
    return std::vector<float>(mean.begin(), mean.end());
  };
  std::vector<float> before = moving_mean();
  int skipped = 0;
  for (int i = 0; i < 30; ++i) {
    const bool is_skipped = run.trainer.step().skipped;
    const std::vector<float> after = moving_mean();
    CHECK((after == before) == is_skipped);
    before = after;
    skipped += is_skipped ? 1 : 0;
  }
  CHECK(skipped > 3);
  CHECK(skipped < 30);
}

TEST_CASE("a residual block may be left out of a step", "[train]") {
  SpiralOptions spirals;
  nn::Engine engine({}, "ref");
  Classification task(test::spiral_net(spirals), {spirals.examples, 2}, test::spirals<double>(engine, spirals, DType::f64));
  const std::vector<nn::Parameter*> parameters = nn::parameters_of(task.net());
  nn::initialise(engine, parameters, DType::f64, 1);
  Optimizer optimizer(engine, parameters, {});
  for (nn::Parameter* parameter : parameters) nn::fill(engine, parameter->gradient, 1);
  std::vector<std::vector<double>> before;
  for (const nn::Parameter* parameter : parameters) before.push_back(engine.to_host<double>(parameter->value));
  optimizer.step(0.1, 1, 1, test::norm_of(engine, parameters, 1),
                 [](std::optional<std::size_t> block) { return block == 0U ? std::nullopt : std::optional(1.0); });
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    INFO(parameters[i]->name);
    CHECK((engine.to_host<double>(parameters[i]->value) == before[i]) == (parameters[i]->block == 0U));
    CHECK(optimizer.steps(i) == (parameters[i]->block == 0U ? 0 : 1));
  }
}

TEST_CASE("memory is counted by what it is for, and was predicted", "[train]") {
  for (const auto& [again, masters] : {std::pair(false, nn::MasterWeights::f32), std::pair(true, nn::MasterWeights::f32),
                                       std::pair(false, nn::MasterWeights::none)}) {
    const bool narrow_moments = GENERATE(false, true);
    CAPTURE(again, narrow_moments);
    TrainOptions options = options_of(DType::bf16);
    options.optimizer.average = again ? 0.9 : 0;
    options.optimizer.narrow_moments = narrow_moments;
    options.master_weights = masters;
    SpiralOptions spirals;
    spirals.examples = 100;
    spirals.batch_norm = true;
    nn::Engine engine({}, "ref");
    std::unique_ptr<nn::Sequence> net = test::spiral_net(spirals);
    if (again) {
      auto both = std::make_unique<nn::Sequence>();
      both->emplace<nn::Recomputed>(std::move(net));
      both->emplace<nn::Linear>("after", 3, 3);
      net = std::move(both);
    }
    Classification task(std::move(net), {spirals.examples, 2}, test::spirals<float>(engine, spirals, DType::bf16));
    const MemoryNeeds needs = predict_memory(task.net(), {100, 2}, options);
    Trainer trainer(engine, task, options);
    engine.pool().reset_peaks();
    trainer.step();
    const nn::Pool& pool = engine.pool();
    const std::uint64_t averages = 5 * sizeof(float) * 24;  // and sums of batch norm, which are no parameters
    CHECK(pool.count(nn::Use::parameters).peak == needs.parameters + averages);
    CHECK(pool.count(nn::Use::gradients).peak == needs.gradients);
    const std::uint64_t averaged = again ? 2 * sizeof(float) * 24 : 0;  // moving statistics, which have averages too
    CHECK(pool.count(nn::Use::optimizer).peak == needs.optimizer + averaged);
    CHECK(pool.count(nn::Use::stash).peak == needs.stash);
    CHECK(pool.count(nn::Use::stash).now == 0);
    CHECK(needs.stash > 100 * 24 * 2 * 3);
  }
}

TEST_CASE("options that make no sense are named", "[train]") {
  const auto message = [](const std::function<void(TrainOptions&)>& change) {
    TrainOptions options;
    change(options);
    return message_of(ErrorKind::usage, [&] { check(options); });
  };
  CHECK(has(message([](TrainOptions& o) { o.micro_batches = 0; }), "micro_batches: 0"));
  CHECK(has(message([](TrainOptions& o) { o.rate.peak = -1; }), "`learning_rate`: -1"));
  CHECK(has(message([](TrainOptions& o) { o.rate.floor = 1; }), "floor of the learning rate: 1"));
  CHECK(has(message([](TrainOptions& o) { o.rate.halvings = {5, 3}; }), "halvings of the learning rate"));
  CHECK(has(message([](TrainOptions& o) { o.optimizer.beta2 = 1; }), "`beta2`: 1"));
  CHECK(has(message([](TrainOptions& o) { o.optimizer.epsilon = 0; }), "epsilon: 0"));
  CHECK(has(message([](TrainOptions& o) { o.optimizer.clip = std::nan(""); }), "`clip`: nan"));
  CHECK(has(message([](TrainOptions& o) { o.master_weights = nn::MasterWeights::none; }),
            "`master_weights`: none with `dtype` f32; expected `dtype` bf16"));
  CHECK(has(message([](TrainOptions& o) {
              o.master_weights = nn::MasterWeights::none;
              o.values = DType::bf16;
              o.optimizer.average = 0.9;
            }),
            "`master_weights`: none with `average` 0.9"));
  CHECK(has(message([](TrainOptions& o) { o.loss_scale = LossScaleOptions{0.5, 1, 1}; }), "loss_scale: 0.5"));
}
