// Runs whose gradients go by factors in 1-6-9: what these do not hold is in the metrics, and said once.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "nn/layers/basic.h"
#include "nn/layers/blocks.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/lines.h"
#include "tests/support/message_of.h"
#include "tests/train/spirals.h"
#include "train/run.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;
namespace fs = std::filesystem;

namespace {

std::unique_ptr<nn::Sequence> net_of_blocks() {
  constexpr std::size_t width = 24;
  nn::LinearOptions linear;
  linear.deviation = 0.4;
  auto net = std::make_unique<nn::Sequence>();
  net->emplace<nn::Linear>("first", 2, width, linear);
  for (std::size_t i = 0; i < 2; ++i) {
    auto branch = std::make_unique<nn::Sequence>();
    branch->emplace<nn::Linear>("block" + std::to_string(i), width, width, linear);
    branch->emplace<nn::Activate>(nn::find_activation("tanh"));
    net->emplace<nn::Residual>(std::move(branch), i);
  }
  net->emplace<nn::Linear>("last", width, 3, linear);
  return net;
}

// A trainer that exchanges factors, and a folder for its run.
struct FactorRun {
  // scale: of factors in messages; large ones are beyond 1-6-9.
  FactorRun(const fs::path& folder, FloatFormat messages, double scale)
      : task(net_of_blocks(), {16, 2}, test::spirals<float>(engine, {}, DType::f32)),
        trainer(engine, task, train_options(), layout(messages, scale)) {
    options.folder = folder;
    options.steps = 20;
    options.log_every = 4;
    options.resume = fs::exists(folder);
    options.identity = "factors";
  }
  static TrainOptions train_options() {
    TrainOptions options;
    options.rate.peak = 0.01;
    return options;
  }
  static Layout layout(FloatFormat messages, double scale) {
    Layout layout;
    layout.compress_rank = 2;
    layout.compression.messages = messages;
    layout.compression.p_scale = scale;
    layout.compression.q_scale = scale;
    return layout;
  }
  void run() { train::run(trainer, options, {}, progress); }
  void run_and_stop_after(std::uint64_t step) {
    options.stop = [this, step] { return trainer.steps() == step; };
    CHECK(has(message_of(ErrorKind::interrupted, [this] { run(); }), "stopped after step"));
  }
  bool told() const { return has(progress.text(), "are beyond 15.98"); }

  nn::Engine engine;
  Classification task;
  Trainer trainer;
  RunOptions options;
  test::Lines progress;
};

std::vector<std::uint64_t> clamped_by_line(const fs::path& folder) {
  std::vector<std::uint64_t> counts;
  for (const nlohmann::json& line : test::lines_of(folder, "step")) counts.push_back(line["clamped"]);
  return counts;
}

}  // namespace

TEST_CASE("metrics count what factors in 1-6-9 do not hold, and a run says once that it is much", "[run][power_sgd]") {
  const test::TempDir folder;
  std::vector<std::uint64_t> expected;
  FactorRun counted(folder / "unused", FloatFormat::f1_6_9, 1000);
  for (std::uint64_t step = 0; step < 20; ++step) {
    if (step % 4 == 0) expected.push_back(0);
    const StepReport report = counted.trainer.step();
    // P and Q of two matrices 24 x 24, and their sums.
    CHECK(report.narrowed == std::uint64_t{2 * 2 * 2 * 48});
    CHECK(report.clamped > report.narrowed / 100);
    expected.back() += report.clamped;
  }
  const fs::path whole = folder / "whole";
  FactorRun run(whole, FloatFormat::f1_6_9, 1000);
  run.run();
  CHECK(clamped_by_line(whole) == expected);
  CHECK(run.told());
  const std::string text = run.progress.text();
  CHECK(text.find("are beyond 15.98") == text.rfind("are beyond 15.98"));

  // Stopped within a line, and before the first and the second.
  const fs::path parts = folder / "parts";
  FactorRun first(parts, FloatFormat::f1_6_9, 1000);
  first.run_and_stop_after(3);
  CHECK_FALSE(first.told());
  FactorRun second(parts, FloatFormat::f1_6_9, 1000);
  second.run_and_stop_after(6);
  CHECK(second.told());
  FactorRun last(parts, FloatFormat::f1_6_9, 1000);
  last.run();
  CHECK_FALSE(last.told());
  CHECK(clamped_by_line(parts) == expected);
}

TEST_CASE("a run whose factors fit says nothing of them", "[run][power_sgd]") {
  const test::TempDir folder;
  FactorRun narrow(folder / "narrow", FloatFormat::f1_6_9, 1);
  narrow.run();
  CHECK_FALSE(narrow.told());
  CHECK(clamped_by_line(folder / "narrow") == std::vector<std::uint64_t>(5, 0));
  FactorRun wide(folder / "wide", FloatFormat::f32, 1000);
  wide.run();
  CHECK_FALSE(wide.told());
  for (const nlohmann::json& line : test::lines_of(folder / "wide", "step")) CHECK_FALSE(line.contains("clamped"));
}
