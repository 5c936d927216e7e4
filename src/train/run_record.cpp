#include "train/run_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <utility>

#include "core/field.h"
#include "core/utc.h"
#include "run/folder.h"

namespace bitloom::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// Share of the numbers in messages of 1-6-9. The next steps' messages carry what one lacks, from the error buffers, unless they
// lack as much again.
constexpr double many_clamped = 0.01;
// Steps by whose time it is said whether factors of gradients pay.
constexpr std::uint64_t weighed_steps = 20;

}  // namespace

void RunRecord::open(const Json* state) {
  if (state != nullptr) take(*state);
  open_.metrics().truncate_to(state == nullptr ? 0 : state->value("metrics_size", std::uint64_t{0}));
  if (const fs::path events = options_.folder / run::events_name; fs::exists(events)) {
    events_.emplace(events);
    events_->truncate_to(state == nullptr ? 0 : state->value("events_size", std::uint64_t{0}));
  }
}

void RunRecord::take(const Json& state) {
  result_.targets = state.value("targets", std::uint64_t{0});
  result_.seconds = state.value("seconds", 0.0);
  // Where the model was that of the last step, none is kept of the best evaluation.
  const bool has_best = state.contains("best_loss") && state["best_loss"].is_number();
  if (has_best && (state.value("keep_best", true) || !options_.keep_best)) {
    result_.best_loss = state["best_loss"].get<double>();
    result_.best_step = state.value("best_step", std::uint64_t{0});
    if (state.contains("best_accuracy")) result_.best_accuracy = state["best_accuracy"].get<double>();
  }
  told_of_clamping_ = state.value("told_of_clamping", false);
  if (const auto interval = state.find("interval"); interval != state.end()) interval_ = interval_of(*interval);
  open_.set_earlier(result_.seconds);
}

Json RunRecord::state() const {
  Json state = {{"step", trainer_.steps()},       {"targets", result_.targets},
                {"seconds", open_.elapsed()},     {"metrics_size", open_.metrics().size()},
                {"run_steps", options_.steps},    {"interval", to_json(interval_)},
                {"keep_best", options_.keep_best}};
  if (told_of_clamping_) state["told_of_clamping"] = true;
  if (events_) state["events_size"] = events_->size();
  if (result_.best_loss) {
    state["best_loss"] = *result_.best_loss;
    state["best_step"] = result_.best_step;
    if (result_.best_accuracy) state["best_accuracy"] = *result_.best_accuracy;
  }
  return state;
}

void RunRecord::write_start() {
  Json start = options_.start;
  start["event"] = "start";
  start["time"] = utc_now();
  start["step"] = trainer_.steps();
  start["steps"] = options_.steps;
  open_.metrics().write(start);
}

void RunRecord::add(const StepReport& report) {
  result_.targets += report.targets;
  interval_.add(report);
  show(report);
  weigh_compression(report.compression);
}

// The first step takes longer than others: products are prepared, and other processes begin later.
void RunRecord::weigh_compression(const CompressionTimes& step) {
  if (step.steps == 0 || compression_.steps == weighed_steps || !std::exchange(has_compressed_, true)) return;
  compression_.add(step);
  if (compression_.steps < weighed_steps) return;
  const CompressionTimes mean = mean_over(trainer_.comm(), compression_);
  if (!trainer_.comm().is_root() || !costs_more_than_it_saves(mean)) return;
  const auto milliseconds = [&](double seconds) { return 1e3 * seconds / static_cast<double>(mean.steps); };
  progress_.line(fmt::format(
      "{}: factors of gradients take more time than they save: {:.2f} ms of computing a step, where the {} that they save "
      "would take {:.2f} ms more (sums of {} are waited for {:.2f} ms; means of {} steps). A smaller rank, or 0, may be "
      "faster here",
      marked_field("compress_rank"), milliseconds(mean.computing_seconds),
      format_bytes((mean.whole_bytes - mean.sent_bytes) / mean.steps), milliseconds(saved_seconds(mean)),
      format_bytes(mean.sent_bytes / mean.steps), milliseconds(mean.waiting_seconds), mean.steps));
}

void RunRecord::write(const Json& line) { open_.metrics().write(line); }

void RunRecord::write_events(std::uint64_t step, const StepEvents& events) {
  if (!events_) events_.emplace(options_.folder / run::events_name);
  for (const Json& line : to_json(step, events)) events_->write(line);
}

void RunRecord::sync() {
  open_.metrics().sync();
  if (events_) events_->sync();
}

std::string RunRecord::rate_text(std::uint64_t targets, double seconds) const {
  const double rate = static_cast<double>(targets) / std::max(seconds, 1e-9);
  std::string text = fmt::format("{} {}/s", format_count(static_cast<std::uint64_t>(rate)), options_.unit);
  // More than all of it: the peak was measured while other programs ran, and says nothing.
  if (const double share = rate * options_.operations_per_target / options_.peak_operations; share > 0 && share <= 1) {
    text += fmt::format(", {:.0f}% of the matmul peak", 100 * share);
  }
  return text;
}

void RunRecord::show(const StepReport& report) {
  // Time of this process, without evaluations: steps to come take as long.
  training_seconds_ += report.seconds;
  ++steps_here_;
  const double left =
      training_seconds_ / static_cast<double>(steps_here_) * static_cast<double>(options_.steps - trainer_.steps());
  progress_.update(fmt::format("step {}/{}: loss {:.4f}, learning rate {:.3g}, gradient norm {:.2f}, {}, ends in {}",
                               trainer_.steps(), options_.steps, report.loss, report.rate, report.gradient_norm,
                               rate_text(report.targets, report.seconds), format_duration(left)));
}

void RunRecord::write_steps() {
  if (interval_.targets == 0) return;
  result_.training_loss = interval_.loss / static_cast<double>(interval_.targets);
  Json line = interval_.line(trainer_.comm().size() > 1);
  line["event"] = "step";
  line["step"] = trainer_.steps();
  line["targets"] = result_.targets;
  line["seconds"] = open_.elapsed();
  line["memory_bytes"] = trainer_.engine().pool().total().peak;
  open_.metrics().write(line);
  tell_of_clamping();
  interval_ = {};
}

void RunRecord::tell_of_clamping() {
  const double share = interval_.clamped_share();
  if (share <= many_clamped || std::exchange(told_of_clamping_, true)) return;
  progress_.line(
      fmt::format("step {}/{}: {:.0f}% of the numbers in factors of gradients are beyond 15.98, where {} 1-6-9 ends, and go as "
                  "that, so that gradients arrive late or not at all; f32 holds them",
                  trainer_.steps(), options_.steps, 100 * share, marked_field("compress_format")));
}

bool RunRecord::write_evaluation(const Evaluated& found) {
  const Loss& loss = found.loss;
  const double mean = loss.sum / static_cast<double>(std::max<std::uint64_t>(loss.count, 1));
  result_.last_loss = mean;
  result_.last_accuracy = found.accuracy;
  const bool best = std::isfinite(mean) && (!result_.best_loss || mean < *result_.best_loss);
  Json line = {{"event", "evaluation"},
               {"step", trainer_.steps()},
               {"loss", mean},
               {"targets", loss.count},
               {"seconds", open_.elapsed()}};
  if (found.accuracy) line["accuracy"] = *found.accuracy;
  if (found.more.is_object()) line.update(found.more);
  open_.metrics().write(line);
  std::string accuracy = found.accuracy ? fmt::format(", accuracy {:.2f}%", 100 * *found.accuracy) : "";
  if (!found.text.empty()) accuracy += ", " + found.text;
  const std::string training = result_.training_loss ? fmt::format("training loss {:.4f}, ", *result_.training_loss) : "";
  progress_.line(fmt::format("step {}/{}: {}validation loss {:.4f}{}{}, {}", trainer_.steps(), options_.steps, training, mean,
                             accuracy, best ? "" : " (not the best)", rate_text(result_.targets, open_.elapsed())));
  if (!best) return false;
  result_.best_loss = mean;
  result_.best_accuracy = found.accuracy;
  result_.best_step = trainer_.steps();
  return true;
}

void RunRecord::write_checkpoint(const RunCheckpoints::Report& report) {
  open_.metrics().write({{"event", "checkpoint"},
                         {"step", report.step},
                         {"held_seconds", report.held_seconds},
                         {"writing_seconds", report.writing_seconds}});
  if (std::exchange(told_of_checkpoint_, true)) return;
  progress_.line(fmt::format("the first checkpoint took {:.2g} s beside training, which it held for {:.2g} s",
                             report.writing_seconds, report.held_seconds));
}

void RunRecord::write_result(const std::string& parameters_hash) {
  result_.seconds = open_.elapsed();
  result_.memory_bytes = trainer_.engine().pool().total().peak;
  Json line = {{"event", "result"},
               {"steps", trainer_.steps()},
               {"targets", result_.targets},
               {"seconds", result_.seconds},
               {"memory_bytes", result_.memory_bytes},
               {"model_bytes", fs::file_size(options_.folder / run::model_name)},
               {"parameters_hash", parameters_hash}};
  if (result_.training_loss) line["training_loss"] = *result_.training_loss;
  if (result_.last_loss) line["validation_loss"] = *result_.last_loss;
  if (result_.last_accuracy) line["validation_accuracy"] = *result_.last_accuracy;
  if (result_.best_loss) {
    line["best_validation_loss"] = *result_.best_loss;
    line["best_step"] = result_.best_step;
  }
  open_.metrics().write(line);
}

}  // namespace bitloom::train
