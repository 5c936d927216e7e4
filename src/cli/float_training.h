// The frame of the commands that train float models, from the command line to the summary. A kind of model adds its part: a net
// and its data, how it is evaluated, what is said of it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "cli/command.h"
#include "cli/float_options.h"
#include "cli/options.h"
#include "cli/system.h"
#include "mpi/grid.h"
#include "nn/engine.h"
#include "train/session.h"

namespace bitloom::cli {

// An option without which a command has nothing to train on.
struct NeededOption {
  const char* name;  // "--data"
  const std::string& value;
  const char* expected;
};

// Reads the options of a training, those of the run too if it goes on, and prepares the process: threads, signals. A run
// without a folder gets one that is called like `net`. Returns none if --help was given, which is shown then. Throws
// Error(usage).
std::optional<Threads> begin_training(Session& session, std::span<const std::string> args, Options& options,
                                      FloatSettings& settings, const std::string& net, std::span<const NeededOption> needed);

// A kind's part of a training. Called on all ranks, unless it says otherwise.
class TrainedModel {
 public:
  struct Traits {
    const char* kind;                              // one of models/model_kind.h, also the command's
    const char* examples;                          // of which batches consist: "pairs"
    const char* targets;                           // that a run counts: "image tokens"
    const char* speed;                             // unit of targets per second: "tokens/s"
    const char* loss_unit;                         // "nats per token"
    const char* savers;                            // what takes less memory
    const char* next;                              // commands for it; {0}: the run's folder, {1}: see holds_back()
    std::string (*option_of)(const std::string&);  // the option that sets a field of the identity
    std::uint64_t evaluations = 20;                // of a run, unless --evaluate-every says otherwise
  };

  // All but the threads outlive it.
  TrainedModel(const Traits& traits, Session& session, const FloatSettings& settings, const Options& options,
               const Threads& threads);
  TrainedModel(const TrainedModel&) = delete;
  TrainedModel& operator=(const TrainedModel&) = delete;
  virtual ~TrainedModel() = default;

  // All but the number of micro-batches.
  virtual train::TrainOptions train_options() const = 0;
  virtual std::uint64_t steps() const = 0;
  // All processes are data-parallel, unless a kind knows others.
  virtual train::Layout layout();
  // Examples at once of a process's share of the batch, for which there are `memory` bytes.
  virtual std::size_t choose_micro_batch(std::size_t share, std::uint64_t memory) = 0;
  // The memory that some examples at once are predicted to take.
  virtual std::string memory_text(std::size_t examples) = 0;
  virtual std::unique_ptr<train::Task> make_task(std::size_t examples) = 0;
  // Whether the processes that train together begin with other values than a trainer's random ones.
  virtual bool has_initial_values() const;
  // On the first of them alone. Throws Error(data) where --init is another net.
  virtual std::unique_ptr<TensorSource> initial_values() = 0;
  // The run folder of this process, which may be a part of the training's.
  virtual std::string run_folder() const;

  // Adds the identity, the operations per target and, to what the metrics begin with, what is the kind's own.
  virtual void describe(train::RunOptions& run) = 0;
  // Says what is trained; peak: operations per second.
  virtual void announce(double peak) = 0;
  // progress outlives the run.
  virtual void add_hooks(train::RunOptions& run, train::RunHooks& hooks, ProgressSink& progress) = 0;
  // Whether examples are held back, which some commands for it look at by themselves; others get --split all.
  virtual bool holds_back() const { return true; }
  // Lets rank 0 alone sum up what was trained.
  virtual void sum_up(const std::function<void()>& summary);
  // On rank 0 alone: lines of the summary on the model's quality.
  virtual void summarise(const train::RunResult& result) = 0;

 protected:
  Session& session() const { return session_; }
  nn::Engine& engine() { return engine_; }
  DType values() const { return values_; }
  // Examples at once of the run that goes on, 0 if none does; from FloatTraining's making on, 0 before.
  std::size_t micro_batch_before() const { return micro_batch_before_; }
  // The same with --micro-batch auto, where they divide a process's share of the batch: with as many at once a run goes on to
  // the same bits, however much memory is free by then. 0 elsewhere.
  std::size_t kept_micro_batch(std::size_t share) const;
  // While FloatTraining trains it.
  train::Session& training() { return *training_; }
  std::size_t micro_batch() const { return training_->micro_batch(); }
  // Also while it makes the trainer.
  bool is_evaluating() const { return training_ != nullptr && training_->evaluates(); }

 private:
  friend class FloatTraining;

  // Collective.
  std::size_t read_micro_batch_before() const;

  const Traits& traits_;
  Session& session_;
  const FloatSettings& settings_;
  const Options& options_;
  Threads threads_;
  nn::Engine engine_;
  DType values_;
  std::optional<mpi::Grid> grid_;  // of layout()
  std::size_t micro_batch_before_ = 0;
  train::Session* training_ = nullptr;
};

class FloatTraining {
 public:
  // Collective: divides the batch, makes the task and gives the net its values. The model outlives this. Throws Error(usage)
  // for shards in a new run that has one data-parallel process, unless `launch` started it.
  explicit FloatTraining(TrainedModel& model);

  // Collective: announces the run, which it makes, and sums it up.
  void run();
  // Collective: only what comes after the run in its folder, which was broken off there (train::run_after()).
  void run_after();

 private:
  void require_shared_shards(const train::Layout& layout) const;
  // Say what a run may not expect: other bits than those of the run that it goes on with, and effects of processes that are not
  // there.
  void note_other_micro_batch() const;
  void note_lone_process() const;
  train::RunOptions run_options();
  // Calls f with the hooks of the run, between all that every process of it does before and after.
  void with_hooks(train::RunOptions& options, const std::function<void(const train::RunHooks&, ProgressSink&)>& f);
  void summarise(const train::RunResult& result);

  TrainedModel& model_;
  std::unique_ptr<train::Session> training_;
};

}  // namespace bitloom::cli
