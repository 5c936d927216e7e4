// A net over the stages of a pipeline (Huang et al. 2019): each stage has neighbouring layers, what crosses from one to the
// next is the activation between them and its gradient, and the micro-batches of a step are in several stages at once.
//
// Promise: losses, gradients and batch norm's statistics are those of one process, bit by bit, for any number of
// stages, cuts and schedules at a fixed number of micro-batches, with recomputation or without, because every sum over
// micro-batches has their order. Two exceptions: a parameter of layers of one stage that the loss on another reads too (a GPT's
// table of tokens) gets the sum of two gradients, each added up by itself, where one process adds all to one; and where layers
// have losses of their own (a discrete VAE's divergence), each stage adds up its own, so that the last bits of the loss differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mpi/comm.h"
#include "nn/stash.h"
#include "train/parallel/event_log.h"
#include "train/parallel/schedule.h"
#include "train/parallel/sharding.h"
#include "train/parallel/stage_messages.h"
#include "train/parallel/stages.h"
#include "train/task.h"

namespace bitloom::train {

class Pipeline {
 public:
  // Collective. comm: one rank for each stage, in their order; all give the same options. The net is described whole on every
  // rank, of which only the parameters and buffers of this stage need memory. Engine, task, comm and log outlive this. Throws
  // Error(usage), which names the field `partition` or `pipeline_schedule`.
  Pipeline(nn::Engine& engine, Task& task, mpi::Comm& comm, const PipelineOptions& options, EventLog* log = nullptr);

  std::size_t stage() const { return stage_; }
  std::size_t stages() const { return shape_.stages; }
  std::size_t chunks() const { return shape_.chunks; }
  bool is_last() const { return stage_ + 1 == shape_.stages; }

  // Parameters of this stage, in the net's order.
  std::vector<nn::Parameter*> parameters() const;
  // The same by layer of the net, empty for those of other stages, and at the end those that the loss reads, if it is here.
  std::vector<std::vector<nn::Parameter*>> parameters_by_layer() const;
  // Those that another stage has, too.
  std::vector<nn::Parameter*> shared_parameters() const;
  // Names of all parameters that several stages have, the same on all stages, each with this one's, if it has it.
  std::vector<std::pair<std::string, const nn::Parameter*>> tied_parameters() const;
  // The same of buffers, as nn::Layer has them.
  void add_buffers(std::vector<std::pair<std::string, nn::Tensor*>>& all);
  // And of what layers sum over the micro-batches of a step (nn::Layer::add_step_sums).
  std::vector<nn::Tensor*> step_sums();
  // Whether sums over the parameters of all stages count this one here: on the first stage that has it.
  bool is_counted_here(const nn::Parameter& parameter) const;

  // Collective: micro-batches of these numbers of step pass.step, forward and backward, with `scale` as Task::loss() has it.
  // Adds to gradients; calls pass.on_gradient as one process does. Returns the sum of losses on the last stage, 0 elsewhere;
  // nothing where is_given_up, asked after all but the last micro-batch by a process that has the whole net, says that the rest
  // is not to be passed. Then no gradient was announced.
  std::optional<Loss> run(nn::Pass pass, std::span<const std::uint64_t> micro_batches, double scale,
                          const std::function<bool()>& is_given_up = {});
  // Collective: forward alone, training or not, as the pass says; the losses of all but the last `uncounted` micro-batches.
  Loss evaluate(nn::Pass pass, std::span<const std::uint64_t> micro_batches, std::size_t uncounted = 0);
  // Collective, with sharded parameters also over the data ranks: x, which the first stage gives, of any number of examples,
  // through all layers, not training. The result on the last stage, none elsewhere. `use`, if any, is called with it there
  // while what the loss reads is whole, too.
  nn::Tensor predict(nn::Pass pass, nn::Tensor x, const std::function<void(const nn::Tensor& y)>& use = {});
  // Collective, once after the micro-batches of a step, whose gradients are settled: those of a parameter on several stages
  // become their sum, the same bits on each.
  void sum_shared_gradients();
  // Collective: the stages that share a parameter take over the values of the first of them.
  void share_values();

  // From now on parameters are whole only around their layer's passes, as the sharding says; it outlives this.
  void shard(Sharding& sharding) { sharding_ = &sharding; }

  // `f`, if any, is called after every pass: a sign of life.
  void on_pass(std::function<void()> f) { on_pass_ = std::move(f); }

  // Bytes in stashes at once, at most, during the last run(), as nn::Stash counts them. Layers that are computed again on their
  // own (nn::Recomputed) have further stashes for a moment.
  std::uint64_t peak_stash_bytes() const { return peak_bytes_; }

 private:
  // State of a micro-batch in a chunk, from its forward to its backward pass.
  struct Held {
    nn::Stash stash;
    nn::Tensor output;  // of the net
  };

  // Numbers of the net's layers that this process has, chunk by chunk.
  std::vector<std::size_t> own_layers() const;
  void begin(const Schedule& schedule, std::span<const std::uint64_t> micro_batches, bool training);
  void forward(const Action& action, nn::Pass& pass, bool backward_is_next);
  void backward(const Action& action, nn::Pass& pass, double scale);
  nn::Tensor forward_layers(nn::Pass& pass, nn::Tensor x, std::size_t part);
  nn::Tensor backward_layers(nn::Pass& pass, nn::Tensor dy, std::size_t part);
  nn::Tensor input(const Action& action, nn::Pass& pass);
  void count_stashes();
  PartLoss loss(nn::Pass& pass, nn::Tensor y, double scale, nn::Tensor* dy);
  // The part of a parameter that this process moves: itself, or a shard of it.
  nn::Parameter& own(nn::Parameter& parameter) const;

  nn::Engine& engine_;
  Task& task_;
  mpi::Comm& comm_;
  PipelineOptions options_;
  EventLog* log_;
  Sharding* sharding_ = nullptr;
  std::size_t stage_;
  PipelineShape shape_;                     // its micro-batches are those of the last run
  Schedule schedule_;                       // of the last run
  std::size_t scheduled_ = 0;               // its micro-batches
  std::vector<StageParameter> tied_;        // of all stages: those on several
  std::vector<StageParameter> parameters_;  // of this stage
  StageMessages messages_;
  std::function<void()> on_pass_;
  std::map<std::pair<std::size_t, std::size_t>, Held> held_;  // by micro-batch and chunk
  std::optional<LossSum> losses_;
  std::uint64_t peak_bytes_ = 0;
};

}  // namespace bitloom::train
