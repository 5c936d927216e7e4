// The float trainer: micro-batches, accumulation, clipping, schedules, number formats, checkpoints; by one process or by a grid
// of them. Deterministic: a step is a function of the state before it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/safetensors.h"
#include "mpi/comm.h"
#include "mpi/grid.h"
#include "optim/schedule.h"
#include "train/optimizer.h"
#include "train/parallel/giving_up.h"
#include "train/parallel/gradient_buckets.h"
#include "train/parallel/gradient_norm.h"
#include "train/parallel/gradient_scales.h"
#include "train/parallel/pipeline.h"
#include "train/parallel/power_sgd.h"
#include "train/parallel/sharding.h"
#include "train/parallel/state_save.h"
#include "train/task.h"

namespace bitloom::train {

class GradientSum;

// A factor on the loss that keeps gradients of 16 bits above the smallest number: halved where one overflows, which skips the
// step, and doubled after a number of clean steps (Micikevicius et al. 2018).
struct LossScaleOptions {
  double first = 65536;
  std::uint64_t double_every = 2000;
  double largest = 16777216;
};

struct TrainOptions {
  DType values = DType::f32;  // V
  // none: of bf16 values, which AdamW then rounds stochastically.
  nn::MasterWeights master_weights = nn::MasterWeights::f32;
  std::size_t micro_batches = 1;  // of a step, in all processes
  RateSchedule rate;
  OptimizerOptions optimizer;
  std::optional<LossScaleOptions> loss_scale;  // for f16; without it, gradients that are not finite are an error
  // For f16: the loss scale is for what is outside of residual blocks; each of these has a scale of its own, and what overflows
  // in it leaves out its step alone. Around the blocks gradients are of type P.
  std::optional<GradientScaleOptions> block_scales;
  std::uint64_t seed = 1;
  // For the numbers that passes draw, for dropout and rounding, where they are to differ from those of other trainings that
  // begin alike; without it the seed.
  std::optional<std::uint64_t> draw_seed = std::nullopt;
};

// Throws Error(usage).
void check(const TrainOptions& options);

// Whether factors of gradients may begin with the last step's: matrices that are divided have no Q in checkpoints that ones
// divided otherwise could begin with. shard_ranks: those that the grid has; 0: its data ranks are not divided.
bool can_start_warm(ShardLevel shard, std::size_t shard_ranks);

// "" or why processes of a grid of this shape cannot exchange gradients by factors of a rank above 0, with the fields' names.
// shard_ranks: those that the grid has; 0: its data ranks are not divided. warm_start: PowerSgdOptions::warm_start.
std::string reason_against_compression(std::size_t rank, const mpi::GridShape& shape, ShardLevel shard, std::size_t shard_ranks,
                                       bool warm_start);

// "" or why the stages of a grid of this shape cannot have gradient scales of blocks, with the fields' names.
std::string reason_against_block_scales(const TrainOptions& options, const mpi::GridShape& shape);

// "" or why processes of a grid of this shape cannot train by this update rule, with the fields' names: Muon needs whole
// matrices.
std::string reason_against_rule(std::string_view rule, const mpi::GridShape& shape, ShardLevel shard);

// How the processes of a grid train one net.
struct Layout {
  // Outlives the trainer; none: one process. Where its data ranks are divided, shards are those of grid->shards(), whose
  // gradients are summed over grid->copies() once a step.
  mpi::Grid* grid = nullptr;
  std::string schedule = "1f1b";  // of the pipeline
  std::size_t chunks = 1;         // parts of the net that a stage has
  Partition partition = {};       // empty: by costs
  bool measures_costs = false;    // those of the first process, in seconds; otherwise they are estimated
  bool recompute_stages = false;  // a stage keeps its inputs alone
  ShardLevel shard = ShardLevel::none;
  std::size_t bucket_bytes = GradientBuckets::usual_bytes;  // of gradients that are summed at once
  // Rank of the factors by which data-parallel processes exchange the gradients of matrices in residual blocks, where that
  // saves bytes; 0: all as they are. For processes that are all data-parallel, on CPUs, with gradients of f32. Where the grid's
  // data ranks are divided (mpi::Grid::shards()), copies exchange the gradients of their shards, which are matrices, each by
  // factors of its part of the rank, which is a multiple of the shards (Ramesh et al. 2021, appendix E); without a warm start.
  // One process alone does the same to its gradients. The seed of the options is the trainer's.
  std::size_t compress_rank = 0;
  PowerSgdOptions compression = {};
  EventLogOptions events{0, 0};  // steps whose events are logged
  // About how often processes ask each other whether to give a step up, in seconds of a step.
  double asking_seconds = 1;
};

struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;           // mean, in nats
  double gradient_norm = 0;  // before clipping
  double rate = 0;
  double loss_scale = 1;
  bool skipped = false;              // a gradient was not finite
  std::vector<double> block_scales;  // of residual blocks, where they have their own
  std::uint64_t skipped_blocks = 0;  // whose gradients were not finite
  std::uint64_t narrowed = 0;        // numbers of PowerSGD's messages in 1-6-9: this process's, and the sums
  std::uint64_t clamped = 0;         // those of them that it did not hold
  std::uint64_t targets = 0;
  std::uint64_t stash_bytes = 0;  // of this process, at most
  std::uint64_t sent_bytes = 0;   // that this process gave to others or to sums with them (mpi::Traffic)
  CompressionTimes compression;   // of this process, where gradients go by factors
  double seconds = 0;
};

class Trainer {
 public:
  // Makes the parameters and gives them their initial values. The task outlives this. In a grid all processes of a tensor group
  // have nets of that group; the stages of a pipeline have neighbouring layers; data rank d of D takes micro-batches d, d + D,
  // ... of every step, of which there are a multiple of D. All come to the same parameters, bit by bit. Everything below is
  // collective then. Throws Error(usage).
  Trainer(nn::Engine& engine, Task& task, const TrainOptions& options, const Layout& layout = {});
  ~Trainer();

  // Throws Error(data), which names the step and the tensor, if a gradient or the loss is not finite and the loss is not
  // scaled, or scaled by no more than 1. Every 100 steps, as save() does, it compares what several processes of a grid have:
  // SharedError(data) that names the tensor and the ranks where it is not the same to the bit.
  StepReport step();
  // The same; but without stages of a pipeline and shards, is_given_up is asked between micro-batches: by a process alone after
  // every one, by several together every asking_seconds of a step that takes twice that at least. If it says so in any, all
  // give the step up: then its gradients are lost, all state is that of before, and nothing is returned.
  std::optional<StepReport> step_unless(const std::function<bool()>& is_given_up);
  // The losses of micro-batches first .. first + count - 1 of "step" `step`, without dropout; by the averaged parameters if
  // there are any.
  Loss evaluate(std::uint64_t step, std::uint64_t first, std::uint64_t count);

  // Results of examples x, any number of them, which the first stage of each data rank gives, by the parameters that stand in
  // their places: on its last stage, none elsewhere, where `use`, if any, is called with them while the task's
  // head_parameters() are whole. Data ranks call it equally often, with or without `use`.
  nn::Tensor predict(nn::Tensor x, const std::function<void(const nn::Tensor& y)>& use = {});

  // `f`, if any, is called after every pass of a micro-batch through layers: a sign of life.
  void on_micro_batch(std::function<void()> f);

  // Takes the moving statistics of batch norms anew, as the mean of those of the next steps' mini-batches, but for such whose
  // loss is not finite: for parameters that were moved from outside. Where no parameters are sharded.
  void settle_statistics(std::uint64_t steps, const std::function<void()>& alive);

  // Before the first step: processes that have the same elements take over those of the first, tensor by tensor; the last bits
  // of initial values may depend on the machine.
  void share();

  // Calls f while the averaged parameters, if there are any, stand in the places of the parameters. After an error of f that
  // not all ranks throw (mpi::SharedError), passes through sharded parameters still have the averages: the process should end.
  void averaged(const std::function<void()>& f);

  std::uint64_t steps() const { return step_; }
  // The next step is the one after these, whatever was done: its examples, rate and random numbers are.
  void go_on_from(std::uint64_t steps) { step_ = steps; }
  // Those of this process.
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  // Parameters that its optimiser moves: these, or the shards of them, in the same order.
  const std::vector<nn::Parameter*>& moved() const { return moved_; }
  nn::Engine& engine() { return engine_; }
  const Pipeline& pipeline() const { return *pipeline_; }
  EventLog& events() { return log_; }

  // Rank 0 calls write() with all state, as full tensors that are never in memory at once, to be asked for once each: a trainer
  // that loads them goes on bit by bit as this one, in whatever grid. What write() throws rank 0 throws.
  void save(const WriteTensors& write);
  // The same for the parameters and buffers alone, in f32 where parameters are of bf16: a model.
  void save_model(const WriteTensors& write);
  // As save(), while the trainer goes on: of the state of now, of which each process copies its part (a data rank's share of
  // what all data ranks have), by a thread that calls write(). One at a time. It may be over when this returns: StateSave.
  void begin_save(WriteTensors write);
  bool is_saving() const { return save_ != nullptr; }
  // Whether end_save() need not wait, as far as this process knows.
  bool is_saved() const { return save_ != nullptr && save_->is_over(); }
  // Calls alive() now and then while it waits. Throws what write() threw, at rank 0.
  void end_save(const std::function<void()>& alive);
  // Not collective: waits for the end, whatever comes of it.
  void abandon_save() noexcept { save_.reset(); }
  // Hash of the parameters' and buffers' bits, the same on all ranks, whatever the layout: runs that learn alike have the same.
  std::uint64_t parameters_hash();
  // Rank 0 has the file. Throws SharedError(data) that names what is missing or of another shape.
  void load(const TensorSource* file);
  void load_model(const TensorSource* file);

  // All processes; one of them where there is no grid.
  mpi::Comm& comm() { return grid_->world(); }
  mpi::Grid& grid() { return *grid_; }

 private:
  nn::Pass make_pass(std::uint64_t step) const;
  // Those of first .. first + count - 1 that this data rank has.
  std::vector<std::uint64_t> own_micro_batches(std::uint64_t first, std::uint64_t count) const;
  void begin_gradients();
  void sum_gradients(StepReport& report);
  void sum_over_data(StepReport& report);
  void take_over(mpi::Comm& group, nn::Tensor& tensor, int root = 0);
  void share_matrices();
  // The norm of all gradients without their scales, not finite if the step is to be skipped; and the blocks that it lacks,
  // whose gradients are not finite and whose step is to be.
  struct Settled {
    double norm = 0;
    std::set<std::size_t> skipped_blocks = {};
  };
  Settled settle_norm();
  std::vector<nn::Tensor> moved_gradients() const;
  void settle_power_sgd(bool is_skipped, const std::set<std::size_t>& skipped_blocks);
  void step_optimizer(const StepReport& report, double unscale, const std::set<std::size_t>& skipped_blocks);
  void make_power_sgd(const Layout& layout);
  // Those that gradients have in this step, by their numbers in power_sgd_.
  std::vector<double> scales_of_gradients() const;
  // Its gradient is whole, of this process.
  void announce(const nn::Parameter& moved);
  HeldTensor held_of_power_sgd(const std::string& name, nn::Tensor& tensor);
  // Over all data ranks, to all: the last stage's, or those of all stages where layers have losses.
  Loss sum_over_grid(Loss loss);
  std::uint64_t sent_so_far() const;
  void sum_statistics();
  [[noreturn]] void refuse_gradients(double loss);
  void make_norm();
  void make_gradient_scales();
  mpi::Comm& data_group_of(const nn::Parameter& moved);
  void compare_replicas();
  std::vector<StateTensor> state();
  std::vector<HeldTensor> held();
  std::vector<HeldTensor> held_model();
  HeldTensor held(const std::string& name, nn::Tensor& tensor, const nn::Parameter* parameter, DType stored) const;
  // The state that is not in held().
  TensorFile rest();
  // Steps taken by each parameter of the whole net that is learned, then by the trainer.
  std::vector<std::int64_t> step_counts();
  void set_step_counts(std::span<const std::uint64_t> counts);
  // The rest of the state.
  std::vector<double> counters() const;
  void set_counters(std::span<const double> counters);

  mpi::Comm alone_;
  std::optional<mpi::Grid> own_grid_;
  mpi::Grid* grid_;
  nn::Engine& engine_;
  Task& task_;
  TrainOptions options_;
  EventLog log_;
  std::optional<Pipeline> pipeline_;
  std::vector<nn::Parameter*> parameters_;
  std::vector<nn::Parameter*> learned_;  // of the whole net, not of this stage alone
  std::optional<Sharding> sharding_;
  std::vector<nn::Parameter*> moved_;  // what the optimiser moves: parameters_, or shards of them
  Buffers buffers_;
  std::optional<Optimizer> optimizer_;
  std::optional<GradientNorm> norm_;
  std::optional<GivingUp> giving_up_;       // none: steps are made to their end
  std::unique_ptr<GradientSum> sum_;        // none with one data rank
  std::optional<GradientBuckets> buckets_;  // on CPUs, of gradients that are neither sharded nor compressed
  std::optional<PowerSgd> power_sgd_;
  std::map<const nn::Parameter*, std::size_t> power_sgd_number_;  // of moved ones among its shapes
  PowerSgdState power_sgd_state_;                                 // while a checkpoint takes or gives it
  std::uint64_t step_ = 0;
  double loss_scale_ = 1;
  std::uint64_t clean_steps_ = 0;         // since the scale changed
  std::optional<GradientScales> scales_;  // of blocks
  nn::BranchScales branch_scales_;
  std::optional<mpi::Comm> save_comm_;
  std::unique_ptr<StateSave> save_;  // under way
};

}  // namespace bitloom::train
