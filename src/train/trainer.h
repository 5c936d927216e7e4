// The float trainer: micro-batches, accumulation, clipping, schedules, number formats, checkpoints. Deterministic: a step is a
// function of the state before it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "mpi/comm.h"
#include "optim/schedule.h"
#include "train/optimizer.h"
#include "train/parallel/state_exchange.h"
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
  std::size_t micro_batches = 1;
  RateSchedule rate;
  OptimizerOptions optimizer;
  std::optional<LossScaleOptions> loss_scale;  // for f16; without it, gradients that are not finite are an error
  std::uint64_t seed = 1;
};

// Throws Error(usage).
void check(const TrainOptions& options);

struct StepReport {
  std::uint64_t step = 0;
  double loss = 0;           // mean, in nats
  double gradient_norm = 0;  // before clipping
  double rate = 0;
  double loss_scale = 1;
  bool skipped = false;  // a gradient was not finite
  std::uint64_t targets = 0;
  std::uint64_t stash_bytes = 0;  // of a micro-batch, at most
  double seconds = 0;
};

class Trainer {
 public:
  // Makes the parameters and gives them their initial values. The task outlives this. comm: several processes train one net;
  // rank r of N takes micro-batches r, r + N, ... of every step, of which there are a multiple of N, and all come to the same
  // parameters, bit by bit. Everything below is collective then.
  Trainer(nn::Engine& engine, Task& task, const TrainOptions& options, mpi::Comm* comm = nullptr);
  ~Trainer();

  // Throws Error(data), which names the step and the tensor, if a gradient or the loss is not finite and the loss is not
  // scaled, or scaled by no more than 1.
  StepReport step();
  // The losses of micro-batches first .. first + count - 1 of "step" `step`, without dropout; by the averaged parameters if
  // there are any.
  Loss evaluate(std::uint64_t step, std::uint64_t first, std::uint64_t count);

  // `f`, if any, is called behind every micro-batch of a step or an evaluation: a sign of life.
  void on_micro_batch(std::function<void()> f) { on_micro_batch_ = std::move(f); }

  // Before the first step: f gives parameters and buffers their initial values.
  void begin_with(const std::function<void()>& f);

  // Calls f while the averaged parameters, if there are any, stand in the places of the parameters.
  void averaged(const std::function<void()>& f);

  std::uint64_t steps() const { return step_; }
  const std::vector<nn::Parameter*>& parameters() const { return parameters_; }
  nn::Engine& engine() { return engine_; }

  // Rank 0 calls write() with all state, as full tensors that need not be in memory at once: a trainer that loads them goes on
  // bit by bit as this one, whatever the layout of its processes. They may be asked for several times. What write() throws
  // rank 0 throws.
  using WriteTensors = std::function<void(std::map<std::string, StreamedTensor> tensors)>;
  void save(const WriteTensors& write);
  // The same for the parameters and buffers alone, in f32 where parameters are of bf16: a model.
  void save_model(const WriteTensors& write);
  // Rank 0 has the file. Throws SharedError(data) that names what is missing or of another shape.
  void load(const TensorFile* file);
  void load_model(const TensorFile* file);
  // All ranks take over the state of rank 0, tensor by tensor: beside its own state a process needs memory for the largest.
  void share();
  // One rank where no communicator was given.
  mpi::Comm& comm() { return comm_; }

 private:
  nn::Pass make_pass(std::uint64_t step, nn::Stash* stash) const;
  // Sums over ranks, where there are several.
  void sum_gradients();
  // Moving averages of what each rank saw become their mean.
  void average_buffers();
  std::vector<StateTensor> state();
  std::vector<HeldTensor> held();
  std::vector<HeldTensor> held_model();
  void write_held(std::vector<HeldTensor> held, const TensorFile& rest, const WriteTensors& write);
  // The rest of the state.
  std::vector<double> counters() const;
  void set_counters(std::span<const double> counters);

  mpi::Comm alone_;
  mpi::Comm& comm_;
  nn::Engine& engine_;
  Task& task_;
  TrainOptions options_;
  std::vector<nn::Parameter*> parameters_;
  Buffers buffers_;
  std::optional<Optimizer> optimizer_;
  std::unique_ptr<GradientSum> sum_;  // none with one rank
  std::uint64_t step_ = 0;
  double loss_scale_ = 1;
  std::uint64_t clean_steps_ = 0;  // since the scale changed
  std::function<void()> on_micro_batch_;
};

}  // namespace bitloom::train
