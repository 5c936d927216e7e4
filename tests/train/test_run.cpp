// A float run in a folder: what it leaves, that an interrupted one goes on bit by bit, and what it refuses.
#include "train/run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>
#include <stdexcept>
#include <thread>

#include "core/clock.h"
#include "core/file.h"
#include "core/metrics.h"
#include "core/progress_file.h"
#include "run/checkpoints.h"
#include "run/folder.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"
#include "tests/support/lines.h"
#include "tests/support/message_of.h"
#include "tests/support/trainer_state.h"
#include "tests/train/spirals.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::has;
using bitloom::test::message_of;
namespace fs = std::filesystem;

namespace {

// A trainer of spirals and a folder for its run.
struct Setting {
  explicit Setting(const fs::path& folder, double average = 0)
      : task(test::spiral_net({}), {16, 2}, test::spirals<float>(engine, {}, DType::f32)),
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
    hooks.evaluate = [this](const SignOfLife&) { return Evaluated{trainer.evaluate(500, 0, 2), {}}; };
    return train::run(trainer, options, hooks, progress);
  }
  void run_and_stop_after(std::uint64_t step) {
    options.stop = [this, step] { return trainer.steps() == step; };
    CHECK_THROWS(run());
  }

  nn::Engine engine;
  Classification task;
  Trainer trainer;
  RunOptions options;
  test::Lines progress;
};

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
  CHECK(TensorFile::load(out / run::model_name, Checksum::required).contains("first.weight"));
  CHECK(run::list_checkpoints(out).size() == 2);  // one from before the first step
  CHECK(test::lines_of(out, "start").size() == 1);
  CHECK(test::lines_of(out, "start")[0]["kind"] == "spirals");
  REQUIRE(test::lines_of(out, "step").size() == 8);  // every 4 steps, and before evaluations
  CHECK(test::lines_of(out, "step")[7]["step"] == 20);
  CHECK(test::lines_of(out, "step")[7]["targets"] == 320);
  REQUIRE(test::lines_of(out, "evaluation").size() == 4);
  REQUIRE(test::lines_of(out, "result").size() == 1);
  CHECK(test::lines_of(out, "result")[0]["validation_loss"] == test::lines_of(out, "evaluation")[3]["loss"]);
  CHECK(has(setting.progress.text(), "step 20/20"));
}

TEST_CASE("a run shows what its net does every so many steps and at the end, resumed neither twice nor never", "[run]") {
  const test::TempDir folder;
  const auto steps_of = [](const fs::path& out) {
    std::vector<std::uint64_t> steps;
    for (const nlohmann::json& line : test::lines_of(out, "samples")) steps.push_back(line["step"]);
    return steps;
  };
  for (const std::uint64_t every : {8, 20, 0}) {
    const fs::path out = folder.path() / fmt::format("every-{}", every);
    std::vector<std::uint64_t> begun, drawn;
    for (const std::uint64_t last : {9, 18, 0}) {
      Setting setting(out);
      setting.options.sample_every = every;
      setting.options.resume = fs::exists(out);
      setting.options.stop = [&] { return setting.trainer.steps() == last; };
      RunHooks hooks;
      hooks.begin = [&](std::uint64_t step) { begun.push_back(step); };
      hooks.sample = [&](const SignOfLife& alive) {
        alive();
        drawn.push_back(setting.trainer.steps());
        return nlohmann::json{{"file", fmt::format("{}.png", setting.trainer.steps())}};
      };
      const auto run = [&] { train::run(setting.trainer, setting.options, hooks, setting.progress); };
      if (last == 0) {
        run();
      } else {
        CHECK(has(message_of(ErrorKind::interrupted, run), "stopped after step"));
      }
    }
    CHECK(begun == std::vector<std::uint64_t>{0, 9, 18});
    const std::vector<std::uint64_t> expected = every == 8    ? std::vector<std::uint64_t>{8, 16, 20}
                                                : every == 20 ? std::vector<std::uint64_t>{20}
                                                              : std::vector<std::uint64_t>{};
    CHECK(drawn == expected);
    CHECK(steps_of(out) == expected);
    if (every == 8) CHECK(test::lines_of(out, "samples")[1]["file"] == "16.png");
  }
  // Killed after step 12, with no checkpoint but that of step 0: what came later is shown again.
  const fs::path out = folder.path() / "killed";
  for (const bool resumed : {false, true}) {
    Setting setting(out);
    setting.options.sample_every = 4;
    setting.options.resume = resumed;
    RunHooks hooks;
    hooks.sample = [&](const SignOfLife&) -> nlohmann::json {
      if (!resumed && setting.trainer.steps() == 12) throw std::runtime_error("killed");
      return {{"resumed", resumed}};
    };
    const auto run = [&] { train::run(setting.trainer, setting.options, hooks, setting.progress); };
    if (resumed) {
      run();
    } else {
      CHECK_THROWS_AS(run(), std::runtime_error);
      CHECK(steps_of(out) == std::vector<std::uint64_t>{4, 8});
    }
  }
  CHECK(steps_of(out) == std::vector<std::uint64_t>{4, 8, 12, 16, 20});
  for (const nlohmann::json& line : test::lines_of(out, "samples")) CHECK(line["resumed"] == true);
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
        CHECK(has(setting.progress.text(), "going on from step 13"));
      } else {
        CHECK(has(message_of(ErrorKind::interrupted, [&] { setting.run(); }), fmt::format("after step {} of 20", last)));
      }
    }
    CHECK(read_bytes(whole / run::model_name) == read_bytes(parts / run::model_name));
    // A line that a stop fell into had the sums of the steps since alone.
    const auto lines = test::lines_of(whole, "step");
    const auto parted = test::lines_of(parts, "step");
    REQUIRE(lines.size() == parted.size());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (const char* name : {"step", "loss", "gradient_norm", "rate", "targets"}) {
        INFO(name << " of line " << i);
        CHECK(lines[i][name] == parted[i][name]);
      }
    }
    const auto a = test::lines_of(whole, "evaluation");
    const auto b = test::lines_of(parts, "evaluation");
    REQUIRE(a.size() == b.size());
    for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i]["loss"] == b[i]["loss"]);
    const std::string last = run::checkpoint_name;
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
    hooks.evaluate = [&](const SignOfLife&) { return Evaluated{{loss += 1, 1}, 1 / loss}; };
    int after = 0;
    hooks.after = [&](const SignOfLife& alive) {
      ++after;
      alive();
      CHECK(fs::exists(setting.options.folder / run::model_name));
      CHECK(test::lines_of(setting.options.folder, "result").size() == 1);
      return best ? nlohmann::json{{"event", "test"}, {"accuracy", 0.75}} : nlohmann::json();
    };
    hooks.describe_model = [&](TensorFile& file) { file.metadata["steps"] = std::to_string(setting.trainer.steps()); };
    const RunResult result = train::run(setting.trainer, setting.options, hooks, setting.progress);
    CHECK(after == 1);
    CHECK(test::lines_of(setting.options.folder, "test").size() == (best ? 1 : 0));
    CHECK(result.best_step == 5);
    CHECK(result.best_accuracy == 0.5);
    CHECK(result.last_accuracy == 0.2);
    CHECK(test::lines_of(setting.options.folder, "evaluation")[1]["accuracy"] == 1.0 / 3);
    const TensorFile model = TensorFile::load(setting.options.folder / run::model_name);
    CHECK(model.get_metadata("steps") == (best ? "5" : "20"));
    CHECK(model.contains("first.weight"));
  }
}

// It ended without a model: that of a best evaluation was not kept.
TEST_CASE("a run that goes on with the model of the best evaluation instead of the last step's has one", "[run]") {
  const test::TempDir folder;
  double loss = 1;
  const auto run = [&](bool best, std::uint64_t last, bool resume) {
    Setting setting(folder.path() / "run");
    setting.options.keep_best = best;
    setting.options.resume = resume;
    setting.options.stop = [&setting, last] { return setting.trainer.steps() == last; };
    RunHooks hooks;
    hooks.evaluate = [&](const SignOfLife&) { return Evaluated{{loss += 1, 1}, {}}; };
    hooks.describe_model = [&](TensorFile& file) { file.metadata["steps"] = std::to_string(setting.trainer.steps()); };
    train::run(setting.trainer, setting.options, hooks, setting.progress);
  };
  CHECK(has(message_of(ErrorKind::interrupted, [&] { run(false, 7, false); }), "stopped after step 7"));
  run(true, 0, true);
  CHECK(TensorFile::load(folder / "run/model.safetensors").get_metadata("steps") == "10");
  CHECK(test::lines_of(folder / "run", "result")[0]["best_step"] == 10);
}

TEST_CASE("a run whose best model is gone has one at its end", "[run]") {
  const test::TempDir folder;
  double loss = 1;
  const auto run = [&](std::uint64_t last, bool resume) {
    Setting setting(folder.path() / "run");
    setting.options.resume = resume;
    setting.options.stop = [&setting, last] { return setting.trainer.steps() == last; };
    RunHooks hooks;
    hooks.evaluate = [&](const SignOfLife&) { return Evaluated{{loss += 1, 1}, {}}; };
    return train::run(setting.trainer, setting.options, hooks, setting.progress);
  };
  CHECK(has(message_of(ErrorKind::interrupted, [&] { run(7, false); }), "stopped after step 7"));
  SECTION("removed") { fs::remove(folder / "run/model.safetensors"); }
  SECTION("cut off") { fs::resize_file(folder / "run/model.safetensors", 100); }
  // Evaluations get worse: the best of those to come is the first.
  CHECK(run(0, true).best_step == 10);
  CHECK(TensorFile::load(folder / "run/model.safetensors").get_metadata(run::model_step_key) == "10");
}

// The model was of a step that the run came to on a way that it did not take again, and the best loss another's.
TEST_CASE("a run that was killed after its checkpoint reports the best of the model that it has", "[run]") {
  const test::TempDir folder;
  const auto run = [&](std::uint64_t last, bool resume, std::uint64_t steps, const std::function<double(std::uint64_t)>& loss) {
    Setting setting(folder.path() / "run");
    setting.options.resume = resume;
    setting.options.steps = steps;
    setting.options.may_change_steps = true;
    setting.options.stop = [&setting, last] { return setting.trainer.steps() == last; };
    RunHooks hooks;
    hooks.evaluate = [&](const SignOfLife&) { return Evaluated{{loss(setting.trainer.steps()), 1}, {}}; };
    return train::run(setting.trainer, setting.options, hooks, setting.progress);
  };
  const auto falls = [](std::uint64_t step) { return 100.0 - static_cast<double>(step); };
  const auto step_of_model = [&] {
    return TensorFile::load(folder / "run/model.safetensors").get_metadata(run::model_step_key);
  };
  CHECK(has(message_of(ErrorKind::interrupted, [&] { run(7, false, 20, falls); }), "stopped after step 7"));
  const std::string checkpoint = test::read_file(folder / "run/checkpoint.safetensors");
  CHECK(step_of_model() == "5");
  CHECK(has(message_of(ErrorKind::interrupted, [&] { run(12, true, 20, falls); }), "stopped after step 12"));
  CHECK(step_of_model() == "10");
  // As if it had been killed at step 12.
  for (const auto& entry : fs::directory_iterator(folder / "run")) {
    if (entry.path().filename().string().starts_with("checkpoint")) fs::remove(entry.path());
  }
  test::write_file(folder / "run/checkpoint.safetensors", checkpoint);
  SECTION("on another way, on which nothing is better than before") {
    const RunResult result = run(0, true, 15, [](std::uint64_t step) { return 200.0 + static_cast<double>(step); });
    CHECK(result.best_step == 10);
    CHECK(result.best_loss == 210);
    CHECK(step_of_model() == "10");
  }
  SECTION("on the same way") {
    const RunResult result = run(0, true, 20, falls);
    CHECK(result.best_step == 20);
    CHECK(step_of_model() == "20");
  }
}

TEST_CASE("a loss that is not finite is never the best", "[run]") {
  const test::TempDir folder;
  const auto run = [&](std::uint64_t last, bool resume) {
    Setting setting(folder.path() / "run");
    setting.options.resume = resume;
    setting.options.stop = [&setting, last] { return setting.trainer.steps() == last; };
    RunHooks hooks;
    hooks.evaluate = [&](const SignOfLife&) {
      const bool is_first = setting.trainer.steps() == 5;
      return Evaluated{{is_first ? std::numeric_limits<double>::quiet_NaN() : 1.0, 1}, {}};
    };
    return train::run(setting.trainer, setting.options, hooks, setting.progress);
  };
  CHECK(has(message_of(ErrorKind::interrupted, [&] { run(7, false); }), "stopped after step 7"));
  CHECK(run(0, true).best_step == 10);
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
            "belongs to a run with other data, net or options:\n  identity: "));
  // The schedule would change in silence.
  CHECK(has(message_of(ErrorKind::usage, [&] { resume([](RunOptions& options) { options.steps = 25; }); }), "steps: 25, but "));
  CHECK_NOTHROW(resume([](RunOptions& options) { options.steps = 25, options.may_change_steps = true; }));
  CHECK(test::lines_of(out, "evaluation").size() == 5);
  {
    const FileLock lock(out / run::lock_name);
    CHECK(has(message_of(ErrorKind::busy, [&] { resume([](RunOptions& options) { options.steps = 30; }); }), ".lock"));
  }
}

TEST_CASE("a checkpoint of another version is not gone on with, and says so", "[run]") {
  const test::TempDir folder;
  const fs::path out = folder.path() / "run";
  {
    Setting setting(out);
    setting.options.stop = [&] { return setting.trainer.steps() == 3; };
    CHECK(message_of(ErrorKind::interrupted, [&] { setting.run(); }) != "");
  }
  const run::FoundCheckpoint found = run::find_checkpoint(out);
  REQUIRE(found.file);
  CHECK(step_of_checkpoint(found.file->metadata) == 3);
  CHECK_FALSE(step_of_checkpoint({{"bitloom.run", "[1]"}}));
  TensorFile file = TensorFile::load(found.path);
  std::string& identity = file.metadata["bitloom.run.identity"];
  const std::size_t at = identity.find("of floats 2");
  REQUIRE(at != std::string::npos);
  identity.replace(at, 11, "of floats 9");
  write_atomically(found.path, file.serialize());
  Setting setting(out);
  setting.options.resume = true;
  CHECK(has(message_of(ErrorKind::usage, [&] { setting.run(); }),
            "was written by another version of the program (checkpoints of floats 9; this one: checkpoints of floats 2)"));
}

TEST_CASE("a run that is killed in its first step is resumed as the same run", "[run]") {
  const test::TempDir folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path out = folder.path() / "run";
  Setting(whole).run();
  {
    Setting setting(out);
    setting.options.stop = []() -> bool { throw std::runtime_error("killed"); };
    const Clock::time_point start = Clock::now();
    CHECK_THROWS_WITH(setting.run(), "killed");
    // The first checkpoint had the seconds since the machine was started.
    const TensorReader checkpoint = TensorReader::open(out / run::checkpoint_name);
    CHECK(nlohmann::json::parse(checkpoint.get_metadata("bitloom.run"))["seconds"] <= seconds_since(start));
  }
  Setting setting(out);
  setting.options.resume = true;
  setting.options.identity = "other";
  CHECK(has(message_of(ErrorKind::usage, [&] { setting.run(); }),
            "belongs to a run with other data, net or options:\n  identity: "));
  // The values it begins with are those of its start, whatever this process has.
  setting.options.identity = "spirals";
  Setting elsewhere(folder.path() / "elsewhere");
  elsewhere.run();
  const TensorFile trained = test::saved(elsewhere.trainer);
  test::load(setting.trainer, trained);
  CHECK(setting.run().steps == 20);
  CHECK(read_bytes(whole / run::model_name) == read_bytes(out / run::model_name));
}

TEST_CASE("a damaged checkpoint is passed over for the one before it", "[run]") {
  const test::TempDir folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path out = folder.path() / "run";
  Setting(whole).run();
  {
    Setting setting(out);
    setting.options.checkpoint_seconds = 0;  // after every step
    setting.run_and_stop_after(11);
  }
  REQUIRE(run::list_checkpoints(out).size() == 2);
  fs::resize_file(run::list_checkpoints(out)[0], 100);
  Setting setting(out);
  setting.options.resume = true;
  setting.run();
  CHECK(has(setting.progress.text(), "; trying the one before"));
  CHECK(read_bytes(whole / run::model_name) == read_bytes(out / run::model_name));
}

// It gave none before all of a checkpoint was read, and a supervisor ended each start of a large run.
TEST_CASE("a run that goes on gives signs of life while it reads its checkpoint", "[run]") {
  const test::TempDir folder;
  const fs::path out = folder.path() / "run";
  Setting(out).run_and_stop_after(6);
  fs::remove(out / progress_file_name);
  // Each is read twice: for the checksum, and for itself.
  const std::size_t tensors = TensorFile::load(out / run::checkpoint_name).tensors.size();
  Setting setting(out);
  setting.options.resume = true;
  setting.options.mark_seconds = 0;
  RunHooks hooks;
  std::uint64_t signs = 0;
  hooks.join = [&](const SignOfLife&) {
    if (fs::exists(out / progress_file_name)) {
      signs = nlohmann::json::parse(read_text(out / progress_file_name))["beat"].get<std::uint64_t>();
    }
  };
  train::run(setting.trainer, setting.options, hooks, setting.progress);
  CHECK(tensors > setting.trainer.parameters().size());
  CHECK(signs >= 2 * tensors);
}

TEST_CASE("a disk that is full ends a run and leaves the last good checkpoint", "[run]") {
  const test::TempDir folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path out = folder.path() / "run";
  Setting(whole).run();
  Setting(out).run_and_stop_after(6);
  {
    Setting setting(out);
    setting.options.resume = true;
    setting.options.checkpoint_seconds = 0;
    // Begun after step 7, beside training, which waits for it here.
    setting.options.stop = [&] { return setting.trainer.steps() == 8; };
    const test::FileSizeLimit limit(2000);  // less than a checkpoint, more than metrics have
    CHECK(has(message_of(ErrorKind::io, [&] { setting.run(); }), "checkpoint.next"));
    CHECK(setting.trainer.steps() == 8);
  }
  Setting setting(out);
  setting.options.resume = true;
  setting.run();
  CHECK(has(setting.progress.text(), "going on from step 6"));
  CHECK(read_bytes(whole / run::model_name) == read_bytes(out / run::model_name));
}

// A file that holds the writing of checkpoints, of any step from `first` on.
void hold_writing(const fs::path& file, std::uint64_t first) {
  test::write_file(file.string() + held_writing, std::to_string(first));
}

TEST_CASE("training goes on while a checkpoint is written, and waits for it before the next and at its end", "[run]") {
  const test::TempDir folder;
  const fs::path whole = folder.path() / "whole";
  const fs::path out = folder.path() / "run";
  const fs::path hold = folder.path() / "hold";
  Setting(whole).run();
  const auto step_in = [&](const char* name) { return step_of_checkpoint(TensorFile::load(out / name).metadata); };
  hold_writing(hold, 1);
  std::thread releases;
  {
    Setting setting(out);
    setting.options.checkpoint_seconds = 0;
    setting.options.hold = hold;
    setting.options.stop = [&] {
      const std::uint64_t step = setting.trainer.steps();
      // The one of step 1 is being written, but for its last tensor.
      if (step == 8) {
        // Eight steps may be over before the thread that writes has begun.
        for (int i = 0; i < 10000 && test::temporaries_in(out) == 0; ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        CHECK(run::list_checkpoints(out).size() == 1);
        CHECK(step_in(run::checkpoint_name) == 0);
        CHECK(test::temporaries_in(out) == 1);
        // No sooner than the run waits for it, mostly; it makes no difference to what is checked.
        releases = std::thread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          fs::remove(hold.string() + held_writing);
        });
      }
      return step == 8;
    };
    CHECK(has(message_of(ErrorKind::interrupted, [&] { setting.run(); }), "stopped after step 8 of 20"));
    releases.join();
    CHECK(step_in(run::previous_checkpoint_name) == 1);
    CHECK(step_in(run::checkpoint_name) == 8);
    CHECK(has(setting.progress.text(), "beside training, which it held for"));
  }
  {
    Setting setting(out);
    setting.options.resume = true;
    setting.options.checkpoint_seconds = 0;
    CHECK(setting.run().steps == 12);
    CHECK(step_in(run::checkpoint_name) == 20);
  }
  CHECK(test::temporaries_in(out) == 0);
  CHECK(read_bytes(whole / run::model_name) == read_bytes(out / run::model_name));
  const auto checkpoints = test::lines_of(out, "checkpoint");
  REQUIRE(!checkpoints.empty());
  CHECK(checkpoints[0]["step"] == 1);
  for (const nlohmann::json& each : checkpoints) {
    CHECK(each["step"] < 20);
    CHECK(each["held_seconds"] > 0);
    CHECK(each["writing_seconds"] > 0);
  }
  CHECK(read_metrics(out / run::metrics_name).back()["event"] == "result");
}

TEST_CASE("a run that an error ends first waits for the checkpoint that is being written", "[run]") {
  const test::TempDir folder;
  const fs::path hold = folder.path() / "hold";
  const fs::path out = folder.path() / "run";
  hold_writing(hold, 1);
  Setting setting(out);
  setting.options.checkpoint_seconds = 0;
  setting.options.hold = hold;
  std::thread releases;
  setting.options.stop = [&] {
    if (setting.trainer.steps() != 3) return false;
    releases = std::thread([&] { fs::remove(hold.string() + held_writing); });
    throw std::runtime_error("something else");
  };
  CHECK_THROWS_WITH(setting.run(), "something else");
  releases.join();
  CHECK(step_of_checkpoint(TensorFile::load(out / run::checkpoint_name, Checksum::required).metadata) == 1);
}

TEST_CASE("a run that is given other steps is a run of those from then on", "[run]") {
  const test::TempDir folder;
  const fs::path out = folder.path() / "run";
  const auto stop_at = [&](std::uint64_t step, std::uint64_t steps, bool resume, bool may_change) {
    Setting setting(out);
    setting.options.steps = steps;
    setting.options.resume = resume;
    setting.options.may_change_steps = may_change;
    setting.options.stop = [&] { return setting.trainer.steps() == step; };
    const std::string message = message_of(ErrorKind::interrupted, [&] { setting.run(); });
    return setting.progress.text() + message;
  };
  CHECK(has(stop_at(6, 20, false, false), "stopped after step 6 of 20"));
  CHECK(has(stop_at(8, 30, true, true), "30 steps instead of 20"));
  CHECK(has(stop_at(9, 20, true, false), "steps: 20, but "));
  const std::string same = stop_at(9, 30, true, false);
  CHECK(has(same, "stopped after step 9 of 30"));
  CHECK_FALSE(has(same, "instead of"));
}

// It ended with code 0, and most of its files were lost.
TEST_CASE("a folder that is deleted or emptied under a run is an error", "[run]") {
  for (const std::string how : {"deleted", "emptied", "replaced"}) {
    INFO(how);
    const test::TempDir folder;
    const fs::path out = folder.path() / "run";
    Setting setting(out);
    setting.options.stop = [&] {
      if (setting.trainer.steps() != 6) return false;
      if (how != "emptied") {
        fs::remove_all(out);
      } else {
        for (const auto& file : fs::directory_iterator(out)) fs::remove_all(file.path());
      }
      if (how == "replaced") fs::create_directory(out);
      return false;
    };
    CHECK(has(message_of(ErrorKind::io, [&] { setting.run(); }), "was deleted or replaced"));
    CHECK_FALSE(fs::exists(out / run::model_name));
  }
}

TEST_CASE("a run removes what killed ones left in its folder", "[run]") {
  const test::TempDir folder;
  const fs::path out = folder.path() / "run";
  Setting(out).run_and_stop_after(6);
  const fs::path left = out / "checkpoint.next.safetensors.1-00000000000000aa.tmp";
  test::write_file(left, "part of a checkpoint");
  fs::last_write_time(left, fs::file_time_type::clock::now() - std::chrono::hours(2));  // by its name it is another host's
  Setting setting(out);
  setting.options.resume = true;
  setting.run();
  CHECK_FALSE(fs::exists(left));
}
