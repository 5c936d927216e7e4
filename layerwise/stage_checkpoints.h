// When and how a run of stages writes its checkpoints: while all wait, or gathered and written while training goes on.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "core/clock.h"
#include "core/progress.h"
#include "core/safetensors.h"
#include "layerwise/stage.h"
#include "mpi/comm.h"
#include "run/open_run.h"

namespace bitloom::layerwise {

class StageCheckpoints {
 public:
  // seconds: between beginnings of checkpoints, at least. describe: called at rank 0 for the file of now, to which tensors that
  // a stage saves are added; null for the stage between stages. The references outlive this.
  using Describe = std::function<TensorFile(const Stage*)>;
  StageCheckpoints(mpi::Comm& comm, run::OpenRun& open, double seconds, Describe describe, ProgressSink& progress)
      : comm_(comm), open_(open), seconds_(seconds), describe_(std::move(describe)), progress_(progress) {}

  // identity: of run::CheckpointWriter.
  void identify(const std::string& identity) { identity_ = identity; }
  // A stage begins.
  void start();

  // Collective: it is on the disk when this returns. Throws what writing it threw: Error(io), for a full disk say.
  void write(Stage* stage);

  // At rank 0, whether to ask the others for one now: it is time, and they were not asked yet. False elsewhere.
  bool ask_if_due();
  // Whether writing one failed at rank 0, which ends the run: the other ranks learn of it with the next step.
  bool has_failed() const { return error_ != nullptr; }
  // On all ranks after the same step: the state of now, which is gathered and written while training goes on.
  void begin(Stage& stage);
  // At rank 0, after a step: goes on with one that is gathered.
  void advance(Stage& stage);
  // Drops one under way: the stage is done.
  void cancel(Stage& stage);

 private:
  TensorFile with_stage(const Stage* stage, TensorFile of_stage) const;
  void end(Stage& stage);

  mpi::Comm& comm_;
  run::OpenRun& open_;
  const double seconds_;
  const Describe describe_;
  ProgressSink& progress_;
  std::string identity_;
  Clock::time_point last_;
  bool asked_ = false;  // with staleness it is some steps until all know
  bool told_ = false;   // of the stage's first one
  // At rank 0: one that other ranks still send parts of; when it began, and how long training waited for it.
  std::optional<TensorFile> unfinished_;
  Clock::time_point unfinished_since_;
  double wait_ = 0;
  double spacing_ = 0;  // seconds between two, at least
  std::exception_ptr error_;
};

}  // namespace bitloom::layerwise
