// Moving averages of parameters and moving statistics: their decay, which rises, and that they show the net of now early on.
#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "tests/train/spirals.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::compare;

namespace {

struct Run {
  explicit Run(double average, std::uint64_t every = 1, bool batch_norm = false)
      : task(test::spiral_net(spirals(batch_norm)), {spirals(batch_norm).examples, 2},
             test::spirals<double>(engine, spirals(batch_norm), DType::f64)),
        trainer(engine, task, options(average, every)) {}

  static test::SpiralOptions spirals(bool batch_norm) {
    test::SpiralOptions spirals;
    spirals.batch_norm = batch_norm;
    return spirals;
  }
  static TrainOptions options(double average, std::uint64_t every) {
    TrainOptions options;
    options.values = DType::f64;
    options.rate.peak = 0.02;
    options.optimizer.average = average;
    options.optimizer.average_every = every;
    return options;
  }
  // Parameters, then moving statistics.
  std::vector<double> values() {
    std::vector<double> all = test::all_of(engine, trainer.parameters(), &nn::Parameter::value);
    Buffers buffers;
    task.net().add_buffers(engine, DType::f64, buffers);
    for (const auto& [name, tensor] : buffers) {
      const std::vector<double> each = engine.to_host<double>(*tensor);
      all.insert(all.end(), each.begin(), each.end());
    }
    return all;
  }
  std::vector<double> averages() {
    std::vector<double> found;
    trainer.averaged([&] { found = values(); });
    return found;
  }
  double loss() {
    const Loss found = trainer.evaluate(100, 0, 4);
    return found.sum / static_cast<double>(found.count);
  }

  nn::Engine engine{nn::Device{}, "ref"};
  Classification task;
  Trainer trainer;
};

}  // namespace

TEST_CASE("the decay of a moving average rises to its largest with the number of updates", "[averages]") {
  CHECK(average_decay(0.999, 1) == 2.0 / 11);
  CHECK(average_decay(0.999, 2) == 3.0 / 12);
  CHECK(average_decay(0.999, 8989) < 0.999);
  CHECK(average_decay(0.999, 8991) == 0.999);
  CHECK(average_decay(0.1, 1) == 0.1);
  CHECK(average_decay(0, 1) == 0);
}

TEST_CASE("moving averages equal their definition written out, also those that go on from a checkpoint", "[averages]") {
  for (const double largest : {0.4, 0.999}) {
    for (const auto& [every, batch_norm] : std::vector<std::pair<std::uint64_t, bool>>{{1, false}, {3, false}, {2, true}}) {
      CAPTURE(largest, every, batch_norm);
      Run run(largest, every, batch_norm);
      std::vector<double> expected = run.values();
      TensorFile checkpoint;
      for (std::uint64_t step = 1; step <= 15; ++step) {
        run.trainer.step();
        if (step == 8) checkpoint = test::saved(run.trainer);
        if (step % every == 0) {
          const double t = static_cast<double>(step / every);
          const double decay = std::min(largest, (1 + t) / (10 + t));
          const std::vector<double> now = run.values();
          for (std::size_t i = 0; i < now.size(); ++i) expected[i] = decay * expected[i] + (1 - decay) * now[i];
        }
        CHECK(compare(run.averages(), expected, 1e-12) == "");
      }
      Run other(largest, every, batch_norm);
      test::load(other.trainer, checkpoint);
      while (other.trainer.steps() < 15) other.trainer.step();
      CHECK(other.averages() == run.averages());
    }
  }
}

// They were those of the net beside its averages: averaged weights were evaluated and saved with statistics of others.
TEST_CASE("averages hold moving statistics, as do the checkpoint and the model", "[averages]") {
  Run run(0.9, 1, true);
  for (int i = 0; i < 5; ++i) run.trainer.step();
  const std::vector<double> before = run.values();
  const TensorFile checkpoint = test::saved(run.trainer);
  TensorFile model;
  run.trainer.averaged([&] {
    run.trainer.save_model([&](const std::map<std::string, StreamedTensor>& tensors) { model = test::file_of(tensors); });
  });
  std::size_t statistics = 0;
  for (const auto& [name, tensor] : model.tensors) {
    INFO(name);
    REQUIRE(checkpoint.contains(average_name(name)));
    CHECK(std::ranges::equal(tensor.as<double>(), checkpoint.get(average_name(name)).as<double>()));
    if (!name.starts_with("norm.moving_")) continue;
    ++statistics;
    CHECK_FALSE(std::ranges::equal(tensor.as<double>(), checkpoint.get(name).as<double>()));
  }
  CHECK(statistics == 2);
  CHECK(run.values() == before);
  CHECK(test::saved(run.trainer).serialize() == checkpoint.serialize());
}

// With a constant decay of 0.999 the net of the start was evaluated for hundreds of steps.
TEST_CASE("early evaluations by averages show the net of now", "[averages]") {
  Run run(0.999);
  Run plain(0);
  const double at_first = plain.loss();
  CHECK(run.loss() == at_first);
  for (int i = 0; i < 60; ++i) {
    run.trainer.step();
    plain.trainer.step();
  }
  const double now = plain.loss();
  REQUIRE(now < 0.8 * at_first);
  CHECK(run.loss() < now + 0.25 * (at_first - now));
}
