// Records of a run: lines of its metrics, events and progress, its result so far, and what of these a checkpoint keeps.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/metrics.h"
#include "core/progress.h"
#include "run/open_run.h"
#include "train/run.h"
#include "train/run_checkpoints.h"
#include "train/run_interval.h"

namespace bitloom::train {

// Rank 0 has the files; what the others count of their own is as the interval has it.
class RunRecord {
 public:
  // All of them outlive this.
  RunRecord(Trainer& trainer, const RunOptions& options, run::OpenRun& open, ProgressSink& progress)
      : trainer_(trainer), options_(options), open_(open), progress_(progress) {}

  // At rank 0, once the run has its metrics: without the lines after `state`, that of a checkpoint that the run goes on from.
  void open(const nlohmann::json* state);
  void write_start();

  // Everywhere, after a step.
  void add(const StepReport& report);
  // At rank 0.
  void write(const nlohmann::json& line);
  void write_events(std::uint64_t step, const StepEvents& events);
  void write_steps();                             // those since the last such line
  bool write_evaluation(const Evaluated& found);  // whether there was none better
  void write_checkpoint(const RunCheckpoints::Report& report);
  void write_result(const std::string& parameters_hash);
  // Throws Error(io) where the folder was deleted or replaced.
  void sync();

  // State that open() takes.
  nlohmann::json state() const;
  RunResult& result() { return result_; }

 private:
  std::string rate_text(std::uint64_t targets, double seconds) const;
  void show(const StepReport& report);
  void take(const nlohmann::json& state);
  void tell_of_clamping();
  void weigh_compression(const CompressionTimes& step);

  Trainer& trainer_;
  const RunOptions& options_;
  run::OpenRun& open_;
  ProgressSink& progress_;
  std::optional<MetricsWriter> events_;  // where steps are logged
  RunResult result_;
  Interval interval_;
  bool told_of_checkpoint_ = false;
  bool told_of_clamping_ = false;
  bool has_compressed_ = false;   // in a step of this process
  CompressionTimes compression_;  // of the steps after that, until they are enough
  double training_seconds_ = 0;
  std::uint64_t steps_here_ = 0;
};

}  // namespace bitloom::train
