// How stages are trained: what a run sets for all of them, and what the net sets for one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "data/augment.h"
#include "layerwise/layer_trainer.h"
#include "layerwise/net.h"
#include "layerwise/stage_inputs.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::layerwise {

struct TrainOptions {
  std::size_t batch = 128;  // images per update, over all ranks
  std::uint64_t seed = 1;
  data::Augment augment;
  std::size_t augment_copies = 0;     // fixed augmented copies of each image, used in turn; 0: a fresh one at every epoch
  std::string signal = "window";      // window (first order, in bits) or exact (the loss change of every flip)
  double head_learning_rate = 0.002;  // Adam's, for heads; see Head::update
  double head_decay = 0;              // decoupled weight decay of heads
  double head_dropout = 0;            // probability that a head's feature is left out of a training image
  double label_smoothing = 0;
  double teacher_share = 0;             // share of heads' targets that the training set's soft labels have (data/soft_labels.h)
  double final_rate = 0.01;             // share of the learning rates at the end of a stage (cosine)
  std::size_t warmup_steps = 300;       // only heads learn; at most a tenth of the stage
  std::size_t head_warmup_steps = 500;  // the heads' learning rate rises to its value; at most a fifth of the stage
  std::size_t repeat = 1;               // updates in a row on the same minibatch
  // With `repeat`: layers of which at most this share of channels changed are convolved in part (count_cache.h); below 0: none.
  // bench/repeat.cpp: with two updates in a row it pays up to about a fifth, with many up to a half.
  double counts_limit = 0.2;
  std::size_t workers = 1;        // logical workers, who share the images (workers.h)
  bool sparse = false;            // they exchange sparse messages instead of whole sums
  mpi::ExchangeOptions exchange;  // with `sparse`
  mpi::ErrorFeedbackPlace error_feedback_place;
  double head_threshold_scale = 2;   // mpi::FeedbackVector::threshold_scale of heads; that of weights is 1
  double bias_threshold_scale = 10;  // the same of channels' thresholds and heads' biases
  LayerOptions layer;

  InputOptions input() const { return {seed, augment, augment_copies}; }
};

// An option that is a real number: its name, where it is kept, low <= value <= high (`open`: low < value).
struct RealOption {
  const char* group;  // group in the command's help
  const char* name;   // "smallest_offset", as net files write it
  double& (*of)(TrainOptions& options);
  double low, high;
  bool open;
  const char* description;
};
std::span<const RealOption> real_options();

// Throws a usage error that begins with `where` if a stage cannot set `name` (as net files write it) to `value`.
void check_stage_option(const std::string& where, const std::string& name, double value);

bool is_stage_option(const std::string& name);

// The value of such an option.
double value_of(TrainOptions options, const std::string& name);

// Options of a stage: the run's, but for those that the net sets. Muon or second moments of a net give way to the other one
// where the run asks for it, and its Muon to other rules than accumulate, to the exact signal and to frozen weights.
TrainOptions for_stage(TrainOptions options, const StageSpec& stage);

// The text that decides whether a checkpoint and a run's options belong together, and (hashed with the stages below) whether a
// trained stage can be reused: everything that the result depends on, nothing else.
std::string describe(const TrainOptions& options);

}  // namespace bitloom::layerwise
