#include "train/run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <span>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "run/checkpoints.h"
#include "run/folder.h"
#include "run/open_run.h"
#include "train/run_checkpoints.h"
#include "train/run_record.h"

namespace bitloom::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Metadata of checkpoints.
constexpr const char* state_key = "bitloom.run";
// Part of a run's identity; to be raised when a run that goes on from an older checkpoint would be another run.
constexpr const char* checkpoint_version = "checkpoints of floats 2";

// A number of what checkpoints say of their run.
std::optional<std::uint64_t> count_in_state(const std::map<std::string, std::string>& metadata, const char* name) {
  const auto found = metadata.find(state_key);
  if (found == metadata.end()) return std::nullopt;
  const Json state = Json::parse(found->second, nullptr, false);
  const auto count = state.find(name);
  if (count == state.end() || !count->is_number_unsigned()) return std::nullopt;
  return count->get<std::uint64_t>();
}

// Whether there is a model of this step. Others may be there where a run was killed after its last checkpoint.
bool is_of_step(const fs::path& model, std::uint64_t step) {
  if (!fs::exists(model)) return false;
  try {
    const TensorMapping file = TensorMapping::open(model);
    const auto found = file.metadata.find(run::model_step_key);
    return found == file.metadata.end() || found->second == fmt::format("{}", step);  // older models do not say
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::data) return false;  // damaged
    throw;
  }
}

std::string hash_text(std::uint64_t hash) { return fmt::format("{:016x}", hash); }

// `described`: a JSON object, what the caller's run depends on.
std::string with_version(const std::string& described) {
  Json identity = Json::parse(described, nullptr, false);
  if (!identity.is_object()) identity = Json{{"identity", described}};
  identity["version"] = checkpoint_version;
  return identity.dump();
}

// Gives signs of life while a file is read: a large one takes longer than supervisors wait for one.
class MarkedSource final : public TensorSource {
 public:
  MarkedSource(const TensorSource& file, const SignOfLife& alive) : file_(file), alive_(alive) {}
  Description describe(const std::string& name) const override { return file_.describe(name); }
  void read(const std::string& name, std::uint64_t from, std::span<std::byte> bytes) const override {
    file_.read(name, from, bytes);
    alive_();
  }

 private:
  const TensorSource& file_;
  const SignOfLife& alive_;
};

class Run {
 public:
  Run(Trainer& trainer, const RunOptions& options, const RunHooks& hooks, ProgressSink& progress)
      : trainer_(trainer), options_(options), hooks_(hooks), progress_(progress) {
    trainer_.on_micro_batch([this] { mark(false); });
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() { trainer_.on_micro_batch(nullptr); }

  RunResult execute() {
    begin();
    if (hooks_.join) hooks_.join([this] { mark(false); });
    mark(true);
    const std::uint64_t first = trainer_.steps();
    if (hooks_.begin) hooks_.begin(first);
    open_.start_clock();
    while (trainer_.steps() < options_.steps) {
      open_.wait_while_held(0, trainer_.steps());
      if (!step()) stop();
      // The first of this process is what is waited for after a restart.
      mark(trainer_.steps() == first + 1);
      const bool last = trainer_.steps() == options_.steps;
      if (last || trainer_.steps() % options_.log_every == 0) on_root([&] { record_.write_steps(); });
      const auto is_due = [&](std::uint64_t every) { return every != 0 && trainer_.steps() % every == 0; };
      if (last || is_due(options_.evaluate_every)) evaluate();
      if (is_due(options_.sample_every) || (last && options_.sample_every != 0)) sample();
      if (last) continue;
      const Requests requests = share_requests();
      if (requests.written) end_checkpoint();
      if (requests.stop) stop();
      if (requests.checkpoint) begin_checkpoint();
    }
    if (first >= options_.steps) evaluate();  // others made the last steps
    result().steps = trainer_.steps() - first;
    finish();
    if (hooks_.after) write(hooks_.after([this] { mark(false); }));
    return result();
  }

 private:
  struct Requests {
    bool stop = false;        // of any rank
    bool checkpoint = false;  // of rank 0, by its clock
    bool written = false;     // the checkpoint before is, at rank 0
  };
  Requests share_requests() {
    std::array<std::int64_t, 3> requests = {open_.is_stop_asked(), checkpoints_.is_due(options_.checkpoint_seconds),
                                            checkpoints_.is_written()};
    trainer_.comm().max(requests);
    return {requests[0] != 0, requests[1] != 0, requests[2] != 0};
  }

  [[noreturn]] void stop() {
    if (checkpoints_.is_under_way()) end_checkpoint();
    if (hooks_.leave) hooks_.leave([this] { mark(false); });
    write_checkpoint();
    fail(ErrorKind::interrupted, "stopped after step {} of {}", trainer_.steps(), options_.steps);
  }

  template <typename F>
  void on_root(F&& f) {
    run::on_root(trainer_.comm(), std::forward<F>(f));
  }

  RunResult& result() { return record_.result(); }

  void mark(bool now) { open_.mark(0, trainer_.steps(), now); }

  // A checkpoint comes first and the model last: where both are there, the run has all its steps.
  void begin() {
    run::FoundCheckpoint found;
    const SignOfLife alive = [this] { mark(false); };
    const auto open = [&](const SignOfLife& sign) {
      open_.lock([this] { check_run_folder(options_.folder, options_.resume); });
      if (!run::list_checkpoints(options_.folder).empty()) found = find_checkpoint(sign);
    };
    run::on_root_for_long(trainer_.comm(), open, alive);
    const bool goes_on = trainer_.comm().flag_any(found.file.has_value());
    if (goes_on) {
      alive();
      std::optional<MarkedSource> file;
      if (found.file) file.emplace(*found.file, alive);
      trainer_.load(file ? &*file : nullptr);
    } else {
      trainer_.share();
    }
    on_root([&] { open_files(found); });
    // From here on the folder says what run it is, however soon it is killed; and a disk that is too small is told at once.
    if (trainer_.comm().flag_any(!goes_on || steps_changed_)) write_checkpoint();
    on_root([&] { record_.write_start(); });
  }

  run::FoundCheckpoint find_checkpoint(const SignOfLife& alive) {
    run::FoundCheckpoint found = open_.find_checkpoint(identity_, alive);
    if (!found.file) {
      fail(ErrorKind::data, "no checkpoint in '{}' can be used: {}", options_.folder.string(), fmt::join(found.reasons, "; "));
    }
    const Json state = state_of(found);
    if (const std::uint64_t step = state.value("step", std::uint64_t{0}); step >= options_.steps && !options_.may_be_done) {
      fail_field(ErrorKind::usage, "resume", "the run in {} has its {} steps; more of them need a larger `steps`",
                 options_.folder.string(), step);
    }
    check_steps(state, found.path);
    return found;
  }

  static Json state_of(const run::FoundCheckpoint& found) {
    Json state = Json::parse(found.file->get_metadata(state_key), nullptr, false);
    if (!state.is_object()) fail(ErrorKind::data, "{}: '{}' is not a JSON object", found.path.string(), state_key);
    return state;
  }

  void open_files(const run::FoundCheckpoint& found) {
    std::optional<Json> state;
    if (found.file) {
      state = state_of(found);
      progress_.line(fmt::format("going on from step {} ({})", trainer_.steps(), found.path.string()));
    }
    open_.write_files();
    open_.open_metrics();
    record_.open(state ? &*state : nullptr);
    if (options_.keep_best && result().best_loss && !is_of_step(options_.folder / run::model_name, result().best_step)) {
      progress_.line(
          fmt::format("{} is not that of the best evaluation, after step {}: the best of those to come takes its place",
                      run::model_name, result().best_step));
      result().best_loss.reset();
    }
  }

  // The number of steps decides the learning rates: a run that changes it without being told to would differ from either.
  void check_steps(const Json& state, const fs::path& checkpoint) {
    const std::uint64_t before = state.value("run_steps", options_.steps);  // older checkpoints do not say
    if (before == options_.steps) return;
    if (!options_.may_change_steps) {
      fail(ErrorKind::usage, "steps: {}, but {} was written in a run of {}; expected the same, or the new number as an option",
           options_.steps, checkpoint.string(), before);
    }
    steps_changed_ = true;
    progress_.line(fmt::format("{} steps instead of {}: learning rates from here on are those of a run of {}", options_.steps,
                               before, options_.steps));
  }

  // false: it was given up, since the run is to stop, and a step of many micro-batches may take longer than a machine that is
  // about to vanish has.
  bool step() {
    const Clock::time_point start = Clock::now();
    std::optional<StepReport> report = trainer_.step_unless([this] { return open_.is_stop_asked(); });
    if (!report) return false;
    keep_pace(start, *report);
    if (trainer_.events().is_on()) log_events();
    record_.add(*report);
    if (hooks_.after_step) write(hooks_.after_step(*report, [this] { mark(false); }));
    return true;
  }

  void write(const Json& line) {
    on_root([&] {
      if (line.is_object()) record_.write(line);
    });
  }

  void keep_pace(Clock::time_point start, StepReport& report) {
    if (options_.pace_seconds == 0) return;
    constexpr double slice = 0.05;
    while (true) {
      const double left = options_.pace_seconds - seconds_since(start);
      if (left <= 0 || open_.is_stop_asked()) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, slice)));
      mark(false);
    }
    report.seconds = seconds_since(start);
  }

  void log_events() {
    const std::uint64_t step = trainer_.events().step();
    const StepEvents events = trainer_.events().gather(trainer_.comm());
    on_root([&] { record_.write_events(step, events); });
  }

  void evaluate() {
    if (!hooks_.evaluate) return;
    on_root([&] { record_.write_steps(); });
    Evaluated found = hooks_.evaluate([this] { mark(false); });
    found.more["parameters_hash"] = hash_text(trainer_.parameters_hash());
    bool is_best = false;
    on_root([&] { is_best = record_.write_evaluation(found); });
    if (trainer_.comm().flag_any(is_best) && options_.keep_best) write_model();
  }

  void sample() {
    if (!hooks_.sample) return;
    const Clock::time_point start = Clock::now();
    Json line = hooks_.sample([this] { mark(false); });
    on_root([&] {
      line["event"] = "samples";
      line["step"] = trainer_.steps();
      line["taken_seconds"] = seconds_since(start);
      record_.write(line);
    });
  }

  TensorFile description() const {
    TensorFile description;
    if (hooks_.describe_model) hooks_.describe_model(description);
    return description;
  }

  void write_model() {
    trainer_.averaged([&] {
      trainer_.comm().together([&] {
        trainer_.save_model([&](std::map<std::string, StreamedTensor> tensors) {
          TensorFile described = description();
          described.metadata[run::model_step_key] = fmt::format("{}", trainer_.steps());
          tensors.merge(described.streamed());
          checkpoints_.mark_with(tensors);
          save_streamed(options_.folder / run::model_name, described.metadata, tensors);
        });
      });
    });
  }

  TensorFile describe_state() const {
    TensorFile described = description();
    described.metadata[state_key] = record_.state().dump();
    return described;
  }

  void write_checkpoint() {
    on_root([&] { record_.sync(); });
    checkpoints_.write([this] { return describe_state(); });
  }

  void begin_checkpoint() {
    on_root([&] { record_.sync(); });
    checkpoints_.begin([this] { return describe_state(); });
  }

  void end_checkpoint() {
    const RunCheckpoints::Report report = checkpoints_.end();
    on_root([&] { record_.write_checkpoint(report); });
  }

  void finish() {
    if (checkpoints_.is_under_way()) end_checkpoint();
    on_root([&] { record_.sync(); });
    bool needs_model = false;
    on_root([&] {
      // That of the best evaluation may be missing where a run began with another `keep`.
      needs_model = !options_.keep_best || !result().best_loss || !fs::exists(options_.folder / run::model_name);
    });
    if (trainer_.comm().flag_any(needs_model)) write_model();
    const std::string hash = hash_text(trainer_.parameters_hash());
    on_root([&] { record_.write_result(hash); });
    write_checkpoint();
  }

  Trainer& trainer_;
  const RunOptions& options_;
  const RunHooks& hooks_;
  ProgressSink& progress_;
  run::OpenRun open_{trainer_.comm(), options_, progress_};
  const std::string identity_ = with_version(options_.identity);
  RunRecord record_{trainer_, options_, open_, progress_};
  bool steps_changed_ = false;  // since the checkpoint that the run goes on from
  RunCheckpoints checkpoints_{trainer_, open_, identity_, options_.hold, [this] { mark(false); }};  // the first to go
};

}  // namespace

std::optional<std::uint64_t> step_of_checkpoint(const std::map<std::string, std::string>& metadata) {
  return count_in_state(metadata, "step");
}

bool is_last_checkpoint(const std::map<std::string, std::string>& metadata) {
  const auto step = count_in_state(metadata, "step");
  return step && step == count_in_state(metadata, "run_steps");  // older checkpoints do not say
}

void check_run_folder(const fs::path& folder, bool resume) {
  run::check_folder(folder, resume);
  if (resume && !run::has_run(folder)) fail_field(ErrorKind::usage, "resume", "there is no run in {}", folder.string());
}

RunResult run(Trainer& trainer, const RunOptions& options, const RunHooks& hooks, ProgressSink& progress) {
  if (options.steps == 0) fail_field(ErrorKind::usage, "steps", "0; expected at least 1");
  if (options.log_every == 0) fail_field(ErrorKind::usage, "log_every", "0; expected at least 1");
  return Run(trainer, options, hooks, progress).execute();
}

void run_after(Trainer& trainer, const RunOptions& options, const RunHooks& hooks, ProgressSink& progress) {
  run::OpenRun open(trainer.comm(), options, progress);
  run::on_root(trainer.comm(), [&] {
    open.lock([&] { check_run_folder(options.folder, options.resume); });
    open.open_metrics();
    progress.line(fmt::format("the run in {} has its steps, but was broken off before its end", options.folder.string()));
  });
  open.mark(0, options.steps, true);
  const Json line = hooks.after([&] { open.mark(0, options.steps, false); });
  run::on_root(trainer.comm(), [&] {
    if (line.is_object()) open.metrics().write(line);
    open.metrics().sync();
  });
}

}  // namespace bitloom::train
