// The bottleneck of a discrete variational autoencoder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "nn/layer.h"

namespace bitloom::nn {

// y = softmax((x + Gumbel noise) / temperature) over the last axis, a relaxed draw from the categorical distributions whose
// logits are x (Ramesh et al. 2021, section 2.1). Their divergence from the uniform distribution comes to the task's loss:
// kl_weight times the sum over all rows. Not in training there is no noise.
class RelaxedCategorical final : public Layer {
 public:
  struct Options {
    std::function<double(std::uint64_t step)> temperature, kl_weight;
    std::uint64_t number = 0;  // distinct for every layer of the net that draws random numbers
  };
  explicit RelaxedCategorical(Options options) : options_(std::move(options)) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override { return 60 * static_cast<double>(x.size()); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override { return 2 * x.size() * dtype_size(values); }
  bool keeps_input() const override { return true; }

 private:
  Options options_;
};

}  // namespace bitloom::nn
