// The checks of ops.h: normalisation, softmax, attention.
#include <string_view>

#include "nn/ops_check.h"

namespace bitloom::nn {

void layer_norm(Engine& engine, const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y,
                Tensor& mean, Tensor& rstd) {
  const Check check(engine, "layer_norm");
  const DType parameters = parameter_type(check.values("x", x));
  check.some_axes("x", x);
  check.is("gain", gain, parameters, {x.shape().back()});
  check.is("bias", bias, parameters, {x.shape().back()});
  check.positive("epsilon", epsilon);
  check.like("y", y, x);
  check.is("mean", mean, parameters, {x.shape().rows()});
  check.is("rstd", rstd, parameters, {x.shape().rows()});
  engine.backend().layer_norm(x, gain, bias, epsilon, y, mean, rstd);
}

void layer_norm_backward(Engine& engine, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                         const Tensor& rstd, Tensor& dx, Tensor& dgain, Tensor& dbias, bool accumulate) {
  const Check check(engine, "layer_norm_backward");
  const DType parameters = parameter_type(check.values("x", x));
  check.some_axes("x", x);
  check.like("dy", dy, x);
  check.is("gain", gain, parameters, {x.shape().back()});
  check.is("mean", mean, parameters, {x.shape().rows()});
  check.is("rstd", rstd, parameters, {x.shape().rows()});
  check.like("dx", dx, x);
  check.is("dgain", dgain, parameters, {x.shape().back()});
  check.is("dbias", dbias, parameters, {x.shape().back()});
  engine.backend().layer_norm_backward(dy, x, gain, mean, rstd, dx, dgain, dbias, accumulate);
}

void batch_norm(Engine& engine, const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y,
                Tensor& mean, Tensor& variance) {
  const Check check(engine, "batch_norm");
  const DType parameters = parameter_type(check.values("x", x));
  check.some_axes("x", x);
  if (x.shape().rows() < 2) check.refuse("x: {}; expected at least two rows to have a variance", to_text(x));
  check.is("gain", gain, parameters, {x.shape().back()});
  check.is("bias", bias, parameters, {x.shape().back()});
  check.positive("epsilon", epsilon);
  check.like("y", y, x);
  check.is("mean", mean, parameters, {x.shape().back()});
  check.is("variance", variance, parameters, {x.shape().back()});
  engine.backend().batch_norm(x, gain, bias, epsilon, y, mean, variance);
}

void batch_norm_backward(Engine& engine, const Tensor& dy, const Tensor& x, const Tensor& gain, const Tensor& mean,
                         const Tensor& variance, double epsilon, Tensor& dx, Tensor& dgain, Tensor& dbias) {
  const Check check(engine, "batch_norm_backward");
  const DType parameters = parameter_type(check.values("x", x));
  check.some_axes("x", x);
  check.like("dy", dy, x);
  check.is("gain", gain, parameters, {x.shape().back()});
  check.is("mean", mean, parameters, {x.shape().back()});
  check.is("variance", variance, parameters, {x.shape().back()});
  check.positive("epsilon", epsilon);
  check.like("dx", dx, x);
  check.is("dgain", dgain, parameters, {x.shape().back()});
  check.is("dbias", dbias, parameters, {x.shape().back()});
  engine.backend().batch_norm_backward(dy, x, gain, mean, variance, epsilon, dx, dgain, dbias);
}

void batch_norm_inference(Engine& engine, const Tensor& x, const Tensor& gain, const Tensor& bias, const Tensor& mean,
                          const Tensor& variance, double epsilon, Tensor& y) {
  const Check check(engine, "batch_norm_inference");
  const DType parameters = parameter_type(check.values("x", x));
  check.some_axes("x", x);
  for (const auto& [name, tensor] : {std::pair("gain", &gain), {"bias", &bias}, {"mean", &mean}, {"variance", &variance}}) {
    check.is(name, *tensor, parameters, {x.shape().back()});
  }
  check.positive("epsilon", epsilon);
  check.like("y", y, x);
  engine.backend().batch_norm_inference(x, gain, bias, mean, variance, epsilon, y);
}

void softmax(Engine& engine, const Tensor& x, Tensor& y) {
  const Check check(engine, "softmax");
  check.values("x", x);
  check.some_axes("x", x);
  check.like("y", y, x);
  engine.backend().softmax(x, y);
}

void softmax_backward(Engine& engine, const Tensor& y, const Tensor& dy, Tensor& dx) {
  const Check check(engine, "softmax_backward");
  check.values("y", y);
  check.some_axes("y", y);
  check.like("dy", dy, y);
  check.like("dx", dx, y);
  engine.backend().softmax_backward(y, dy, dx);
}

void gumbel_softmax(Engine& engine, const Gumbel& gumbel, const Tensor& x, Tensor& y) {
  const Check check(engine, "gumbel_softmax");
  check.values("x", x);
  check.some_axes("x", x);
  check.positive("temperature", gumbel.temperature);
  check.like("y", y, x);
  engine.backend().gumbel_softmax(gumbel, x, y);
}

void gumbel_softmax_backward(Engine& engine, double temperature, const Tensor& y, const Tensor& dy, Tensor& dx) {
  const Check check(engine, "gumbel_softmax_backward");
  check.values("y", y);
  check.some_axes("y", y);
  check.positive("temperature", temperature);
  check.like("dy", dy, y);
  check.like("dx", dx, y);
  engine.backend().softmax_backward(y, dy, dx);
  engine.backend().scale_add(1 / temperature, dx, 0, dx);
}

void argmax_rows(Engine& engine, const Tensor& x, Tensor& ids) {
  const Check check(engine, "argmax_rows");
  check.values("x", x);
  check.some_axes("x", x);
  if (x.shape().back() == 0) check.refuse("x: {}; expected at least one column", to_text(x));
  check.is("ids", ids, DType::i32, {x.shape().rows()});
  engine.backend().argmax_rows(x, ids);
}

namespace {

// Heads of B sequences of `tokens` tokens.
void check_heads(const Check& check, std::string_view name, const Heads& heads, const AttentionShape& shape, DType values,
                 std::size_t sequences, std::size_t tokens) {
  check.axes(name, heads.tensor, 3);
  check.typed(name, heads.tensor, values);
  const Shape& is = heads.tensor.shape();
  const std::size_t width = shape.heads * shape.head_size;
  if (is[0] != sequences || is[1] != tokens || heads.first > is[2] || is[2] - heads.first < width) {
    check.refuse("{}: {}; expected {} sequences of {} tokens with {} heads of {} from column {} on", name,
                 to_text(heads.tensor), sequences, tokens, shape.heads, shape.head_size, heads.first);
  }
}

DType check_attention(const Check& check, const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout,
                      const Heads& q, const Heads& k, const Heads& v, const Heads& out, const Tensor& lse) {
  if (shape.heads == 0 || shape.head_size == 0) {
    check.refuse("{} heads of {}; expected at least one of 1", shape.heads, shape.head_size);
  }
  if (shape.all_heads == 0 ? shape.first_head != 0 : shape.first_head + shape.heads > shape.all_heads) {
    check.refuse("heads {} to {} of {}; expected at most all", shape.first_head, shape.first_head + shape.heads,
                 shape.all_heads);
  }
  check.positive("scale", shape.scale);
  check.rate(dropout.rate);
  const DType values = check.values("q", q.tensor);
  check.axes("q", q.tensor, 3);
  const std::size_t sequences = q.tensor.shape()[0];
  check_heads(check, "q", q, shape, values, sequences, mask.queries());
  check_heads(check, "k", k, shape, values, sequences, mask.keys());
  check_heads(check, "v", v, shape, values, sequences, mask.keys());
  check_heads(check, "out", out, shape, values, sequences, mask.queries());
  check.is("lse", lse, parameter_type(values), {sequences, shape.heads, mask.queries()});
  return values;
}

}  // namespace

void attention(Engine& engine, const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout, const Heads& q,
               const Heads& k, const Heads& v, const Heads& out, Tensor& lse) {
  check_attention(Check(engine, "attention"), shape, mask, dropout, q, k, v, out, lse);
  engine.backend().attention(shape, mask, dropout, q, k, v, out, lse);
}

void attention_backward(Engine& engine, const AttentionShape& shape, const AttentionMask& mask, const Dropout& dropout,
                        const Heads& q, const Heads& k, const Heads& v, const Heads& out, const Tensor& lse, const Heads& dout,
                        const Heads& dq, const Heads& dk, const Heads& dv) {
  const Check check(engine, "attention_backward");
  const DType values = check_attention(check, shape, mask, dropout, q, k, v, out, lse);
  const std::size_t sequences = q.tensor.shape()[0];
  check_heads(check, "dout", dout, shape, values, sequences, mask.queries());
  check_heads(check, "dq", dq, shape, values, sequences, mask.queries());
  check_heads(check, "dk", dk, shape, values, sequences, mask.keys());
  check_heads(check, "dv", dv, shape, values, sequences, mask.keys());
  engine.backend().attention_backward(shape, mask, dropout, q, k, v, out, lse, dout, dq, dk, dv);
}

}  // namespace bitloom::nn
