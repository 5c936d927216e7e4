// What a float trainer trains: a net, its loss, and where its micro-batches come from.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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

// Of a micro-batch, on its device.
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

class Task {
 public:
  virtual ~Task() = default;

  virtual nn::Layer& net() = 0;
  // Targets in all micro-batches of a step: what the step's loss is the mean over.
  virtual std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) = 0;
  // Micro-batch pass.micro_batch of pass.step, forward and, if there is a stash, backward: adds `scale` times the gradient of
  // the sum of losses to the gradients of parameters. Which examples it has follows from the step and its number alone.
  virtual PartLoss run(nn::Pass& pass, double scale) = 0;
};

// Examples with one label each, under a net that ends in logits (N,C).
class Classification final : public Task {
 public:
  struct Batch {
    nn::Tensor x;
    nn::Tensor labels;  // (N) i32
  };
  using Source = std::function<Batch(std::uint64_t step, std::uint64_t micro_batch)>;
  // Every micro-batch has `examples` of them. smoothing: of labels, as cross_entropy() has it.
  Classification(std::shared_ptr<nn::Layer> net, std::size_t examples, Source source, double smoothing = 0);

  nn::Layer& net() override { return *net_; }
  std::uint64_t targets(std::uint64_t step, std::size_t micro_batches) override;
  PartLoss run(nn::Pass& pass, double scale) override;

 private:
  std::shared_ptr<nn::Layer> net_;
  std::size_t examples_;
  Source source_;
  double smoothing_;
};

}  // namespace bitloom::train
