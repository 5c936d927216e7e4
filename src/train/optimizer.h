// Steps over the parameters of a net by an update rule, clipping by the global norm, and averages of the parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nn/parameter.h"
#include "train/update_rule.h"

namespace bitloom::train {

struct OptimizerOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  // of AdamW, the last two of RMSProp
  double decay = 0.01;              // weight decay: AdamW's and RMSProp's per learning rate, SGD's per step at the peak
  double clip = 0;                  // largest norm of all gradients together; 0: any
  double average = 0;               // largest average_decay() of an exponential moving average of all values; 0: none
  std::uint64_t average_every = 1;  // steps between updates of it
  std::string rule = "adamw";       // one of update_rule_names()
  double momentum = 0.9;            // of SGD and Muon
  double variance_limit = 0;        // largest running mean of squared gradients, of AdamW and RMSProp; 0: any
  bool narrow_moments = false;      // AdamW's, of matrices in residual blocks, as 1-6-9 and 0-6-10 (core/narrow.h)
  // Lookahead (Zhang et al. 2019): number of steps after which slow weights move towards the parameters, which then become
  // them; 0: none.
  std::uint64_t lookahead = 0;
  // The share that the slow weights keep then rises with the cube of the steps done to this one at step lookahead_steps, after
  // which the parameters stay the slow weights (Jordan 2024, airbench).
  double lookahead_keeps = 0.7737809375;
  std::uint64_t lookahead_steps = 0;
};

// Throws Error(usage), which names the option.
void check(const OptimizerOptions& options);

// The decay of update number t of a moving average, counted from 1: the smaller one of `largest` and (1 + t) / (10 + t), as in
// TensorFlow's ExponentialMovingAverage with num_updates. With a constant decay d the initial values would weigh d^t: an
// evaluation would show them, not the net, for the first 1 / (1 - d) updates.
double average_decay(double largest, std::uint64_t update);

// Those that are not frozen, which an optimiser moves.
std::vector<nn::Parameter*> learned(std::span<nn::Parameter* const> parameters);

// A tensor that a net has besides its parameters, and its name.
using Buffers = std::vector<std::pair<std::string, nn::Tensor*>>;

class Optimizer {
 public:
  // The parameters outlive this and have their memory. buffers: tensors of the net that slow weights and averages go with.
  // seed: of the rounding of values that have no f32 masters; a resumed run has to have the same. Averages need masters:
  // Error(usage).
  Optimizer(nn::Engine& engine, std::span<nn::Parameter* const> parameters, const OptimizerOptions& options,
            std::uint64_t seed = 1, const Buffers& buffers = {});

  // `f` is called in every step, once the parameters have moved and before averages do.
  void on_moved(std::function<void()> f) { on_moved_ = std::move(f); }

  // The first parameter whose gradient is not finite.
  const nn::Parameter* find_bad_gradient() const;
  // One step with gradients times `scale`, clipped if `norm`, that of all gradients times scale, is too large. share: of the
  // peak learning rate that `rate` is. factors: of the gradients of parameters in a residual block, or outside all, beside the
  // scale; none of a block whose parameters, moments and step counts stay as they are.
  void step(double rate, double share, double scale, double norm,
            const std::function<std::optional<double>(std::optional<std::size_t>)>& factors = {});
  // After so many steps of the training, skipped ones among them: slow weights, where it is their turn, move, and become the
  // parameters. Whether they did.
  bool look_ahead(std::uint64_t steps);
  // Steps that parameter `i` has taken.
  std::uint64_t steps(std::size_t i) const { return steps_[i]; }

  // Averages and slow weights become what parameters and buffers are: before the first step, if somebody has given them other
  // values.
  void restart_averages();
  // The averages take the places of parameters and buffers, and the other way round. Nothing, and false, without averages.
  bool swap_averages();

  // Moments, averages and slow weights.
  void add_state(std::vector<StateTensor>& all);
  // The rest of the state: numbers of steps, by parameter, then of all.
  std::vector<std::uint64_t> step_counts() const;
  // Throws Error(data) if there are more or fewer of them.
  void set_step_counts(std::span<const std::uint64_t> counts);

 private:
  // A slow weight or moving average, and what it follows.
  struct Follower {
    std::string name;
    nn::Tensor* fast;
    nn::Tensor slow;
    const nn::Parameter* parameter;  // that it belongs to; none: a buffer
  };
  nn::Engine& engine_;
  std::vector<nn::Parameter*> parameters_;  // those that are not frozen
  OptimizerOptions options_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<Follower> averages_;
  std::vector<Follower> slow_;
  std::function<void()> on_moved_;
  std::vector<std::uint64_t> steps_;  // by parameter
  std::uint64_t all_steps_ = 0;
};

// How checkpoints call the moving average of a parameter or buffer.
std::string average_name(const std::string& tensor);
// And the slow weight of a parameter or buffer.
std::string slow_name(const std::string& tensor);

}  // namespace bitloom::train
