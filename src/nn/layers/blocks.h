// Layers that hold layers: residual blocks and blocks that are computed again.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>

#include "nn/layer.h"

namespace bitloom::nn {

// y = x + branch(x), or skip(x) + branch(x) where shapes change. What a branch gives may have type V where x and y have P (an
// identity path in 32 bits, Ramesh et al. 2021, figure 4): in passes with scales, whose gradients around the branch have P,
// too.
class Residual final : public Layer {
 public:
  // block: the number that its parameters get, if they have none, and of its branch's scale, if the pass has any.
  explicit Residual(LayerPointer branch, std::optional<std::size_t> block = {}, LayerPointer skip = {});

  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  bool takes_wide_gradients() const override { return block_.has_value(); }
  void add_parameters(std::vector<Parameter*>& all) override;
  void end_step(Pass& pass, bool counts, std::size_t replicas) override;
  void add_step_sums(std::vector<Tensor*>& all) override;
  void add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) override;
  Shape output(const Shape& x) const override;
  double cost(const Shape& x) const override;
  std::uint64_t stash_bytes(const Shape& x, DType values) const override;
  std::uint64_t peak_stash_bytes(const Shape& x, DType values) const override;
  bool keeps_input() const override { return branch_->keeps_input(); }

 private:
  void note_overflow(Engine& engine, const Tensor& gradients);
  Tensor backward_scaled(Pass& pass, const Tensor& dy, double scale);

  LayerPointer branch_, skip_;  // no skip_: x itself
  std::optional<std::size_t> block_;
};

// Keeps its input alone, and computes the layer again before its backward pass (Chen et al. 2016; Huang et al. 2019,
// section 2.3).
class Recomputed final : public Layer {
 public:
  // is_wide: x has type P, whatever V is.
  explicit Recomputed(LayerPointer layer, bool is_wide = false) : layer_(std::move(layer)), is_wide_(is_wide) {}
  Tensor forward(Pass& pass, const Tensor& x) override;
  Tensor backward(Pass& pass, const Tensor& dy) override;
  bool takes_wide_gradients() const override { return layer_->takes_wide_gradients(); }
  void add_parameters(std::vector<Parameter*>& all) override { layer_->add_parameters(all); }
  void end_step(Pass& pass, bool counts, std::size_t replicas) override { layer_->end_step(pass, counts, replicas); }
  void add_step_sums(std::vector<Tensor*>& all) override { layer_->add_step_sums(all); }
  void add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) override {
    layer_->add_buffers(engine, values, all);
  }
  Shape output(const Shape& x) const override { return layer_->output(x); }
  double cost(const Shape& x) const override { return layer_->cost(x); }
  std::uint64_t stash_bytes(const Shape& x, DType values) const override {
    return x.size() * dtype_size(is_wide_ ? parameter_type(values) : values);
  }
  std::uint64_t peak_stash_bytes(const Shape& x, DType values) const override {
    return (layer_->keeps_input() ? 0 : stash_bytes(x, values)) + layer_->peak_stash_bytes(x, values);
  }
  bool keeps_input() const override { return true; }

 private:
  LayerPointer layer_;
  bool is_wide_;
};

}  // namespace bitloom::nn
