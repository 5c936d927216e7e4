// The messages of an epoch: their bytes and times for metrics and people, against what was asked for and what was planned.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/progress.h"
#include "layerwise/stage.h"
#include "layerwise/trainer.h"
#include "mpi/comm.h"

namespace bitloom::layerwise {

class ExchangeReport {
 public:
  // All of them outlive this.
  ExchangeReport(mpi::Comm& comm, const TrainOptions& train, const Stage& stage, ProgressSink& progress)
      : comm_(comm), train_(train), stage_(stage), progress_(progress) {}

  // Collective: the cost of the epoch's sparse messages, of which `epoch` has this rank's part; null but at rank 0. Adds the
  // main figures to `text`.
  nlohmann::json sum_up(const StepResult& epoch, std::string& text) const;

  // Says so if messages are longer than asked for, by what sum_up() gave: statistics do not follow the number, and thresholds
  // have an end.
  void check_budget(const nlohmann::json& exchange) const;

  // Collective. Throws Error(data) on all ranks if the messages are not what the plan said. Initial sums of a stage, and those
  // of evaluations, are not among them. dense_sent: the largest number of bytes that this rank put into the sums of a step.
  void check_plan(const nlohmann::json& exchange, const PlannedBytes& planned, std::uint64_t dense_sent) const;

 private:
  mpi::Comm& comm_;
  const TrainOptions& train_;
  const Stage& stage_;
  ProgressSink& progress_;
};

}  // namespace bitloom::layerwise
