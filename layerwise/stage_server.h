// Rank 0's part in a stage with sparse messages: it alone moves accumulators and chooses flips, and its reply to what workers
// sent updates all ranks alike. With staleness it keeps what it chooses by, which is as new as can be, beside what it computes
// with, which is as old as elsewhere. Private to a stage's exchange.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "core/safetensors.h"
#include "layerwise/stage_learners.h"
#include "layerwise/stage_setup.h"
#include "layerwise/update_layout.h"
#include "layerwise/update_schedule.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::layerwise {

class StageServer {
 public:
  // The arguments outlive this.
  StageServer(const StageSetup& setup, const UpdateSchedule& schedule, StageLearners& learners);

  // Whether what it chooses by is its own, beside what this rank computes with.
  bool is_ahead() const { return !ahead_.empty(); }
  // Trained layer t has its first statistics in its sums.
  void take_first_statistics(std::size_t t);
  // The changes that all ranks are to make after the workers' messages of this step; the learners' sums are scratch.
  mpi::Bundle reply_to(mpi::Bundle merged, mpi::SparseExchange& exchange, std::size_t step);

  void save(TensorFile& file) const;
  void load(const TensorFile& file);

 private:
  LayerTrainer& chooser(std::size_t t) { return is_ahead() ? *ahead_[t] : *learners_.trainers[t]; }
  void choose(std::size_t t, mpi::Bundle& merged, mpi::SparseExchange& exchange, std::size_t step, mpi::Bundle& reply);

  const StageSetup& setup_;
  const UpdateSchedule& schedule_;
  StageLearners& learners_;
  const UpdateLayout layout_;
  // With staleness, trained layers as the next reply will leave them, and what trains them.
  std::vector<BinaryLayer> ahead_layers_;
  std::vector<std::unique_ptr<LayerTrainer>> ahead_;
};

}  // namespace bitloom::layerwise
