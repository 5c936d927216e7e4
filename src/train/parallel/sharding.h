// Parameters, gradients and optimiser state divided among the processes of a data group (Rajbhandari et al. 2020, "ZeRO",
// stages 1 to 3; Ramesh et al. 2021, section 2.4).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mpi/comm.h"
#include "nn/parameter.h"
#include "train/parallel/holding.h"

namespace bitloom::train {

// optimizer: moments and averages, and masters in f32 of 16-bit values. gradients: those too, whole only for the block whose
// backward pass is under way. parameters: those too, whole only for the block whose pass is under way.
enum class ShardLevel : std::uint8_t { none, optimizer, gradients, parameters };
std::vector<std::string> shard_level_names();
// Throws Error(usage) that names the field `shard`.
ShardLevel shard_level_named(std::string_view name);

// Elements that each of `ranks` ranks gets of parameters of these sizes, by parameter and rank. A shard of a parameter is a
// range of whole chunks of its elements (nn::squares_chunk), so that norms of gradients are the same bits however the chunks
// are divided; the chunks of all go to the ranks in order and in equal numbers, as far as that goes.
std::vector<std::vector<std::size_t>> divide_block(std::span<const std::size_t> sizes, std::size_t ranks);

// Shards are those of divide_block(), block by block.
class Sharding {
 public:
  struct Options {
    ShardLevel level = ShardLevel::optimizer;
    DType values = DType::f32;  // V
    nn::MasterWeights master_weights = nn::MasterWeights::f32;
    std::uint64_t seed = 1;
  };
  // Makes the parameters and gives them their initial values, never more than one of them whole beyond what the level keeps.
  // blocks: the parameters of each layer, then those that the loss reads; one may be in two of them. apart: parameters that
  // other groups have, too, who divide them as this one does: each by itself. All outlive this. Throws Error(usage) for values
  // without masters and for GPUs, which do not have it yet.
  Sharding(nn::Engine& engine, mpi::Comm& group, std::vector<std::vector<nn::Parameter*>> blocks,
           std::span<nn::Parameter* const> apart, const Options& options);

  // Parameters that this process moves and keeps, for optimiser, norm and files: a shard of each parameter, or the whole of one
  // that is frozen; in the order of the parameters.
  const std::vector<nn::Parameter*>& own() const { return own_; }
  // The elements of a parameter that one of own() is.
  Holding holding(const nn::Parameter& own) const;
  nn::Parameter& own(const nn::Parameter& whole) const;
  // The parameter that it is a shard of.
  const nn::Parameter* whole(const nn::Parameter& own) const;
  ShardLevel level() const { return options_.level; }

  // Collective, as is all below. Before the first micro-batch of a step.
  void begin_step();
  // Around the forward or backward pass of a block.
  void enter(std::size_t block, bool backward);
  void leave(std::size_t block, bool backward);
  // Where gradients are whole, after the last micro-batch: those of own() become sums over the group.
  void reduce_gradients();
  // After own() has other values.
  void publish();

 private:
  struct Shard {
    nn::Parameter* whole = nullptr;
    std::unique_ptr<nn::Parameter> part;  // none of a frozen one
    std::vector<std::size_t> counts;      // elements of each rank
    std::size_t begin = 0, count = 0;     // those of this one
    std::size_t first_block = 0;          // whose backward pass is the last that adds to its gradient
    bool has_gradient = false;            // in this step
  };
  void divide(const std::vector<Shard*>& shards) const;
  void make(Shard& shard);
  void gather(Shard& shard);
  void release(Shard& shard);
  void begin_gradient(Shard& shard);
  void reduce(Shard& shard);
  void reduce_into(const Shard& shard, const nn::Tensor& sum);

  nn::Engine& engine_;
  mpi::Comm& group_;
  Options options_;
  std::vector<std::unique_ptr<Shard>> shards_;  // in the order of the parameters
  std::vector<std::vector<Shard*>> blocks_;
  std::vector<nn::Parameter*> own_;
  std::map<const nn::Parameter*, const Shard*> by_own_;
};

}  // namespace bitloom::train
