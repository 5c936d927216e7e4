// Steps that are given up between their micro-batches leave no trace, and a run that is stopped in one goes on bit by bit.
#include <functional>
#include <optional>

#include "core/safetensors.h"
#include "run/folder.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/lines.h"
#include "tests/support/message_of.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "tests/train/spirals.h"
#include "train/run.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;

namespace {

constexpr std::size_t micro_batches = 4;

// With all that might change within a step: moving statistics, averages, dropout, a loss scale, scales of blocks.
struct StateInSteps {
  explicit StateInSteps(DType values)
      : engine({}, values == DType::f16 ? "ref" : ""),  // the backend that has f16 on every machine
        task(test::spiral_net(spirals()), {spirals().examples, 2}, test::spirals<float>(engine, spirals(), values)),
        trainer(engine, task, options(values)) {
    trainer.on_micro_batch([this] { ++passes; });
  }
  static test::SpiralOptions spirals() {
    return {.examples = 8, .per_step = micro_batches, .dropout = 0.1, .batch_norm = true};
  }
  static TrainOptions options(DType values) {
    TrainOptions options;
    options.values = values;
    options.micro_batches = micro_batches;
    options.rate.peak = 0.01;
    options.optimizer.average = 0.9;
    if (values == DType::f16) {
      options.loss_scale = LossScaleOptions{1024, 2, 65536};
      options.block_scales.emplace();
    }
    return options;
  }
  std::vector<double> gradients() { return test::all_of(engine, trainer.parameters(), &nn::Parameter::gradient); }

  nn::Engine engine;
  Classification task;
  Trainer trainer;
  std::size_t passes = 0;
};

}  // namespace

TEST_CASE("a step that is given up after any of its micro-batches but the last leaves no trace", "[train]") {
  const DType values = GENERATE(DType::f32, DType::f16);
  for (std::size_t after = 1; after < micro_batches; ++after) {
    CAPTURE(nn::to_text(values), after);
    StateInSteps whole(values), broken(values);
    for (StateInSteps* each : {&whole, &broken}) test::loss_after(each->trainer, 3);
    const auto before = test::saved(broken.trainer).serialize();
    const std::vector<double> gradients = broken.gradients();
    broken.passes = 0;
    std::size_t asked = 0;
    CHECK_FALSE(broken.trainer.step_unless([&] { return ++asked == after; }).has_value());
    CHECK(broken.passes == 2 * after);  // forward and backward
    CHECK(broken.trainer.steps() == 3);
    CHECK(broken.gradients() != gradients);  // it did begin
    CHECK(test::saved(broken.trainer).serialize() == before);
    // Nor does what is not in checkpoints keep any of it.
    const std::optional<StepReport> report = broken.trainer.step_unless([] { return false; });
    REQUIRE(report.has_value());
    CHECK(report->loss == whole.trainer.step().loss);
    CHECK(test::saved(broken.trainer).serialize() == test::saved(whole.trainer).serialize());
  }
}

TEST_CASE("a step is not given up at its last micro-batch", "[train]") {
  StateInSteps setting(DType::f32);
  std::size_t asked = 0;
  CHECK(setting.trainer.step_unless([&] { return ++asked == micro_batches; }).has_value());
  CHECK(asked == micro_batches - 1);
}

TEST_CASE("a run that is stopped in a step of many micro-batches goes on to the same model and metrics", "[run]") {
  const test::TempDir folder;
  const auto run = [&](StateInSteps& setting, const std::string& out, const std::function<bool()>& stop) {
    RunOptions options;
    options.folder = folder / out;
    options.resume = std::filesystem::exists(options.folder);
    options.steps = 9;
    options.evaluate_every = 3;
    options.log_every = 2;
    options.stop = stop;
    test::Lines progress;
    RunHooks hooks;
    hooks.evaluate = [&](const SignOfLife&) { return Evaluated{setting.trainer.evaluate(500, 0, 2), {}}; };
    train::run(setting.trainer, options, hooks, progress);
  };
  StateInSteps whole(DType::f32);
  run(whole, "whole", {});
  for (const std::uint64_t last : {0, 4, 7}) {
    StateInSteps part(DType::f32);
    // It is asked once between two steps, and then between the micro-batches of the next: of these the second time.
    std::size_t asked = 0;
    const auto stop = [&] { return part.trainer.steps() == last && ++asked == (last == 0 ? 2 : 3); };
    CHECK(has(message_of(ErrorKind::interrupted, [&] { run(part, "parts", stop); }), fmt::format("after step {} of 9", last)));
  }
  StateInSteps rest(DType::f32);
  run(rest, "parts", {});
  CHECK(read_bytes(folder / "whole" / run::model_name) == read_bytes(folder / "parts" / run::model_name));
  const auto lines = test::lines_of(folder / "whole", "step");
  const auto parted = test::lines_of(folder / "parts", "step");
  REQUIRE(lines.size() == parted.size());
  for (std::size_t i = 0; i < lines.size(); ++i) {
    for (const char* name : {"step", "loss", "gradient_norm", "targets"}) {
      INFO(name << " of line " << i);
      CHECK(lines[i][name] == parted[i][name]);
    }
  }
}
