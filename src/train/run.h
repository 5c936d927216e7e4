// A training run in a folder: steps until there are enough, evaluation now and then, metrics, checkpoints, progress, and an
// end at any moment that another process goes on from, bit by bit.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/progress.h"
#include "core/safetensors.h"
#include "run/open_run.h"
#include "train/trainer.h"

namespace bitloom::train {

// Tests: RunOptions::hold and this is the name of a file that holds the writing of a checkpoint beside training, by its step.
inline constexpr const char* held_writing = ".writing";

struct RunOptions : run::Options {
  std::uint64_t steps = 0;           // in all
  bool may_be_done = false;          // a run to resume may have all of them
  bool may_change_steps = false;     // a run that goes on may have others than it began with
  std::uint64_t evaluate_every = 0;  // steps between evaluations; 0: at the end alone
  std::uint64_t sample_every = 0;    // steps between calls of RunHooks::sample, and at the end; 0: none
  std::uint64_t log_every = 10;      // steps that a line of metrics.jsonl sums up
  bool keep_best = true;             // the model is that of the best evaluation, not of the last step
  std::string identity;              // a JSON object; a checkpoint of a run with another is refused
  nlohmann::json start;              // what the metrics' first line has besides the time
  std::string unit = "targets";      // what progress counts: "tokens"
  double operations_per_target = 0;  // floating-point operations of forward and backward passes; 0: unknown
  double peak_operations = 0;        // that the machine has per second, as measured; 0: unknown
};

// A net's quality on a validation set.
struct Evaluated {
  Loss loss;
  std::optional<double> accuracy;  // share of examples, where there is such a thing
  nlohmann::json more = {};        // that the evaluation's line of metrics has besides, an object or none
  std::string text = {};           // of it, for people
};

// Called now and then during what takes long: a sign of life, without which a supervisor takes the run for hanging.
using SignOfLife = std::function<void()>;

struct RunHooks {
  // Called on all ranks with the number of steps done, before this process makes any. May be none.
  std::function<void(std::uint64_t step)> begin;
  // Hooks of whatever else moves the parameters, beside training by itself (local/local_steps.h); may be none. join: before
  // `begin`, for what others have done already; after_step: gives a line of metrics, null for none; leave: when the run is
  // asked to stop.
  std::function<void(const SignOfLife&)> join;
  std::function<nlohmann::json(const StepReport&, const SignOfLife&)> after_step;
  std::function<void(const SignOfLife&)> leave;
  std::function<Evaluated(const SignOfLife&)> evaluate;  // may be none; on all ranks or none
  // Called on all ranks, behind the step's evaluation if there is one, to show what the net does by then: rank 0 gives what the
  // line of metrics has besides, an object. A run that goes on from a checkpoint calls it again for later steps, whose lines
  // are gone. May be none.
  std::function<nlohmann::json(const SignOfLife&)> sample;
  // Called on all ranks once the model and everything else is written, before the run's folder is let go: rank 0 gives a last
  // line of metrics, null for none. May be none.
  std::function<nlohmann::json(const SignOfLife&)> after;
  // Adds what makes parameters a model that can be read: kind, architecture, tokenizer. May be none.
  std::function<void(TensorFile&)> describe_model;
  std::shared_ptr<void> owned;  // what some of them refer to and nobody else keeps
};

struct RunResult {
  std::uint64_t steps = 0;
  std::uint64_t targets = 0;            // trained on, in all processes of the run
  double seconds = 0;                   // of training, over all resumptions
  std::optional<double> training_loss;  // of the last line of metrics, if this process has made steps
  std::optional<double> last_loss;      // of the last evaluation
  std::optional<double> best_loss;
  std::optional<double> last_accuracy, best_accuracy;  // where evaluations have one: best is that of the best loss
  std::uint64_t best_step = 0;                         // steps done at the best evaluation
  std::uint64_t memory_bytes = 0;                      // of tensors, at most
};

// Steps done when a checkpoint was written, by its metadata; none for the metadata of other files.
std::optional<std::uint64_t> step_of_checkpoint(const std::map<std::string, std::string>& metadata);
// Whether it has all steps of its run.
bool is_last_checkpoint(const std::map<std::string, std::string>& metadata);

// Checks a folder as run() does, before there is anything to run: Error(usage) for one that holds a run already, or none to
// resume. run() looks again when it has locked the folder.
void check_run_folder(const std::filesystem::path& folder, bool resume);

// Runs. Checkpoints between the first and the last are written while training goes on, one at a time: errors of writing end the
// run after the next step, and whatever ends it waits for the one under way. A line of metrics sums up the steps since the one
// before it, also where the run was stopped between them. Where the trainer has a communicator of several ranks all of them
// call this; rank 0 has the folder, and what evaluate() gives is the same on all of them. Throws Error(usage) for a folder that
// holds a run already, or none to resume, or one that has all its steps, or was begun with other options or another number of
// steps; Error(interrupted) when stop says so, with a checkpoint written, after the step under way or, in a process alone,
// without it (Trainer::step_unless()); Error(io) for a full disk, with the last good checkpoint and model left as they were,
// and for a folder that was deleted meanwhile; and what Trainer::step() throws.
RunResult run(Trainer& trainer, const RunOptions& options, const RunHooks& hooks, ProgressSink& progress);

// Calls RunHooks::after alone, which is there, for a run that has its result but was broken off then, and adds its line to the
// metrics. Throws Error(usage) for a folder without a run, Error(busy), Error(io), and what `after` throws.
void run_after(Trainer& trainer, const RunOptions& options, const RunHooks& hooks, ProgressSink& progress);

}  // namespace bitloom::train
