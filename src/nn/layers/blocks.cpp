#include "nn/layers/blocks.h"

#include "core/error.h"

namespace bitloom::nn {
namespace {

// a + b, in b's memory if nobody else looks at it.
Tensor sum(Engine& engine, const Tensor& a, Tensor b) {
  Tensor y = b.is_shared() ? engine.empty(b.shape(), b.dtype(), Use::activations) : b;
  add(engine, a, b, y);
  return y;
}

}  // namespace

Residual::Residual(LayerPointer branch, std::optional<std::size_t> block) : branch_(std::move(branch)) {
  for (Parameter* parameter : parameters_of(*branch_)) {
    if (!parameter->block) parameter->block = block;
  }
}

Tensor Residual::forward(Pass& pass, const Tensor& x) { return sum(pass.engine, x, branch_->forward(pass, x)); }

Tensor Residual::backward(Pass& pass, const Tensor& dy) {
  Tensor inside = hooks_.enter ? hooks_.enter(pass, dy) : dy;
  inside = branch_->backward(pass, inside);
  if (hooks_.leave) inside = hooks_.leave(pass, std::move(inside));
  return sum(pass.engine, dy, std::move(inside));
}

Shape Residual::output(const Shape& x) const {
  if (const Shape y = branch_->output(x); y != x) {
    fail(ErrorKind::usage, "residual: a branch from {} to {}; expected equal shapes", to_text(x), to_text(y));
  }
  return x;
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
