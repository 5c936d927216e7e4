// A step of a net with an explicit forward and backward pass. Nets are sequences of layers; what crosses from one layer to the
// next is one tensor, which may as well cross to another process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "nn/ops.h"
#include "nn/parameter.h"
#include "nn/stash.h"

namespace bitloom::nn {

class KeyValueCache;

// Scales of the gradients in residual branches, each block's own, so that they are within the range of a format of 16 bits
// wherever those around them are (Ramesh et al. 2021, section 2.4).
struct BranchScales {
  DType values = DType::f16;  // V, which gradients have in branches; around these they have P
  // By which the gradients in a block's branch are more than those around it.
  std::function<double(std::size_t block)> of;
};

// Needs of a pass over a micro-batch, besides its input.
struct Pass {
  Engine& engine;
  // Where forward puts and backward takes. Forward without one keeps nothing.
  Stash* stash = nullptr;
  bool training = true;  // dropout; batch norm by the micro-batch's own statistics
  // Forward again, for the backward pass of a block whose stash was dropped: nothing outside it may change.
  bool again = false;
  std::uint64_t seed = 0;
  std::uint64_t step = 0;         // step of the optimiser
  std::uint64_t micro_batch = 0;  // number of the micro-batch in the step
  bool is_last = false;           // the last micro-batch of this process in the step
  // Forward, not training: the sequences go on behind the tokens in it (layers/tokens.h).
  KeyValueCache* cache = nullptr;
  // Called in the backward pass of the last micro-batch when nothing more will be added to a parameter's gradient in the step.
  std::function<void(Parameter&)> on_gradient = {};

  // That of moving statistics, in place of the layers' own.
  std::optional<double> statistics_momentum = {};

  const BranchScales* branch_scales = nullptr;  // none: gradients in branches are as those around them

  // Layers that have a loss of their own besides the task's: backward adds its gradient times loss_scale, forward hands its
  // losses, of type P, to on_loss, if there is any.
  double loss_scale = 1;
  std::function<void(const Tensor& losses)> on_loss = {};

  // Nothing more is added to the gradient in this pass.
  void announce(Parameter& parameter) const {
    if (is_last && on_gradient) on_gradient(parameter);
  }
  void keep(const Tensor& tensor) const {
    if (stash != nullptr) stash->put(tensor);
  }
  // Which elements dropout number `layer` drops of a micro-batch's examples, of `elements` each: numbers go through all
  // examples of a step, however these are divided among micro-batches, which have as many each.
  Dropout dropout(double rate, std::uint64_t layer, std::size_t examples, std::uint64_t elements) const;
};

class Layer {
 public:
  virtual ~Layer() = default;

  // x may be overwritten only if nobody keeps it: layers that need it keep it in the stash.
  virtual Tensor forward(Pass& pass, const Tensor& x) = 0;
  // dy: the gradient of what forward gave; adds to the gradients of parameters and returns that of x, or none if x is no
  // tensor of values. Takes from the stash what forward put.
  virtual Tensor backward(Pass& pass, const Tensor& dy) = 0;

  // Whether backward takes a gradient of type P, as those around residual branches with scales are.
  virtual bool takes_wide_gradients() const { return false; }

  // In a fixed order.
  virtual void add_parameters(std::vector<Parameter*>& /*all*/) {}
  // Once, after the last micro-batch of a step of `replicas` processes that have different micro-batches, as many each, and
  // have summed what add_step_sums() gives. counts: false for a step that is skipped, which is to leave no trace.
  virtual void end_step(Pass& /*pass*/, bool /*counts*/, std::size_t /*replicas*/) {}
  // Sums over this process's micro-batches of a step. They stay where they are.
  virtual void add_step_sums(std::vector<Tensor*>& /*all*/) {}
  // Tensors besides parameters that belong to a trained net, moving averages say, made if they are not there yet.
  virtual void add_buffers(Engine& /*engine*/, DType /*values*/, std::vector<std::pair<std::string, Tensor*>>& /*all*/) {}

  // The shape of y, and what a pass costs and keeps, for one of x. Throws Error(usage) for an x that the layer cannot take.
  virtual Shape output(const Shape& x) const = 0;
  // Multiplications and additions of forward.
  virtual double cost(const Shape& x) const = 0;
  // Bytes that forward puts into the stash. values: V.
  virtual std::uint64_t stash_bytes(const Shape& x, DType values) const = 0;
  // Whether x itself is among them.
  virtual bool keeps_input() const { return false; }
  // Bytes in stashes at once during forward and backward, at most.
  virtual std::uint64_t peak_stash_bytes(const Shape& x, DType values) const { return stash_bytes(x, values); }
};

using LayerPointer = std::unique_ptr<Layer>;

// layer.backward(pass, dy) for a dy of type V, or P, of which the layer gets V if it takes no other.
Tensor backward_through(Layer& layer, Pass& pass, const Tensor& dy);

class Sequence final : public Layer {
 public:
  Sequence() = default;
  void add(LayerPointer layer) { layers_.push_back(std::move(layer)); }
  template <typename L, typename... Args>
  L& emplace(Args&&... args) {
    auto layer = std::make_unique<L>(std::forward<Args>(args)...);
    L& added = *layer;
    layers_.push_back(std::move(layer));
    return added;
  }
  std::size_t size() const { return layers_.size(); }
  Layer& operator[](std::size_t i) { return *layers_[i]; }

  Tensor forward(Pass& pass, const Tensor& x) override { return forward(pass, x, 0, size()); }
  Tensor backward(Pass& pass, const Tensor& dy) override { return backward(pass, dy, 0, size()); }
  // Passes of layers first .. last - 1, a part that one process of a pipeline has.
  Tensor forward(Pass& pass, const Tensor& x, std::size_t first, std::size_t last);
  Tensor backward(Pass& pass, const Tensor& dy, std::size_t first, std::size_t last);
  bool takes_wide_gradients() const override { return true; }

  void add_parameters(std::vector<Parameter*>& all) override;
  void end_step(Pass& pass, bool counts, std::size_t replicas) override;
  void add_step_sums(std::vector<Tensor*>& all) override;
  void add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override;
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  std::uint64_t peak_stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return !layers_.empty() && layers_.front()->keeps_input(); }

 private:
  std::vector<LayerPointer> layers_;
};

std::vector<Parameter*> parameters_of(Layer& layer);

}  // namespace bitloom::nn
