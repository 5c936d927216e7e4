// Needs of a float training on many ranks, from shapes alone: memory, bytes, time of a step, on a grid of data x pipeline x
// tensor ranks (mpi/grid.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "mpi/grid.h"
#include "nn/activation.h"
#include "plan/cluster.h"
#include "plan/float_model.h"
#include "train/parallel/partition.h"
#include "train/trainer.h"

namespace bitloom::plan {

// Layers that are computed again for the backward pass: nothing, blocks from their inputs, or stages from theirs (Huang et al.
// 2019, section 2.3).
enum class Recompute : std::uint8_t { none, block, stage };
std::vector<std::string> recompute_names();
// Throws Error(usage) that names the field `recompute`.
Recompute find_recompute(std::string_view name);

struct FloatOptions {
  std::size_t batch = 1;        // examples of a step
  std::size_t micro_batch = 1;  // examples at once on a rank
  std::string schedule = "1f1b";
  std::size_t chunks = 1;      // parts of the net that a stage has
  train::Partition partition;  // the parts; none: those whose operations are most alike
  train::ShardLevel shard = train::ShardLevel::none;
  std::size_t shard_ranks = 0;  // data ranks, neighbours, that divide that state; 0: all
  // Rank of the factors by which gradients of blocks' matrices go, with error buffers of f32 (train/parallel/power_sgd.h); 0:
  // none.
  std::size_t compress_rank = 0;
  train::FloatFormat compress_format = train::FloatFormat::f32;  // of the factors in messages
  train::FloatFormat compress_errors = train::FloatFormat::f32;  // of the error buffers
  bool compress_warm = false;                                    // train::PowerSgdOptions::warm_start
  Recompute recompute = Recompute::none;
  unsigned activation_bits = 0;  // 0: all
  nn::Quantiser activation_quantiser = nn::Quantiser::few_bit;
  train::TrainOptions train;  // types and optimiser
};

// Ranks are spread over hosts in their order.
struct FloatCluster {
  double flops = 1e11;  // of a rank in products of matrices, per second
  std::size_t ranks_per_host = 1;
  Link link;                          // of a host to another
  Link inside{1e11, 5e-6};            // of a rank to another on its host
  std::uint64_t memory = UINT64_MAX;  // bytes of a rank
};

// Peaks in bytes.
struct FloatMemory {
  std::uint64_t parameters = 0, gradients = 0, optimizer = 0, stash = 0;
  // On their way, about; or, if that is more, by how much what is needed when these are gone exceeds the stash: the
  // optimiser's workspace, or that of factors of gradients, at the end of a step's passes or for a checkpoint.
  std::uint64_t activations = 0;
  // Whole parameters and gradients of two layers, where ranks otherwise have shards: parameters of the one that computes and
  // the next, gradients of that one and the one before, and of a table that layers share.
  std::uint64_t gathered = 0;
  // Beside the total, while a checkpoint is written (train::MemoryNeeds): of the state that data ranks have in common, each
  // copies its part. What is summed up of error buffers for it, between two steps, is in the total.
  std::uint64_t checkpoint = 0;

  std::uint64_t total() const { return parameters + gradients + optimizer + stash + activations + gathered; }
};

// Bytes that a rank hands to a group in a step, by what it calls, as mpi::Comm counts them: all elements of a sum, maximum or
// reduce-scatter, its own part of an all-gather, its own messages and what it broadcasts; those of losses and norms, too.
struct GroupBytes {
  std::uint64_t sums = 0, maxima = 0, reduce_scatters = 0, all_gathers = 0, messages = 0, broadcasts = 0;

  std::uint64_t total() const { return sums + maxima + reduce_scatters + all_gathers + messages + broadcasts; }
  bool operator==(const GroupBytes&) const = default;
};
nlohmann::json to_json(const GroupBytes& bytes);

// Needs of each rank of a stage; where they differ, of the rank that has the most.
struct StagePlan {
  std::vector<train::LayerRange> layers;  // by chunk
  FloatMemory memory;
  GroupBytes data;  // the groups that data ranks are divided into (mpi::Grid::shards(), copies()) among them
  GroupBytes pipeline, tensor;
  std::uint64_t layer_sums = 0;  // calls that sum activations and their gradients over the tensor group, the head's left out
  // Seconds of a micro-batch, computing and with what the tensor group sums (and, at ShardLevel::gradients and ::parameters,
  // the data group sends, as far as it takes longer).
  double compute = 0, forward = 0, backward = 0;
  double data_seconds = 0;  // what the data group sends in a step takes, without computing at the same time
};

struct FloatPlan {
  mpi::GridShape grid;
  std::size_t micro_batch = 1, micro_batches = 1;  // examples at once; micro-batches of a rank in a step
  std::vector<StagePlan> stages;
  std::size_t largest = 0;  // stage that takes the most memory
  // Share of time in which ranks wait because of the schedule and of stages that are not equal: (K - 1) / (M + K - 1) for K
  // equal ones and M micro-batches (Huang et al. 2019, section 2.3). Links not counted.
  double bubble = 0;
  double seconds = 0;    // of a step
  double computing = 0;  // share of them in which ranks compute, on average
  bool fits = true;      // the memory of every rank

  const FloatMemory& memory() const { return stages[largest].memory; }
};

// "" or why the model cannot be trained so: "`tensor`: 5; expected a divisor of the 12 heads".
std::string reason_against(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options);

// mpi::possible_shapes() of those that reason_against() has nothing against.
std::string possible_grids(const FloatModel& model, int ranks, const mpi::GridShape& wanted, const FloatOptions& options);

// Throws Error(usage) that names the field, what was expected and possible grids near by, unless the model can be trained so.
void require_grid(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options);

// Throws Error(usage) as require_grid() does.
FloatPlan plan_grid(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options,
                    const FloatCluster& cluster);

// Whether reason_against() has nothing against it, and every rank's memory has room for it. options.micro_batch: not 0.
bool is_possible(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options, const FloatCluster& cluster);

}  // namespace bitloom::plan
