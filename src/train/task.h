// Task of a float trainer: a net, its loss, and where its micro-batches come from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nn/layer.h"

namespace bitloom::train {

// Sums over what a micro-batch asks for.
struct Loss {
  double sum = 0;           // in nats
  std::uint64_t count = 0;  // number of targets that count
};

// Losses of a micro-batch, on its device.
struct PartLoss {
  nn::Tensor losses;        // type P; those of targets that do not count are 0
  std::uint64_t count = 0;  // of targets that count
};

// Adds micro-batches up in double precision, in their order. Looks at the losses of several at once, so that a GPU need not
// wait for the host after each.
class LossSum {
 public:
  explicit LossSum(nn::Engine& engine) : engine_(engine) {}
  void add(PartLoss part);
  Loss total();

 private:
  void accumulate();

  nn::Engine& engine_;
  std::vector<PartLoss> parts_;
  Loss loss_;
};

// The targets of the micro-batch whose input was asked for last, until its losses are. A process that asks for losses alone
// fetches them.
template <typename T>
class Awaited {
 public:
  void put(const nn::Pass& pass, T targets) { held_ = Held{pass.step, pass.micro_batch, std::move(targets)}; }
  std::optional<T> take(const nn::Pass& pass) {
    if (!held_ || held_->step != pass.step || held_->micro_batch != pass.micro_batch) return std::nullopt;
    return std::exchange(held_, std::nullopt)->targets;
  }

 private:
  struct Held {
    std::uint64_t step, micro_batch;
    T targets;
  };
  std::optional<Held> held_;
};

// A net is a sequence of layers, of which a process may have a part: the first process of a pipeline asks for the input of a
// micro-batch, the last one for its losses.
class Task {
 public:
  virtual ~Task() = default;

  virtual nn::Sequence& net() = 0;
  // Shape and type, if it is not V, of the first layer's input, a micro-batch's.
  virtual nn::Shape input_shape() const = 0;
  virtual std::optional<DType> input_type() const { return {}; }
  // Multiplications and additions of the loss beside the net's, where they count.
  virtual double loss_cost() const { return 0; }
  // Targets in all micro-batches of a step: what the step's loss is the mean over.
  virtual std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) = 0;
  // The first layer's input of micro-batch pass.micro_batch of pass.step, whose examples follow from these two numbers alone.
  virtual nn::Tensor input(nn::Pass& pass) = 0;
  // The losses of that micro-batch by the last layer's output y, which is overwritten if need be. dy, if any, becomes the
  // gradient by y of `scale` times the sum of losses; it is then added to the gradients of head_parameters(), too.
  virtual PartLoss loss(nn::Pass& pass, nn::Tensor y, double scale, nn::Tensor* dy) = 0;
  // Whether layers of the net have losses of their own (nn::Pass::on_loss), which the stages of a pipeline then add up.
  virtual bool has_layer_losses() const { return false; }
  // Parameters of the net that loss() reads: a table that gives the logits, say.
  virtual std::vector<nn::Parameter*> head_parameters() { return {}; }
};

// Micro-batch pass.micro_batch, forward and, if there is a stash, backward, by a process that has the whole net.
PartLoss run_micro_batch(Task& task, nn::Pass& pass, double scale);

// Examples with one label each, under a net that ends in logits (N,C).
class Classification final : public Task {
 public:
  struct Batch {
    nn::Tensor x;
    nn::Tensor labels;  // (N) i32
    // (N,C) V, or none: the distribution over the classes that an example's target is, less the one that its label is by
    // itself, smoothed. Soft labels, for example.
    nn::Tensor target_changes = {};
  };
  using Source = std::function<Batch(std::uint64_t step, std::uint64_t micro_batch)>;
  // input: shape of a micro-batch's x. smoothing: of labels, as cross_entropy() has it.
  Classification(std::shared_ptr<nn::Sequence> net, const nn::Shape& input, Source source, double smoothing = 0);

  nn::Sequence& net() override { return *net_; }
  nn::Shape input_shape() const override { return input_; }
  std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) override;
  nn::Tensor input(nn::Pass& pass) override;
  PartLoss loss(nn::Pass& pass, nn::Tensor y, double scale, nn::Tensor* dy) override;

 private:
  struct Targets {
    nn::Tensor labels, changes;
  };
  Batch fetch(const nn::Pass& pass) const;

  std::shared_ptr<nn::Sequence> net_;
  nn::Shape input_;
  std::size_t examples_;  // rows of logits
  Source source_;
  double smoothing_;
  Awaited<Targets> awaited_;
};

}  // namespace bitloom::train
