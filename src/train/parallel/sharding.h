// Parameters, gradients and optimiser state divided among the processes of a data group (Rajbhandari et al. 2020, "ZeRO",
// stages 1 to 3; Ramesh et al. 2021, section 2.4).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mpi/comm.h"
#include "mpi/pending.h"
#include "nn/parameter.h"
#include "train/parallel/holding.h"

namespace bitloom::train {

class GpuComm;

// optimizer: moments and averages, and masters in f32 of 16-bit values. gradients: those too, whole only for the block whose
// backward pass is under way and for the one before it, whose are summed meanwhile. parameters: those too, whole only for the
// block whose pass is under way and for the next, whose are gathered meanwhile. A gradient that two blocks add to is whole from
// the first one's backward pass to the other's.
enum class ShardLevel : std::uint8_t { none, optimizer, gradients, parameters };
std::vector<std::string> shard_level_names();
// Throws Error(usage) that names the field `shard`.
ShardLevel shard_level_named(std::string_view name);

// A pass of a micro-batch through a block; last_backward: of the last micro-batch of a step.
enum class BlockPass : std::uint8_t { forward, backward, last_backward };

// Elements that each of `ranks` ranks gets of parameters of these sizes, by parameter and rank. A shard of a parameter is a
// range of whole chunks of its elements (nn::squares_chunk), so that norms of gradients are the same bits however the chunks
// are divided; the chunks of all go to the ranks in order and in equal numbers, as far as that goes.
std::vector<std::vector<std::size_t>> divide_parameters(std::span<const std::size_t> sizes, std::size_t ranks);
// Whether a matrix that is cut across its longer side is cut into columns.
constexpr bool is_cut_by_columns(std::size_t rows, std::size_t columns) { return columns > rows; }
// Elements that each rank gets of a matrix that is cut across its longer side: rows or columns, in equal numbers as far as that
// goes.
std::vector<std::size_t> divide_matrix(std::size_t rows, std::size_t columns, std::size_t ranks);

// Parameters of a block that ops read in one type are gathered and reduced together, apart from those that tensor ranks have
// parts of, and divided as divide_parameters() does; one that several blocks or other groups have is by itself. So are the
// matrices of residual blocks where shards of them are to be matrices, as divide_matrix() makes them.
//
// On CPUs sums have the order of ranks, and gathering and summing go on beside a block's pass; on GPUs they are NCCL's, in the
// stream in which the passes are.
class Sharding {
 public:
  struct Options {
    ShardLevel level = ShardLevel::optimizer;
    DType values = DType::f32;  // V
    nn::MasterWeights master_weights = nn::MasterWeights::f32;
    std::uint64_t seed = 1;
    bool cuts_matrices = false;  // of residual blocks, into matrices; on CPUs alone
  };
  // Makes the parameters and gives them their initial values, never more than one of them whole beyond what the level keeps,
  // and one more that is cut into columns.
  // blocks: the parameters of each layer, then those that the loss reads; one may be in two of them. apart: parameters that
  // other groups have, too, who divide them as this one does: each by itself. All outlive this. Throws Error(usage) for values
  // without masters.
  Sharding(nn::Engine& engine, mpi::Comm& group, std::vector<std::vector<nn::Parameter*>> blocks,
           std::span<nn::Parameter* const> apart, const Options& options);
  ~Sharding();

  // Parameters that this process moves and keeps, for optimiser, norm and files: a shard of each parameter, or the whole of one
  // that is frozen; in the order of the parameters.
  const std::vector<nn::Parameter*>& own() const { return own_; }
  // The elements of a parameter that one of own() is.
  Holding holding(const nn::Parameter& own) const;
  nn::Parameter& own(const nn::Parameter& whole) const;
  // The parameter that it is a shard of.
  const nn::Parameter* whole(const nn::Parameter& own) const;
  ShardLevel level() const { return options_.level; }

  // copies: processes that have the same shards; they outlive this. Sums of gradients over them, too, begin where a step's last
  // are reduced.
  void sum_over(mpi::Comm& copies);
  // `f` is called with each of own() when nothing more is added to its gradient in this step, in the same order on all copies.
  void on_gradient(std::function<void(nn::Parameter& own)> f) { on_gradient_ = std::move(f); }

  // Collective, as is all below. Before the first micro-batch of a step.
  void begin_step();
  // Before passes: the blocks that they enter, in their order.
  void begin_passes(std::span<const std::size_t> blocks);
  // Around a pass through a block. enter() begins to gather the next one's parameters, leave() to sum gradients. Throws
  // Error(internal) for another block than begin_passes() was told of.
  void enter(std::size_t block, BlockPass pass);
  void leave(std::size_t block, BlockPass pass);
  // After the last micro-batch: waits until the gradients of own() are sums over the group and the copies.
  void reduce_gradients();
  // After own() has other values.
  void publish();

 private:
  struct Shard {
    nn::Parameter* whole = nullptr;
    std::unique_ptr<nn::Parameter> part;  // none of a frozen one
    std::size_t begin = 0, count = 0;     // its elements
    std::size_t place = 0;                // of the parameter in its unit
  };
  // Parameters that are gathered and reduced together, one after the other.
  struct Unit {
    std::vector<Shard*> shards;
    std::size_t size = 0;
    bool is_matrix = false;             // alone, which is cut into matrices
    bool is_by_columns = false;         // those are columns, one shard after the other where it is gathered or reduced
    bool is_packed = false;             // `values` has it so
    std::vector<std::size_t> counts;    // elements of each rank
    std::size_t begin = 0, count = 0;   // those of this one
    std::size_t first_block = 0;        // whose backward pass is the last that adds to its gradient
    nn::Tensor values;                  // whole; at ShardLevel::parameters only around passes of its blocks
    mpi::Pending gathering;             // of `values`
    nn::Tensor gradient, own_gradient;  // whole; this rank's
    bool has_gradient = false;          // own_gradient, in this step
    mpi::Pending copies_sum;            // of own_gradient
  };
  // A sum of a unit's gradient over the group.
  struct Reduction {
    Unit* unit = nullptr;
    nn::Tensor gradient;  // whole, of which this rank's part becomes the sum
    mpi::Pending sum;
    bool is_last = false;  // of the unit in this step
  };

  void make_units(const std::vector<std::vector<nn::Parameter*>>& blocks, std::span<nn::Parameter* const> apart);
  void divide(Unit& unit) const;
  void make(Shard& shard, Unit* unit);
  void make_gradient(Unit& unit);
  void gather(Unit& unit);
  void start_gather(Unit& unit, const nn::Tensor& values);
  void finish_gather(Unit& unit);
  void release(Unit& unit);
  void begin_gradient(Unit& unit);
  Reduction reduce(Unit& unit, bool is_last);
  void settle(Unit& unit);
  // Waits until sums of no more blocks than this are under way.
  void finish_reductions(std::size_t blocks);
  bool is_next(const Unit& unit) const;
  DType gradient_type() const;
  // The elements of a matrix, row by row, shard by shard, and the other way.
  nn::Tensor packed(const Unit& unit, const nn::Tensor& rows) const;
  void unpack(const Unit& unit, const nn::Tensor& shards, nn::Tensor& rows) const;

  nn::Engine& engine_;
  mpi::Comm& group_;
  mpi::Comm* copies_ = nullptr;
  std::unique_ptr<GpuComm> gpus_, copies_gpus_;  // of GPUs
  std::function<void(nn::Parameter&)> on_gradient_;
  Options options_;
  std::vector<std::unique_ptr<Shard>> shards_;  // in the order of the parameters
  std::vector<std::unique_ptr<Unit>> units_;
  std::vector<std::vector<Unit*>> blocks_;
  std::vector<nn::Parameter*> own_;
  std::map<const nn::Parameter*, const Shard*> by_own_;
  std::deque<std::size_t> order_;                  // blocks that are still to be entered, of those that have units
  std::deque<std::vector<Reduction>> reductions_;  // under way, by block, the oldest first
};

}  // namespace bitloom::train
