// Updates of a stage of training as a cluster would make them, in one process: every logical worker computes on its own images,
// filters, encodes; messages are merged along the cluster's tree; the root chooses flips; all by the code of real runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/progress.h"
#include "data/dataset.h"
#include "layerwise/model.h"
#include "layerwise/net.h"
#include "layerwise/train_options.h"
#include "plan/virtual_tree.h"
#include "simd/kernels.h"

namespace bitloom::plan {

struct VirtualOptions {
  layerwise::NetSpec net;
  std::string stage;               // name of the net's stage; empty: the first
  layerwise::TrainOptions train;   // `sparse`, with workers and batch; of the stage where the net sets them
  std::size_t ranks = 1;           // number of ranks that share the workers
  std::size_t updates = 20;        // a stage with fewer is made longer
  std::uint64_t memory_limit = 0;  // limit on the bytes that workers keep; 0: no limit
};

struct VirtualUpdate {
  std::uint64_t worker_bytes = 0;  // bytes of all workers, before any were merged
  std::uint64_t reply_bytes = 0;
  std::vector<std::uint64_t> level_bytes;  // sent up, by level; level 0 is the root
  bool statistics = false;                 // whether it carries them
  bool learns = false;                     // whether all learns, not heads alone
  std::size_t flips = 0;
  double loss = 0, accuracy = 0;  // per image, of the stage's last head
  double seconds = 0;
};

// The bytes of a message, on average over updates with and without statistics as often as these come.
struct MessageLength {
  double measured = 0;  // in the updates made here, in which thresholds may not have settled
  // In a run, once they have: the budget if there is one, or a worker's statistics and totals where these, which no threshold
  // moves, have more.
  double expected = 0;
  bool follows_budget = false;
};

struct VirtualResult {
  std::vector<VirtualUpdate> updates;
  std::vector<LevelTraffic> levels;  // sums over the updates in which all learns, which `counted` counts
  std::size_t counted = 0;
  MessageLength up, down;                      // lengths of a worker's message and of a reply
  double budget = 0;                           // SparseExchange::budget of an update in which all learns
  std::map<std::string, double> by_part;       // bytes of a worker's message, in counted updates: weights, thresholds, ...
  std::vector<MergedMessage> merging;          // as expected
  double dense_f32_bytes = 0;                  // bytes of a worker's gradients as 32-bit floats
  double dense_bytes = 0;                      // bytes that a rank puts into dense sums here
  std::map<std::string, std::size_t> weights;  // one-bit weights that learn, by layer
  // Seconds: of a worker's computing, and its filtering and encoding; of the root's choosing; of a rank's applying a reply.
  double compute = 0, encode = 0, choose = 0, apply = 0;
  double merge_per_byte = 0;               // time per byte of a message that is merged
  std::uint64_t error_feedback_bytes = 0;  // bytes of one worker
  std::uint64_t peak_memory = 0;           // bytes of this process
  std::uint64_t message_bytes = 0;         // bytes of that for messages
  std::size_t images = 0;                  // per update
  double total_updates = 0;                // updates of the stage, on the images that there are
};

// Layers below the stage are as `lower` has them, if it is not null; otherwise their weights are random. Images are used again
// where workers are more than these. Throws Error(usage) for what cannot be, such as a stage that is not there or too much
// memory.
VirtualResult run_virtual(const simd::Kernels& kernels, const VirtualOptions& options, const data::Dataset& train,
                          const layerwise::Model* lower, ProgressSink& progress);

}  // namespace bitloom::plan
