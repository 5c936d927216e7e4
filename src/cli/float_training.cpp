#include "cli/float_training.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/device.h"
#include "cli/model_source.h"
#include "cli/run_folder.h"
#include "cli/signals.h"
#include "cli/start_up.h"
#include "core/error.h"
#include "core/field.h"
#include "core/version.h"
#include "launch/supervisor.h"

namespace bitloom::cli {

namespace fs = std::filesystem;

std::optional<Threads> begin_training(Session& session, std::span<const std::string> args, Options& options,
                                      FloatSettings& settings, const std::string& net, std::span<const NeededOption> needed) {
  if (!read_with_resume(session, args, options)) return std::nullopt;
  for (const NeededOption& option : needed) {
    if (option.value.empty()) fail(ErrorKind::usage, "{}: missing; expected {}", option.name, option.expected);
  }
  set_watchdog(session.comm, settings.watchdog_seconds);
  if (settings.out.empty()) settings.out = default_folder(net);
  if (options.is_asked_for("init")) settings.init = kept_path(settings.init);  // a run's is as it was kept
  session.on_root([&] { train::check_run_folder(settings.out, settings.resume); });
  const Threads threads = choose_threads(session.comm);
  catch_stop_signals();
  ignore_closed_output();
  return threads;
}

TrainedModel::TrainedModel(const Traits& traits, Session& session, const FloatSettings& settings, const Options& options,
                           const Threads& threads)
    : traits_(traits),
      session_(session),
      settings_(settings),
      options_(options),
      threads_(threads),
      engine_(session.comm.together([&] { return choose_device(settings.device); }), settings.backend),
      values_(choose_dtype(engine_, settings.values)) {}

train::Layout TrainedModel::layout() {
  grid_.emplace(session_.comm, mpi::GridShape{session_.comm.size(), 1, 1});
  train::Layout layout;
  layout.grid = &*grid_;
  return layout;
}

bool TrainedModel::has_initial_values() const { return !settings_.init.empty(); }

std::string TrainedModel::run_folder() const { return settings_.out; }

void TrainedModel::sum_up(const std::function<void()>& summary) { session_.on_root(summary); }

std::size_t TrainedModel::read_micro_batch_before() const {
  std::uint64_t before = 0;
  session_.on_root([&] { before = settings_.resume ? micro_batch_of_run(settings_.out, settings_.batch) : 0; });
  session_.comm.broadcast(std::span<std::uint64_t>(&before, 1));
  return before;
}

std::size_t TrainedModel::kept_micro_batch(std::size_t share) const {
  const bool divides = micro_batch_before_ != 0 && share % micro_batch_before_ == 0;
  return settings_.micro_batch == "auto" && divides ? micro_batch_before_ : 0;
}

namespace {

bool has_lone_shards(const train::Layout& layout) {
  return layout.shard != train::ShardLevel::none && layout.grid->shape().data == 1;
}

// "`shard`: optimizer has no effect ..."
std::string lone_shards_text(const train::Layout& layout) {
  return fmt::format("{}: {} has no effect where no two processes share the data; expected none, or more processes",
                     marked_field("shard"), train::shard_level_names()[static_cast<std::size_t>(layout.shard)]);
}

}  // namespace

FloatTraining::FloatTraining(TrainedModel& model) : model_(model) {
  const FloatSettings& settings = model.settings_;
  nn::Engine& engine = model.engine_;
  limit_memory(engine, settings);
  const std::uint64_t memory = memory_for(settings, model.threads_, engine.device());
  model.micro_batch_before_ = model.read_micro_batch_before();
  train::Session::Options all;
  all.train = model.train_options();
  all.batch = settings.batch;
  const train::Layout layout = model.layout();
  all.choose_micro_batch = [this, layout, memory](std::size_t share) {
    const std::size_t chosen = model_.choose_micro_batch(share, memory);
    require_shared_shards(layout);  // after what the model says of options that are wrong for any number of processes
    return chosen;
  };
  all.memory_hint = [&model](std::size_t examples) {
    return fmt::format("{} {} at once were predicted to take {}; expected {}", examples, model.traits_.examples,
                       model.memory_text(examples), model.traits_.savers);
  };
  all.make_task = [&model](std::size_t examples) { return model.make_task(examples); };
  all.layout = layout;
  training_ = std::make_unique<train::Session>(engine, std::move(all));
  model.training_ = training_.get();
  note_other_micro_batch();
  const bool begins = model.has_initial_values() && !training_->goes_on(model.run_folder(), settings.resume);
  mpi::Comm& comm = training_->trainer().comm();
  std::unique_ptr<TensorSource> values;
  // Where the session is several trainings, all of them end if one has no model to begin with.
  model.session_.comm.together([&] {
    if (begins && comm.is_root()) values = model.initial_values();
  });
  if (begins) training_->trainer().load_model(values.get());
}

// A launched run may have one process for a while, and others later.
void FloatTraining::require_shared_shards(const train::Layout& layout) const {
  const bool may_have_others = model_.settings_.resume || std::getenv(launch::supervised_variable) != nullptr;
  if (has_lone_shards(layout) && !may_have_others) fail(ErrorKind::usage, "{}", lone_shards_text(layout));
}

void FloatTraining::note_other_micro_batch() const {
  const FloatSettings& settings = model_.settings_;
  const std::size_t before = model_.micro_batch_before_;
  if (settings.micro_batch != "auto" || before == 0 || training_->micro_batch() == before) return;
  const std::size_t share = settings.batch / static_cast<std::size_t>(training_->layout().grid->shape().data);
  model_.session_.terminal.note(fmt::format(
      "--micro-batch: auto; the run in {} had {} {} at once, {}: it goes on with {}, to a result like it, not to the same bits",
      settings.out, before, model_.traits_.examples,
      share % before == 0 ? "which are not possible here"
                          : fmt::format("which do not divide a process's share of the batch, {}", share),
      training_->micro_batch()));
}

void FloatTraining::note_lone_process() const {
  const train::Layout& layout = training_->layout();
  Terminal& terminal = model_.session_.terminal;
  if (has_lone_shards(layout)) terminal.note(lone_shards_text(layout));
  if (layout.compress_rank == 0 || layout.grid->shape().data > 1) return;
  terminal.note(
      fmt::format("{}: {} saves no bytes where no two processes share the data; gradients lose what factors of this rank lack "
                  "all the same",
                  marked_field("compress_rank"), layout.compress_rank));
}

train::RunOptions FloatTraining::run_options() {
  const FloatSettings& settings = model_.settings_;
  train::RunOptions run = settings.run_options(model_.options_);
  run.folder = model_.run_folder();
  run.steps = model_.steps();
  run.may_change_steps = model_.options_.is_asked_for("steps");
  if (run.evaluate_every == 0) run.evaluate_every = std::max<std::uint64_t>(1, run.steps / model_.traits_.evaluations);
  run.field_name = model_.traits_.option_of;
  run.unit = model_.traits_.targets;
  model_.describe(run);
  run.peak_operations = measured_peak(model_.engine_, model_.values_, training_->trainer().comm());
  run.start.update({{"version", version},
                    {"command", model_.session_.command_line},
                    {"kind", model_.traits_.kind},
                    {"batch", settings.batch},
                    {"micro_batch", training_->micro_batch()},
                    {"processes", model_.session_.comm.size()},
                    {"dtype", settings.values},
                    {"peak_operations", run.peak_operations}});
  return run;
}

void FloatTraining::with_hooks(train::RunOptions& options,
                               const std::function<void(const train::RunHooks&, ProgressSink&)>& f) {
  Session& session = model_.session_;
  session.continuation = continuation_of(model_.traits_.kind, model_.settings_.out);
  LoggedProgress progress(session.terminal, fs::path(model_.run_folder()) / log_file);
  train::RunHooks hooks;
  model_.add_hooks(options, hooks, progress);
  f(hooks, progress);
  for (const std::string& note : model_.engine_.take_notes()) session.terminal.note(note);
}

void FloatTraining::run() {
  train::RunOptions options = run_options();
  model_.announce(options.peak_operations);
  note_lone_process();
  with_hooks(options, [&](const train::RunHooks& hooks, ProgressSink& progress) {
    const train::RunResult result = training_->run(options, hooks, progress);
    model_.sum_up([&] { summarise(result); });
  });
}

void FloatTraining::run_after() {
  train::RunOptions options = run_options();
  with_hooks(options, [&](const train::RunHooks& hooks, ProgressSink& progress) {
    train::run_after(training_->trainer(), options, hooks, progress);
    model_.sum_up([&] { model_.summarise({}); });
  });
}

void FloatTraining::summarise(const train::RunResult& result) {
  Terminal& terminal = model_.session_.terminal;
  const TrainedModel::Traits& traits = model_.traits_;
  const std::string& folder = model_.settings_.out;
  terminal.print("\ndone in {}: {} {}, {:.0f} {} over all", format_duration(result.seconds), format_count(result.targets),
                 traits.targets, static_cast<double>(result.targets) / std::max(result.seconds, 1e-9), traits.speed);
  if (result.training_loss) terminal.print("  {:<22}{:.4f} {}", "training loss", *result.training_loss, traits.loss_unit);
  model_.summarise(result);
  print_model_and_memory(terminal, folder, model_.engine_, result);
  const char* const part = model_.holds_back() ? "" : " --split all";
  terminal.print("next:\n  {}", fmt::format(fmt::runtime(traits.next), shell_word(folder), part));
}

}  // namespace bitloom::cli
