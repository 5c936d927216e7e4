// A training in local steps (cli/local_options.h) as a part of a run.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/command.h"
#include "cli/float_options.h"
#include "cli/layout_options.h"
#include "cli/local_options.h"
#include "core/differences.h"
#include "core/progress.h"
#include "train/local/group_steps.h"
#include "train/run.h"

namespace bitloom::cli {

// The run that a training in local steps is a part of.
struct LocalRun {
  nlohmann::json model;     // what makes workers' parameters mean the same
  FieldName field_name;     // what users call its fields
  std::size_t targets = 0;  // of a step
  std::uint64_t steps = 0;  // of the whole training
  std::string out;          // the job's run folder
  bool resume = false;      // whether this worker's run goes on
};

// Collective: names this process's worker, and refuses what workers cannot have, layouts and averages. A worker of a job is a
// run of its own, whose folder is new where its machine is: settings get the job's folder, and whether this worker's own run
// goes on. Throws Error(usage).
void settle_local(Session& session, LocalSettings& local, const LayoutSettings& layout, double average,
                  FloatSettings& settings);

class LocalTraining {
 public:
  // Collective. comm and trainer outlive this. Throws Error(usage) where workers do not fit together, and Error(io).
  LocalTraining(mpi::Comm& comm, const LocalSettings& settings, train::Trainer& trainer, LocalRun run, ProgressSink& progress);

  // The same as a part of a run, whose hooks own it.
  static void add_to(train::RunOptions& options, train::RunHooks& hooks, mpi::Comm& comm, const LocalSettings& settings,
                     train::Trainer& trainer, LocalRun run, ProgressSink& progress);

  // Collective, at the end of a job: its first process does what it does alone, and the others wait for it, however long that
  // takes.
  static void end_job(mpi::Comm& comm, const std::function<void()>& alone);

 private:
  // This outlives the run.
  void attach(train::RunOptions& options, train::RunHooks& hooks);
  void make_exchange(mpi::Comm workers, const LocalSettings& settings, const LocalRun& run, bool is_new);

  std::size_t workers_;
  std::filesystem::path kept_;
  bool resume_;
  std::unique_ptr<train::LocalExchange> exchange_;  // of the worker's first process, as are the steps
  std::optional<train::LocalSteps> steps_;
  std::optional<train::GroupSteps> group_;
};

}  // namespace bitloom::cli
