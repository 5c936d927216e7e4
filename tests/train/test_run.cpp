// A float run in a folder: what it leaves, that an interrupted one goes on bit by bit, and what it refuses.
#include "train/run.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <stdexcept>

#include "core/file.h"
#include "core/metrics.h"
#include "core/progress_file.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/train/spirals.h"
#include "train/checkpoint.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;
namespace fs = std::filesystem;

namespace {

class Lines final : public ProgressSink {
 public:
  void line(std::string_view text) override { all += std::string(text) + "\n"; }
  void update(std::string_view /*text*/) override {}
  std::string all;
};

// A trainer of spirals and a folder for its run.
struct Setting {
  explicit Setting(const fs::path& folder, double average = 0)
      : task(test::spiral_net({}), 16, test::spirals<float>(engine, {}, DType::f32)),
        trainer(engine, task, trainer_options(average)) {
    options.folder = folder;
    options.steps = 20;
    options.evaluate_every = 5;
    options.log_every = 4;
    options.identity = "spirals";
    options.files = {{"note.txt", "kept"}};
    options.start = {{"kind", "spirals"}};
  }
  static TrainOptions trainer_options(double average) {
    TrainOptions options;
    options.rate.peak = 0.01;
    options.optimizer.average = average;
    return options;
  }
  RunResult run() {
    RunHooks hooks;
    hooks.evaluate = [this] { return trainer.evaluate(500, 0, 2); };
    hooks.make_model = [this] {
      TensorFile file;
      for (const nn::Parameter* parameter : trainer.parameters()) {
        save_tensor(engine, file, parameter->name, parameter->value);
      }
      return file;
    };
    return train::run(trainer, options, hooks, progress);
  }

  nn::Engine engine;
  Classification task;
  Trainer trainer;
  RunOptions options;
  Lines progress;
};

std::vector<nlohmann::json> events(const fs::path& folder, const std::string& name) {
  std::vector<nlohmann::json> found;
  for (const nlohmann::json& line : read_metrics(folder / run_metrics_name)) {
    if (line["event"] == name) found.push_back(line);
  }
  return found;
}

}  // namespace

TEST_CASE("a run leaves a model, metrics, checkpoints and its files", "[run]") {
  const test::TempDir folder;
  const fs::path out = folder.path() / "deep" / "run";
  Setting setting(out);
  const RunResult result = setting.run();
  CHECK(result.steps == 20);
  CHECK(result.targets == 20 * 16);
  CHECK(result.best_loss <= result.last_loss);
  CHECK(read_text(out / "note.txt") == "kept");
  CHECK(TensorFile::load(out / run_model_name, Checksum::required).contains("first.weight"));
  CHECK(list_checkpoints(out).size() == 2);  // one from before the first step
  CHECK(events(out, "start").size() == 1);
  CHECK(events(out, "start")[0]["kind"] == "spirals");
  REQUIRE(events(out, "step").size() == 8);  // every 4 steps, and before evaluations
  CHECK(events(out, "step")[7]["step"] == 20);
  CHECK(events(out, "step")[7]["targets"] == 320);
  REQUIRE(events(out, "evaluation").size() == 4);
  REQUIRE(events(out, "result").size() == 1);
  CHECK(events(out, "result")[0]["validation_loss"] == events(out, "evaluation")[3]["loss"]);
  CHECK(has(setting.progress.all, "step 20/20"));
}

TEST_CASE("a run marks how far it is", "[run]") {
  const test::TempDir folder;
  Setting setting(folder.path());
  setting.options.process_name = "second";
  std::vector<nlohmann::json> marks;
  setting.options.stop = [&] {
    marks.push_back(nlohmann::json::parse(read_text(folder.path() / progress_file_name)));
    return false;
  };
  setting.run();
  // The first step is marked at once, others a few times a second.
  CHECK(marks.front()["start"] == "second");
  CHECK(marks.front()["step"] == 1);
  CHECK(marks.front()["beat"] >= 2);  // one before the first step
  CHECK(marks.back()["step"] <= 19);
}

TEST_CASE("a run that was stopped goes on to the same model and metrics", "[run]") {
  const test::TempDir folder;
  for (const double average : {0.0, 0.9}) {
    const fs::path whole = folder.path() / fmt::format("whole{}", average);
    const fs::path parts = folder.path() / fmt::format("parts{}", average);
    Setting(whole, average).run();
    for (const int last : {7, 13, 0}) {
      Setting setting(parts, average);
      setting.options.resume = fs::exists(parts);
      setting.options.stop = [&] { return setting.trainer.steps() == static_cast<std::uint64_t>(last); };
      if (last == 0) {
        CHECK(setting.run().steps == 7);
        CHECK(has(setting.progress.all, "going on from step 13"));
      } else {
        CHECK(has(message_of(ErrorKind::interrupted, [&] { setting.run(); }), fmt::format("after step {} of 20", last)));
      }
    }
    CHECK(read_bytes(whole / run_model_name) == read_bytes(parts / run_model_name));
    const auto a = events(whole, "evaluation");
    const auto b = events(parts, "evaluation");
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i]["loss"] == b[i]["loss"]);
    const std::string last = fmt::format("checkpoint-{}.safetensors", 20);
    const TensorFile x = TensorFile::load(whole / last);
    const TensorFile y = TensorFile::load(parts / last);
    for (const auto& [name, tensor] : x.tensors) {
      INFO(name);
      CHECK(std::ranges::equal(std::span(tensor.bytes.data(), tensor.bytes.size()),
                               std::span(y.get(name).bytes.data(), y.get(name).bytes.size())));
    }
  }
}

TEST_CASE("the model is that of the best evaluation, or of the last step where that is wanted", "[run]") {
  const test::TempDir folder;
  for (const bool best : {true, false}) {
    Setting setting(folder.path() / (best ? "best" : "last"));
    setting.options.keep_best = best;
    // Evaluations get worse: only the first is the best.
    RunHooks hooks;
    double loss = 1;
    std::vector<std::uint64_t> saved;
    hooks.evaluate = [&] { return Loss{loss += 1, 1}; };
    hooks.make_model = [&] {
      saved.push_back(setting.trainer.steps());
      TensorFile file;
      file.put("x", {1}, std::vector<float>{1});
      return file;
    };
    const RunResult result = train::run(setting.trainer, setting.options, hooks, setting.progress);
    CHECK(result.best_step == 5);
    CHECK(saved == std::vector<std::uint64_t>{best ? 5U : 20U});
  }
}

TEST_CASE("a run refuses a folder with a run, another run's checkpoint, and one that is done", "[run]") {
  const test::TempDir folder;
  const fs::path out = folder.path() / "run";
  CHECK(has(message_of(ErrorKind::usage,
                       [&] {
                         Setting setting(out);
                         setting.options.resume = true;
                         setting.run();
                       }),
            "there is no run"));
  fs::remove_all(out);
  Setting(out).run();
  CHECK(has(message_of(ErrorKind::usage, [&] { Setting(out).run(); }), "holds a run already"));
  const auto resume = [&](const std::function<void(RunOptions&)>& change) {
    Setting setting(out);
    setting.options.resume = true;
    change(setting.options);
    setting.run();
  };
  CHECK(has(message_of(ErrorKind::usage, [&] { resume([](RunOptions&) {}); }), "has its 20 steps"));
  CHECK(has(message_of(ErrorKind::usage, [&] { resume([](RunOptions& options) { options.identity = "other"; }); }),
            "other options or data"));
  CHECK_NOTHROW(resume([](RunOptions& options) { options.steps = 25; }));
  CHECK(events(out, "evaluation").size() == 5);
  {
    const FileLock lock(out / run_lock_name);
    CHECK(has(message_of(ErrorKind::busy, [&] { resume([](RunOptions& options) { options.steps = 30; }); }), ".lock"));
  }
}

TEST_CASE("a run that is killed in its first step is resumed as the same run", "[run]") {
  const test::TempDir folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path out = folder.path() / "run";
  Setting(whole).run();
  {
    Setting setting(out);
    setting.options.stop = []() -> bool { throw std::runtime_error("killed"); };
    CHECK_THROWS_WITH(setting.run(), "killed");
  }
  Setting setting(out);
  setting.options.resume = true;
  setting.options.identity = "other";
  CHECK(has(message_of(ErrorKind::usage, [&] { setting.run(); }), "other options or data"));
  // The values it begins with are those of its start, whatever this process has.
  setting.options.identity = "spirals";
  Setting elsewhere(folder.path() / "elsewhere");
  elsewhere.run();
  TensorFile trained;
  elsewhere.trainer.save(trained);
  setting.trainer.load(trained);
  CHECK(setting.run().steps == 20);
  CHECK(read_bytes(whole / run_model_name) == read_bytes(out / run_model_name));
}

TEST_CASE("a damaged checkpoint is passed over for the one before it", "[run]") {
  const test::TempDir folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path out = folder.path() / "run";
  Setting(whole).run();
  {
    Setting setting(out);
    setting.options.checkpoint_seconds = 0;  // after every step
    setting.options.stop = [&] { return setting.trainer.steps() == 11; };
    CHECK_THROWS(setting.run());
  }
  REQUIRE(list_checkpoints(out).size() == 2);
  fs::resize_file(list_checkpoints(out)[1], 100);
  Setting setting(out);
  setting.options.resume = true;
  setting.run();
  CHECK(has(setting.progress.all, "is damaged; going on from"));
  CHECK(read_bytes(whole / run_model_name) == read_bytes(out / run_model_name));
}

TEST_CASE("a disk that is full ends a run and leaves the last good checkpoint", "[run]") {
  const test::TempDir folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path out = folder.path() / "run";
  Setting(whole).run();
  {
    Setting setting(out);
    setting.options.stop = [&] { return setting.trainer.steps() == 6; };
    CHECK_THROWS(setting.run());
  }
  {
    Setting setting(out);
    setting.options.resume = true;
    setting.options.checkpoint_seconds = 0;
    setting.options.stop = [&] { return setting.trainer.steps() == 20; };
    const test::FileSizeLimit limit(2000);  // less than a checkpoint, more than metrics have
    const std::string message = message_of(ErrorKind::io, [&] { setting.run(); });
    CHECK(has(message, "checkpoint-7"));
  }
  Setting setting(out);
  setting.options.resume = true;
  setting.run();
  CHECK(has(setting.progress.all, "going on from step 6"));
  CHECK(read_bytes(whole / run_model_name) == read_bytes(out / run_model_name));
}
