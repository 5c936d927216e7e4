#include "nn/layers/categorical.h"

#include <algorithm>

#include "core/error.h"

namespace bitloom::nn {

Shape RelaxedCategorical::output(const Shape& x) const {
  if (x.axes() < 2 || x.back() == 0) fail(ErrorKind::usage, "relaxed categorical: x {}; expected rows of logits", to_text(x));
  return x;
}

Tensor RelaxedCategorical::forward(Pass& pass, const Tensor& x) {
  Tensor y = pass.engine.empty(output(x.shape()), x.dtype(), Use::activations);
  const double temperature = options_.temperature(pass.step);
  if (pass.training) {
    const std::size_t examples = x.shape()[0];
    const Dropout numbers = pass.dropout(0, options_.number, examples, x.size() / std::max<std::size_t>(1, examples));
    gumbel_softmax(pass.engine, {temperature, numbers.seed, numbers.site, numbers.first}, x, y);
  } else {
    scale_add(pass.engine, 1 / temperature, x, 0, y);
    softmax(pass.engine, y, y);
  }
  if (pass.on_loss && !pass.again) {
    Tensor kl = pass.engine.empty({x.shape().rows()}, parameter_type(x.dtype()), Use::activations);
    categorical_kl(pass.engine, x, 0, kl, nullptr);
    scale_add(pass.engine, options_.kl_weight(pass.step), kl, 0, kl);
    pass.on_loss(kl);
  }
  pass.keep(x);
  pass.keep(y);
  return y;
}

Tensor RelaxedCategorical::backward(Pass& pass, const Tensor& dy) {
  const Tensor y = pass.stash->take();
  const Tensor x = pass.stash->take();
  Tensor dx = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  gumbel_softmax_backward(pass.engine, options_.temperature(pass.step), y, dy, dx);
  Tensor kl = pass.engine.empty({x.shape().rows()}, parameter_type(x.dtype()), Use::workspace);
  categorical_kl(pass.engine, x, pass.loss_scale * options_.kl_weight(pass.step), kl, &dx);
  return dx;
}

}  // namespace bitloom::nn
