#include "nn/layers/blocks.h"

#include <algorithm>

#include "core/error.h"

namespace bitloom::nn {
namespace {

// a + b, of a's type, in b's memory if nobody else looks at it.
Tensor sum(Engine& engine, const Tensor& a, Tensor b) {
  b = converted(engine, b, a.dtype());
  Tensor y = b.is_shared() ? engine.empty(b.shape(), b.dtype(), Use::activations) : b;
  add(engine, a, b, y);
  return y;
}

}  // namespace

Residual::Residual(LayerPointer branch, std::optional<std::size_t> block, LayerPointer skip)
    : branch_(std::move(branch)), skip_(std::move(skip)), block_(block) {
  for (Parameter* parameter : parameters_of(*branch_)) {
    if (!parameter->block) parameter->block = block;
  }
}

Tensor Residual::forward(Pass& pass, const Tensor& x) {
  Tensor inside = branch_->forward(pass, x);
  return sum(pass.engine, skip_ ? skip_->forward(pass, x) : x, std::move(inside));
}

Tensor Residual::backward(Pass& pass, const Tensor& dy) {
  if (pass.branch_scales != nullptr && block_) return backward_scaled(pass, dy, pass.branch_scales->of(*block_));
  const Tensor around = skip_ ? skip_->backward(pass, dy) : dy;
  return sum(pass.engine, around, branch_->backward(pass, dy));
}

// Overflow in the branch shows in the gradients of its parameters, but for that of the branch's first operation, such as a
// LayerNorm's, which is noted there. On its way down it would show in those of all blocks below, too, and make their scales
// fall for nothing (Ramesh et al. 2021, figure 4): it ends here.
Tensor Residual::backward_scaled(Pass& pass, const Tensor& dy, double scale) {
  if (skip_) fail(ErrorKind::internal, "residual: a scale of its own beside a skip connection that changes shapes");
  Engine& engine = pass.engine;
  const DType values = pass.branch_scales->values;
  Tensor inside = engine.empty(dy.shape(), values, Use::activations);
  scale_add(engine, scale, dy, 0, inside);
  // Gradients go on their way when they are announced: not before the note.
  std::vector<Parameter*> formed;
  Pass held = pass;
  if (pass.on_gradient) held.on_gradient = [&](Parameter& parameter) { formed.push_back(&parameter); };
  inside = branch_->backward(held, inside);
  note_overflow(engine, inside);
  for (Parameter* parameter : formed) pass.on_gradient(*parameter);
  Tensor dx = engine.empty(dy.shape(), parameter_type(values), Use::activations);
  scale_add(engine, 1, dy, 0, dx);
  add_finite(engine, 1 / scale, inside, dx);
  return dx;
}

// Makes a gradient NaN where gradients (..., C) are not finite: that of the branch's first vector of C elements, if it has one.
void Residual::note_overflow(Engine& engine, const Tensor& gradients) {
  const std::size_t columns = gradients.shape().back();
  for (Parameter* parameter : parameters_of(*branch_)) {
    if (parameter->is_frozen || parameter->overwrites || parameter->shape != Shape{columns}) continue;
    Tensor sums = engine.zeros({columns}, parameter_type(gradients.dtype()), Use::workspace);
    add_row_sums(engine, gradients, sums);
    scale_add(engine, 0, sums, 1, parameter->gradient);  // 0 times infinity is NaN
    return;
  }
}

void Residual::add_parameters(std::vector<Parameter*>& all) {
  branch_->add_parameters(all);
  if (skip_) skip_->add_parameters(all);
}

void Residual::end_step(Pass& pass, bool counts, std::size_t replicas) {
  branch_->end_step(pass, counts, replicas);
  if (skip_) skip_->end_step(pass, counts, replicas);
}

void Residual::add_step_sums(std::vector<Tensor*>& all) {
  branch_->add_step_sums(all);
  if (skip_) skip_->add_step_sums(all);
}

void Residual::add_buffers(Engine& engine, DType values, std::vector<std::pair<std::string, Tensor*>>& all) {
  branch_->add_buffers(engine, values, all);
  if (skip_) skip_->add_buffers(engine, values, all);
}

Shape Residual::output(const Shape& x) const {
  const Shape around = skip_ ? skip_->output(x) : x;
  if (const Shape y = branch_->output(x); y != around) {
    fail(ErrorKind::usage, "residual: a branch from {} to {} beside a skip connection to {}; expected equal shapes", to_text(x),
         to_text(y), to_text(around));
  }
  return around;
}

double Residual::cost(const Shape& x) const {
  return branch_->cost(x) + (skip_ ? skip_->cost(x) : 0) + static_cast<double>(output(x).size());
}

std::uint64_t Residual::stash_bytes(const Shape& x, DType values) const {
  return branch_->stash_bytes(x, values) + (skip_ ? skip_->stash_bytes(x, values) : 0);
}

std::uint64_t Residual::peak_stash_bytes(const Shape& x, DType values) const {
  const std::uint64_t in_forward = branch_->peak_stash_bytes(x, values);
  return skip_ ? std::max(in_forward, branch_->stash_bytes(x, values) + skip_->peak_stash_bytes(x, values)) : in_forward;
}

Tensor Recomputed::forward(Pass& pass, const Tensor& x) {
  Pass without = pass;
  without.stash = nullptr;
  Tensor y = layer_->forward(without, x);
  pass.keep(x);
  return y;
}

Tensor Recomputed::backward(Pass& pass, const Tensor& dy) {
  const Tensor x = pass.stash->take();
  Stash stash;
  Pass inner = pass;
  inner.stash = &stash;
  inner.again = true;
  layer_->forward(inner, x);
  Tensor dx = layer_->backward(inner, dy);
  if (!stash.empty()) fail(ErrorKind::internal, "recomputed layer: {} tensors are left in its stash", stash.size());
  return dx;
}

}  // namespace bitloom::nn
