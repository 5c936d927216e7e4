// Layers that hold layers: residual blocks and blocks that are computed again.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "nn/layer.h"

namespace bitloom::nn {

// Called with the gradient where it enters a residual branch from above and where it leaves it below: a scale of the block's
// own goes on and off here (Ramesh et al. 2021, section 2.4), and other number formats begin and end. Each returns what goes
// on.
struct BranchHooks {
  std::function<Tensor(Pass&, Tensor)> enter, leave;
};

// y = x + branch(x), or skip(x) + branch(x) where shapes change.
class Residual final : public Layer {
 public:
  // block: the number that its parameters get, if they have none.
  explicit Residual(LayerPointer branch, std::optional<std::size_t> block = {}, LayerPointer skip = {});
  void set_hooks(BranchHooks hooks) { hooks_ = std::move(hooks); }

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override;
  void end_step(Pass& pass, bool counts) override;
  void add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override;
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  std::uint64_t peak_stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return branch_->keeps_input(); }

 private:
  LayerPointer branch_, skip_;  // no skip_: x itself
  BranchHooks hooks_;
};

// Keeps its input alone, and computes the layer again before its backward pass (Chen et al. 2016; Huang et al. 2019,
// section 2.3).
class Recomputed final : public Layer {
 public:
  explicit Recomputed(LayerPointer layer) : layer_(std::move(layer)) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  void add_parameters(std::vector<Parameter*>& all) override { layer_->add_parameters(all); }
  void end_step(Pass& pass, bool counts) override { layer_->end_step(pass, counts); }
  void add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) override {
    layer_->add_buffers(engine, values, all);
  }
  Shape output(const Shape& x) const override { return layer_->output(x); }
  double cost(const Shape& x) const override { return layer_->cost(x); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override { return x.size() * dtype_size(values); }
  std::uint64_t peak_stash_bytes(const Shape& x, DType values) const override {
    return (layer_->keeps_input() ? 0 : stash_bytes(x, values)) + layer_->peak_stash_bytes(x, values);
  }
  bool keeps_input() const override { return true; }

 private:
  LayerPointer layer_;
};

}  // namespace bitloom::nn
