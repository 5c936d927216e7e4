// The task of a stage: all that stays as it is while it trains, and rates that follow from a step's number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "data/dataset.h"
#include "layerwise/layer.h"
#include "layerwise/net.h"
#include "layerwise/train_options.h"
#include "mpi/comm.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// Throws the usage errors of a stage of `layers` (those of the whole net) that follow from its description and the options
// alone: so that no run finds them when the stages before have been trained.
void check_stage(const StageSpec& spec, const std::vector<BinaryLayer>& layers, const data::Dataset& train,
                 const TrainOptions& options, std::size_t ranks);

struct StageSetup {
  const simd::Kernels& kernels;
  mpi::Comm& comm;
  const StageSpec spec;
  std::vector<BinaryLayer>& layers;  // of the whole net
  const data::Dataset& train;
  const TrainOptions options;
  const std::uint64_t id;   // separates the random streams of stages
  const std::size_t batch;  // number of images in a minibatch

  std::size_t rank() const { return static_cast<std::size_t>(comm.rank()); }
  std::size_t ranks() const { return static_cast<std::size_t>(comm.size()); }

  std::size_t steps_per_epoch() const { return train.size() / batch * options.repeat; }
  std::size_t total_steps() const { return steps_per_epoch() * spec.epochs; }
  // Whether everything learns in a step, not heads alone, and whether weights do.
  bool learns(std::size_t step) const;
  bool learns_weights(std::size_t step) const { return learns(step) && options.layer.learn_weights; }
  double progress(std::size_t step) const;  // 0 at the start of the stage, 1 at its end
  double rate(std::size_t step) const;      // the schedule's share of the learning rates
  double head_rate(std::size_t step) const;
};

// Throws what check_stage() does.
StageSetup make_setup(const simd::Kernels& kernels, mpi::Comm& comm, const StageSpec& spec, std::vector<BinaryLayer>& layers,
                      const data::Dataset& train, const TrainOptions& options, std::uint64_t id);

}  // namespace bitloom::layerwise
