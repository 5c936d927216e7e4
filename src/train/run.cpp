#include "train/run.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "core/field.h"
#include "core/file.h"
#include "core/file_state.h"
#include "core/hold.h"
#include "core/metrics.h"
#include "core/progress_file.h"
#include "core/utc.h"
#include "run/checkpoints.h"
#include "run/folder.h"
#include "train/run_checkpoints.h"
#include "train/run_interval.h"

namespace bitloom::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Metadata of checkpoints.
constexpr const char* state_key = "bitloom.run";
// Part of a run's identity; to be raised when a run that goes on from an older checkpoint would be another run.
constexpr const char* checkpoint_version = "checkpoints of floats 2";

// `described`: a JSON object, what the caller's run depends on.
std::string with_version(const std::string& described) {
  Json identity = Json::parse(described, nullptr, false);
  if (!identity.is_object()) identity = Json{{"identity", described}};
  identity["version"] = checkpoint_version;
  return identity.dump();
}

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
    started_ = Clock::now();
    while (trainer_.steps() < options_.steps) {
      if (trainer_.comm().is_root()) {
        wait_while_held(options_.hold, trainer_.steps(), [&] {
          mark(false);
          return !options_.stop || !options_.stop();
        });
      }
      step();
      // The first of this process is what is waited for after a restart.
      mark(trainer_.steps() == first + 1);
      const bool last = trainer_.steps() == options_.steps;
      if (last || trainer_.steps() % options_.log_every == 0) on_root([&] { log(); });
      const auto is_due = [&](std::uint64_t every) { return every != 0 && trainer_.steps() % every == 0; };
      if (last || is_due(options_.evaluate_every)) evaluate();
      if (is_due(options_.sample_every) || (last && options_.sample_every != 0)) sample();
      if (last) continue;
      const Requests requests = share_requests();
      if (requests.written || (requests.stop && checkpoints_.is_under_way())) end_checkpoint();
      if (requests.stop) {
        if (hooks_.leave) hooks_.leave();
        write_checkpoint();
        fail(ErrorKind::interrupted, "stopped after step {} of {}", trainer_.steps(), options_.steps);
      }
      if (requests.checkpoint) begin_checkpoint();
    }
    result_.steps = trainer_.steps() - first;
    finish();
    if (hooks_.after) hooks_.after([this] { mark(false); });
    return result_;
  }

 private:
  struct Requests {
    bool stop = false;        // of any rank
    bool checkpoint = false;  // of rank 0, by its clock
    bool written = false;     // the checkpoint before is, at rank 0
  };
  Requests share_requests() {
    std::array<std::int64_t, 3> requests = {options_.stop && options_.stop(), checkpoints_.is_due(options_.checkpoint_seconds),
                                            checkpoints_.is_written()};
    trainer_.comm().max(requests);
    return {requests[0] != 0, requests[1] != 0, requests[2] != 0};
  }

  template <typename F>
  void on_root(F&& f) {
    run::on_root(trainer_.comm(), std::forward<F>(f));
  }

  void mark(bool now) {
    if (trainer_.comm().is_root()) progress_file_.mark(0, trainer_.steps(), now);
  }

  // A checkpoint comes first and the model last: where both are there, the run has all its steps.
  void begin() {
    run::FoundCheckpoint found;
    on_root([&] {
      lock_ = std::make_unique<FileLock>(run::claim_folder(options_.folder, options_.resume));
      check_run_folder(options_.folder, options_.resume);
      checkpoints_.open(options_.folder, options_.resume);
      if (!run::list_checkpoints(options_.folder).empty()) found = find_checkpoint();
    });
    const bool goes_on = trainer_.comm().flag_any(found.file.has_value());
    if (goes_on) {
      trainer_.load(found.file ? &*found.file : nullptr);
    } else {
      trainer_.share();
    }
    on_root([&] { open_files(found); });
    // From here on the folder says what run it is, however soon it is killed; and a disk that is too small is told at once.
    if (trainer_.comm().flag_any(!goes_on || steps_changed_)) write_checkpoint();
    on_root([&] {
      Json start = options_.start;
      start["event"] = "start";
      start["time"] = utc_now();
      start["step"] = trainer_.steps();
      start["steps"] = options_.steps;
      metrics_->write(start);
    });
  }

  run::FoundCheckpoint find_checkpoint() {
    run::FoundCheckpoint found = run::find_checkpoint(options_.folder);
    for (const std::string& reason : found.reasons) progress_.line(fmt::format("{}; trying the one before", reason));
    if (!found.file) {
      fail(ErrorKind::data, "no checkpoint in '{}' can be used: {}", options_.folder.string(), fmt::join(found.reasons, "; "));
    }
    run::set_aside(found.damaged);
    run::require_identity(found.file->metadata, found.path, identity_, options_.field_name);
    const Json state = state_of(found);
    check_steps(state, found.path);
    if (const std::uint64_t step = state.value("step", std::uint64_t{0}); step >= options_.steps) {
      fail_field(ErrorKind::usage, "resume", "the run in {} has its {} steps; more of them need a larger `steps`",
                 options_.folder.string(), step);
    }
    return found;
  }

  static Json state_of(const run::FoundCheckpoint& found) {
    Json state = Json::parse(found.file->get_metadata(state_key), nullptr, false);
    if (!state.is_object()) fail(ErrorKind::data, "{}: '{}' is not a JSON object", found.path.string(), state_key);
    return state;
  }

  void open_files(const run::FoundCheckpoint& found) {
    const std::uint64_t metrics_size = found.file ? go_on_from(found) : 0;
    for (const auto& [name, text] : options_.files) write_atomically(options_.folder / name, text);
    metrics_ = std::make_unique<MetricsWriter>(options_.folder / run::metrics_name);
    metrics_->truncate_to(metrics_size);
    if (const fs::path events = options_.folder / run::events_name; fs::exists(events)) {
      events_.emplace(events);
      events_->truncate_to(found.file ? state_of(found).value("events_size", std::uint64_t{0}) : 0);
    }
  }

  // Gives the size of the metrics at that time.
  std::uint64_t go_on_from(const run::FoundCheckpoint& found) {
    const Json state = state_of(found);
    result_.targets = state.value("targets", std::uint64_t{0});
    result_.seconds = state.value("seconds", 0.0);
    if (state.contains("best_loss")) {
      result_.best_loss = state["best_loss"].get<double>();
      result_.best_step = state.value("best_step", std::uint64_t{0});
      if (state.contains("best_accuracy")) result_.best_accuracy = state["best_accuracy"].get<double>();
    }
    if (const auto interval = state.find("interval"); interval != state.end()) interval_ = interval_of(*interval);
    earlier_seconds_ = result_.seconds;
    progress_.line(fmt::format("going on from step {} ({})", trainer_.steps(), found.path.string()));
    return state.value("metrics_size", std::uint64_t{0});
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

  void step() {
    const Clock::time_point start = Clock::now();
    StepReport report = trainer_.step();
    keep_pace(start, report);
    if (trainer_.events().is_on()) log_events();
    result_.targets += report.targets;
    interval_.add(report);
    show(report);
    if (!hooks_.after_step) return;
    const Json line = hooks_.after_step(report, [this] { mark(false); });
    on_root([&] {
      if (line.is_object()) metrics_->write(line);
    });
  }

  void keep_pace(Clock::time_point start, StepReport& report) {
    if (options_.pace_seconds == 0) return;
    constexpr double slice = 0.05;
    while (true) {
      const double left = options_.pace_seconds - seconds_since(start);
      if (left <= 0 || (options_.stop && options_.stop())) break;
      std::this_thread::sleep_for(std::chrono::duration<double>(std::min(left, slice)));
      mark(false);
    }
    report.seconds = seconds_since(start);
  }

  void log_events() {
    const std::uint64_t step = trainer_.events().step();
    const StepEvents events = trainer_.events().gather(trainer_.comm());
    on_root([&] {
      if (!events_) events_.emplace(options_.folder / run::events_name);
      for (const Json& line : to_json(step, events)) events_->write(line);
    });
  }

  double elapsed() const { return earlier_seconds_ + seconds_since(started_); }

  std::string rate_text(std::uint64_t targets, double seconds) const {
    const double rate = static_cast<double>(targets) / std::max(seconds, 1e-9);
    std::string text = fmt::format("{} {}/s", format_count(static_cast<std::uint64_t>(rate)), options_.unit);
    if (options_.operations_per_target > 0 && options_.peak_operations > 0) {
      text +=
          fmt::format(", {:.0f}% of the matmul peak", 100 * rate * options_.operations_per_target / options_.peak_operations);
    }
    return text;
  }

  void show(const StepReport& report) {
    // Of this process, without evaluations: what is to come takes as long.
    training_seconds_ += report.seconds;
    ++steps_here_;
    const double left =
        training_seconds_ / static_cast<double>(steps_here_) * static_cast<double>(options_.steps - trainer_.steps());
    progress_.update(fmt::format("step {}/{}: loss {:.4f}, learning rate {:.3g}, gradient norm {:.2f}, {}, ends in {}",
                                 trainer_.steps(), options_.steps, report.loss, report.rate, report.gradient_norm,
                                 rate_text(report.targets, report.seconds), format_duration(left)));
  }

  void log() {
    if (interval_.targets == 0) return;
    result_.training_loss = interval_.loss / static_cast<double>(interval_.targets);
    Json line = interval_.line(trainer_.comm().size() > 1);
    line["event"] = "step";
    line["step"] = trainer_.steps();
    line["targets"] = result_.targets;
    line["seconds"] = elapsed();
    line["memory_bytes"] = trainer_.engine().pool().total().peak;
    metrics_->write(line);
    interval_ = {};
  }

  void evaluate() {
    if (!hooks_.evaluate) return;
    on_root([&] { log(); });
    const Evaluated found = hooks_.evaluate([this] { mark(false); });
    bool is_best = false;
    on_root([&] { is_best = record(found); });
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
      metrics_->write(line);
    });
  }

  // Returns whether there was none better.
  bool record(const Evaluated& found) {
    const Loss& loss = found.loss;
    const double mean = loss.sum / static_cast<double>(std::max<std::uint64_t>(loss.count, 1));
    result_.last_loss = mean;
    result_.last_accuracy = found.accuracy;
    const bool best = !result_.best_loss || mean < *result_.best_loss;
    Json line = {
        {"event", "evaluation"}, {"step", trainer_.steps()}, {"loss", mean}, {"targets", loss.count}, {"seconds", elapsed()}};
    if (found.accuracy) line["accuracy"] = *found.accuracy;
    if (found.more.is_object()) line.update(found.more);
    metrics_->write(line);
    std::string accuracy = found.accuracy ? fmt::format(", accuracy {:.2f}%", 100 * *found.accuracy) : "";
    if (!found.text.empty()) accuracy += ", " + found.text;
    progress_.line(fmt::format("step {}/{}: training loss {:.4f}, validation loss {:.4f}{}{}, {}", trainer_.steps(),
                               options_.steps, result_.training_loss, mean, accuracy, best ? "" : " (not the best)",
                               rate_text(result_.targets, elapsed())));
    if (!best) return false;
    result_.best_loss = mean;
    result_.best_accuracy = found.accuracy;
    result_.best_step = trainer_.steps();
    return true;
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
          const TensorFile described = description();
          tensors.merge(described.streamed());
          checkpoints_.mark_with(tensors);
          save_streamed(options_.folder / run::model_name, described.metadata, tensors);
        });
      });
    });
  }

  void sync_metrics() {
    on_root([&] {
      metrics_->sync();  // which is an error where the folder was deleted or replaced
      if (events_) events_->sync();
    });
  }

  TensorFile describe_state() const {
    TensorFile described = description();
    described.metadata[state_key] = run_state();
    return described;
  }

  void write_checkpoint() {
    sync_metrics();
    checkpoints_.write([this] { return describe_state(); });
  }

  void begin_checkpoint() {
    sync_metrics();
    checkpoints_.begin([this] { return describe_state(); });
  }

  void end_checkpoint() {
    const RunCheckpoints::Report report = checkpoints_.end();
    on_root([&] {
      metrics_->write({{"event", "checkpoint"},
                       {"step", report.step},
                       {"held_seconds", report.held_seconds},
                       {"writing_seconds", report.writing_seconds}});
      if (std::exchange(told_of_checkpoint_, true)) return;
      progress_.line(fmt::format("the first checkpoint took {:.2g} s beside training, which it held for {:.2g} s",
                                 report.writing_seconds, report.held_seconds));
    });
  }

  std::string run_state() const {
    Json state = {{"step", trainer_.steps()},         {"targets", result_.targets},  {"seconds", elapsed()},
                  {"metrics_size", metrics_->size()}, {"run_steps", options_.steps}, {"interval", to_json(interval_)}};
    if (events_) state["events_size"] = events_->size();
    if (result_.best_loss) {
      state["best_loss"] = *result_.best_loss;
      state["best_step"] = result_.best_step;
      if (result_.best_accuracy) state["best_accuracy"] = *result_.best_accuracy;
    }
    return state.dump();
  }

  void finish() {
    if (checkpoints_.is_under_way()) end_checkpoint();
    on_root([&] { metrics_->sync(); });
    if (trainer_.comm().flag_any(trainer_.comm().is_root() && (!options_.keep_best || !result_.best_loss))) write_model();
    on_root([&] { write_result(); });
    write_checkpoint();
  }

  void write_result() {
    result_.seconds = elapsed();
    result_.memory_bytes = trainer_.engine().pool().total().peak;
    Json line = {{"event", "result"},
                 {"steps", trainer_.steps()},
                 {"targets", result_.targets},
                 {"seconds", result_.seconds},
                 {"training_loss", result_.training_loss},
                 {"memory_bytes", result_.memory_bytes},
                 {"model_bytes", fs::file_size(options_.folder / run::model_name)}};
    if (result_.last_loss) line["validation_loss"] = *result_.last_loss;
    if (result_.last_accuracy) line["validation_accuracy"] = *result_.last_accuracy;
    if (result_.best_loss) {
      line["best_validation_loss"] = *result_.best_loss;
      line["best_step"] = result_.best_step;
    }
    metrics_->write(line);
  }

  Trainer& trainer_;
  const RunOptions& options_;
  const RunHooks& hooks_;
  ProgressSink& progress_;
  ProgressFile progress_file_{options_.folder, options_.process_name};
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<MetricsWriter> metrics_;
  std::optional<MetricsWriter> events_;  // where steps are logged
  const std::string identity_ = with_version(options_.identity);
  RunResult result_;
  Interval interval_;
  Clock::time_point started_ = Clock::now();
  bool told_of_checkpoint_ = false;
  bool steps_changed_ = false;  // since the checkpoint that the run goes on from
  double earlier_seconds_ = 0;
  double training_seconds_ = 0;
  std::uint64_t steps_here_ = 0;
  RunCheckpoints checkpoints_{trainer_, identity_, options_.hold, [this] { mark(false); }};  // the first to go
};

}  // namespace

std::optional<std::uint64_t> step_of_checkpoint(const std::map<std::string, std::string>& metadata) {
  const auto found = metadata.find(state_key);
  if (found == metadata.end()) return std::nullopt;
  const Json state = Json::parse(found->second, nullptr, false);
  const auto step = state.find("step");
  if (step == state.end() || !step->is_number_unsigned()) return std::nullopt;
  return step->get<std::uint64_t>();
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

}  // namespace bitloom::train
