// The learners of a stage, layers and heads, and the sums over images that they learn from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "layerwise/head.h"
#include "layerwise/layer_trainer.h"
#include "layerwise/stage_setup.h"
#include "layerwise/stage_step.h"

namespace bitloom::layerwise {

// States of weights by layer (LayerTrainer::states).
using WeightStates = std::map<std::string, std::vector<std::int16_t>>;

// Results of earlier stages for the layers that a stage trains again: they keep their weights and, where they are known, these
// weights' states, and their heads start from those that were there.
struct Earlier {
  std::vector<std::string> layers;
  const WeightStates* states = nullptr;
  const std::map<std::string, Head>* heads = nullptr;
};

struct LearningLayer {
  std::size_t index;               // into the net's layers
  std::vector<std::size_t> heads;  // heads that sit on it
  LayerSums sums;
  double active_share = 0;  // when it was last summed
};

struct LearningHead {
  std::size_t layer;  // index into StageLearners::layers
  std::unique_ptr<Head> head;
  Head::Sums sums;
};

struct StageLearners {
  StageLearners(const StageSetup& setup, const Earlier& earlier);

  // Number of images that the totals are of.
  std::size_t images() const { return static_cast<std::size_t>(totals.back()); }
  // Bytes that a rank puts into the sums of a step in which weights learn.
  std::size_t dense_bytes() const;
  // Reports the results of a step's images, now that the sums are those of all ranks. observed: number of images in the
  // layers' statistics; 0 if there are none.
  void report(std::size_t observed, StepResult& result);

  // All that learns.
  void save(TensorFile& file, const StageSpec& spec) const;
  void load(const TensorFile& file, const StageSpec& spec);

  std::vector<std::unique_ptr<LayerTrainer>> trainers;  // by trained layer
  std::vector<LearningLayer> layers;                    // by trained layer
  std::vector<LearningHead> heads;
  // Per head: loss in millionths of nats, correct images; then requests: stop, checkpoint; then images.
  std::vector<std::int64_t> totals;
};

}  // namespace bitloom::layerwise
