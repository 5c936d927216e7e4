// The checks of ops.h; what is computed is the backend's business.
#include "nn/ops.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "nn/backend.h"
#include "nn/bit_pack.h"
#include "nn/dropout.h"
#include "nn/few_bit.h"

namespace bitloom::nn {
namespace {

// What one op checks about its tensors; every complaint names the op.
class Check {
 public:
  Check(Engine& engine, std::string_view op) : engine_(engine), op_(op) {}

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    fail(ErrorKind::usage, "{}: {}", op_, fmt::format(text, std::forward<Args>(args)...));
  }

  void there(std::string_view name, const Tensor& tensor) const {
    if (!tensor) refuse("{}: no tensor", name);
    if (tensor.device() != engine_.device()) {
      refuse("{}: {} on {}; expected one on {}", name, to_text(tensor), name_of(tensor.device()), name_of(engine_.device()));
    }
  }
  // A tensor of values; gives V.
  DType values(std::string_view name, const Tensor& tensor) const {
    there(name, tensor);
    if (!is_float(tensor.dtype()) || !engine_.backend().supports(tensor.dtype())) {
      refuse("{}: {}; backend {} has no values of that type", name, to_text(tensor), engine_.backend_name());
    }
    return tensor.dtype();
  }
  void typed(std::string_view name, const Tensor& tensor, DType dtype) const {
    there(name, tensor);
    if (tensor.dtype() != dtype) refuse("{}: {}; expected {}", name, to_text(tensor), to_text(dtype));
  }
  void is(std::string_view name, const Tensor& tensor, DType dtype, const Shape& shape) const {
    there(name, tensor);
    if (tensor.dtype() != dtype || tensor.shape() != shape) {
      refuse("{}: {}; expected {} {}", name, to_text(tensor), to_text(dtype), to_text(shape));
    }
  }
  void like(std::string_view name, const Tensor& tensor, const Tensor& other) const {
    is(name, tensor, other.dtype(), other.shape());
  }
  void axes(std::string_view name, const Tensor& tensor, std::size_t count) const {
    there(name, tensor);
    if (tensor.shape().axes() != count) refuse("{}: {}; expected {} axes", name, to_text(tensor), count);
  }
  void some_axes(std::string_view name, const Tensor& tensor) const {
    there(name, tensor);
    if (tensor.shape().axes() == 0) refuse("{}: {}; expected at least one axis", name, to_text(tensor));
  }
  void positive(std::string_view name, double value) const {
    if (!(value > 0)) refuse("{}: {}; expected more than 0", name, value);
  }
  void rate(double rate) const {
    if (!(rate >= 0 && rate < 1) || dropout_threshold(rate) == 65536) refuse("rate: {}; expected 0 <= rate < 1", rate);
  }

  static bool is_float(DType dtype) {
    return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
  }
  // P for V.
  static DType of_parameters(DType values) { return values == DType::f64 ? DType::f64 : DType::f32; }

 private:
  Engine& engine_;
  std::string_view op_;
};

// What a table's elements take in a stash.
unsigned few_bits(const Check& check, const FewBitTable& table) {
  const std::size_t levels = table.levels.size();
  if (levels < 2 || levels > 256 || !std::has_single_bit(levels) || table.boundaries.size() != levels - 1) {
    check.refuse("table: {} levels and {} boundaries; expected 2, 4, ... 256 and one fewer", levels, table.boundaries.size());
  }
  return static_cast<unsigned>(std::bit_width(levels - 1));
}

// Whether writing one tensor changes the other, unless both are the same elements.
bool overlap(const Tensor& a, const Tensor& b) {
  const auto* first = static_cast<const std::byte*>(a.data());
  const auto* second = static_cast<const std::byte*>(b.data());
  return first < second + b.bytes() && second < first + a.bytes();
}

}  // namespace

void matmul(Engine& engine, const Tensor& a, const Tensor& b, Tensor& out, const MatmulOptions& options) {
  const Check check(engine, "matmul");
  const DType values = check.values("a", a);
  check.typed("b", b, values);
  check.there("out", out);
  const std::size_t axes = a.shape().axes();
  if ((axes != 2 && axes != 3) || b.shape().axes() != axes || out.shape().axes() != axes) {
    check.refuse("a {}, b {}, out {}; expected two axes each, or three", to_text(a), to_text(b), to_text(out));
  }
  const std::size_t rows_axis = axes - 2;
  const std::size_t columns_axis = axes - 1;
  const std::size_t m = a.shape()[options.transpose_a ? columns_axis : rows_axis];
  const std::size_t k = a.shape()[options.transpose_a ? rows_axis : columns_axis];
  const std::size_t n = b.shape()[options.transpose_b ? rows_axis : columns_axis];
  const bool batches = axes == 2 || (a.shape()[0] == b.shape()[0] && a.shape()[0] == out.shape()[0]);
  if (!batches || b.shape()[options.transpose_b ? columns_axis : rows_axis] != k || out.shape()[rows_axis] != m ||
      out.shape()[columns_axis] != n) {
    check.refuse("a {}{}, b {}{}, out {}: the shapes do not fit", to_text(a), options.transpose_a ? " transposed" : "",
                 to_text(b), options.transpose_b ? " transposed" : "", to_text(out));
  }
  if (out.dtype() != values && out.dtype() != Check::of_parameters(values)) {
    check.refuse("out: {}; expected {} or {}", to_text(out), to_text(values), to_text(Check::of_parameters(values)));
  }
  if (options.bias) check.is("bias", options.bias, Check::of_parameters(values), {n});
  if (options.accumulate && (options.bias || options.activation != nullptr)) {
    check.refuse("neither bias nor activation where products accumulate");
  }
  if (overlap(out, a) || overlap(out, b)) check.refuse("out is in the memory of a or b");
  engine.backend().matmul(a, b, out, options);
}

void add_row_sums(Engine& engine, const Tensor& x, Tensor& sums) {
  const Check check(engine, "add_row_sums");
  const DType values = check.values("x", x);
  check.some_axes("x", x);
  check.is("sums", sums, Check::of_parameters(values), {x.shape().back()});
  engine.backend().add_row_sums(x, sums);
}

void convert(Engine& engine, const Tensor& x, Tensor& y) {
  const Check check(engine, "convert");
  check.values("x", x);
  check.values("y", y);
  if (x.dtype() == y.dtype() || x.shape() != y.shape()) {
    check.refuse("x {}, y {}; expected equal shapes and different types", to_text(x), to_text(y));
  }
  engine.backend().convert(x, y);
}

namespace {

template <typename T>
bool holds(double value) {
  // The largest value of 64 bits is no double; one more is.
  return value >= static_cast<double>(std::numeric_limits<T>::min()) &&
         value < static_cast<double>(std::numeric_limits<T>::max() / 2 + 1) * 2 && value == std::trunc(value);
}

bool is_integer_of(DType dtype, double value) {
  switch (dtype) {
    case DType::u8: return holds<std::uint8_t>(value);
    case DType::i8: return holds<std::int8_t>(value);
    case DType::u16: return holds<std::uint16_t>(value);
    case DType::i16: return holds<std::int16_t>(value);
    case DType::u32: return holds<std::uint32_t>(value);
    case DType::i32: return holds<std::int32_t>(value);
    case DType::u64: return holds<std::uint64_t>(value);
    case DType::i64: return holds<std::int64_t>(value);
    default: return false;
  }
}

}  // namespace

void fill(Engine& engine, Tensor& y, double value) {
  const Check check(engine, "fill");
  check.there("y", y);
  if (!Check::is_float(y.dtype()) && !is_integer_of(y.dtype(), value)) {
    check.refuse("value: {}; expected one that {} can hold", value, to_text(y.dtype()));
  }
  engine.backend().fill(y, value);
}

void add(Engine& engine, const Tensor& a, const Tensor& b, Tensor& y) {
  const Check check(engine, "add");
  check.values("a", a);
  check.like("b", b, a);
  check.like("y", y, a);
  engine.backend().add(a, b, y);
}

void scale_add(Engine& engine, double alpha, const Tensor& x, double beta, Tensor& y) {
  const Check check(engine, "scale_add");
  check.values("x", x);
  check.is("y", y, check.values("y", y), x.shape());
  engine.backend().scale_add(alpha, x, beta, y);
}

void activate(Engine& engine, const Activation& activation, const Tensor& x, Tensor& y) {
  const Check check(engine, "activate");
  check.values("x", x);
  check.like("y", y, x);
  engine.backend().activate(activation, x, y);
}

void activate_backward(Engine& engine, const Activation& activation, const Tensor& x, const Tensor& dy, Tensor& dx) {
  const Check check(engine, "activate_backward");
  check.values("x", x);
  check.like("dy", dy, x);
  check.like("dx", dx, x);
  engine.backend().activate_backward(activation, x, dy, dx);
}

void activate_few_bit(Engine& engine, const Activation& activation, const FewBitTable& table, const Tensor& x, Tensor& y,
                      Tensor& stash) {
  const Check check(engine, "activate_few_bit");
  check.values("x", x);
  check.like("y", y, x);
  check.is("stash", stash, DType::u8, {packed_bytes(x.size(), few_bits(check, table))});
  engine.backend().activate_few_bit(activation, table, x, y, stash);
}

void activate_few_bit_backward(Engine& engine, const FewBitTable& table, const Tensor& stash, const Tensor& dy, Tensor& dx) {
  const Check check(engine, "activate_few_bit_backward");
  check.values("dy", dy);
  check.like("dx", dx, dy);
  check.is("stash", stash, DType::u8, {packed_bytes(dy.size(), few_bits(check, table))});
  engine.backend().activate_few_bit_backward(table, stash, dy, dx);
}

void dropout(Engine& engine, const Dropout& dropout, const Tensor& x, Tensor& y) {
  const Check check(engine, "dropout");
  check.values("x", x);
  check.like("y", y, x);
  check.rate(dropout.rate);
  engine.backend().dropout(dropout, x, y);
}

void gather(Engine& engine, const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate) {
  const Check check(engine, "gather");
  check.axes("table", table, 2);
  const DType values = check.values("out", out);
  if (table.dtype() != values && table.dtype() != Check::of_parameters(values)) {
    check.refuse("table: {}; expected {} or {}", to_text(table), to_text(values), to_text(Check::of_parameters(values)));
  }
  check.axes("ids", ids, 1);
  check.typed("ids", ids, DType::i32);
  check.is("out", out, values, {ids.size(), table.shape()[1]});
  engine.backend().gather(table, ids, out, accumulate);
}

void scatter_add(Engine& engine, const Tensor& dout, const Tensor& ids, Tensor& dtable) {
  const Check check(engine, "scatter_add");
  const DType values = check.values("dout", dout);
  check.axes("ids", ids, 1);
  check.typed("ids", ids, DType::i32);
  check.axes("dtable", dtable, 2);
  check.typed("dtable", dtable, Check::of_parameters(values));
  check.is("dout", dout, values, {ids.size(), dtable.shape()[1]});
  engine.backend().scatter_add(dout, ids, dtable);
}

void layer_norm(Engine& engine, const Tensor& x, const Tensor& gain, const Tensor& bias, double epsilon, Tensor& y,
                Tensor& mean, Tensor& rstd) {
  const Check check(engine, "layer_norm");
  const DType parameters = Check::of_parameters(check.values("x", x));
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
  const DType parameters = Check::of_parameters(check.values("x", x));
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
  const DType parameters = Check::of_parameters(check.values("x", x));
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
  const DType parameters = Check::of_parameters(check.values("x", x));
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
  const DType parameters = Check::of_parameters(check.values("x", x));
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
  check.positive("scale", shape.scale);
  check.rate(dropout.rate);
  const DType values = check.values("q", q.tensor);
  check.axes("q", q.tensor, 3);
  const std::size_t sequences = q.tensor.shape()[0];
  check_heads(check, "q", q, shape, values, sequences, mask.queries());
  check_heads(check, "k", k, shape, values, sequences, mask.keys());
  check_heads(check, "v", v, shape, values, sequences, mask.keys());
  check_heads(check, "out", out, shape, values, sequences, mask.queries());
  check.is("lse", lse, Check::of_parameters(values), {sequences, shape.heads, mask.queries()});
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

namespace {

struct Named {
  std::string_view name;
  const Tensor& tensor;
};

// x (N,Y,X,I), w (O,I,KY,KX), y (N,Y',X',O), or their gradients.
void check_conv(const Check& check, const Conv2d& conv, const Named& x_named, const Named& w_named, const Named& y_named) {
  const auto& [x_name, x] = x_named;
  const auto& [w_name, w] = w_named;
  const auto& [y_name, y] = y_named;
  check.axes(x_name, x, 4);
  check.axes(w_name, w, 4);
  check.axes(y_name, y, 4);
  if (conv.stride == 0) check.refuse("stride: 0; expected at least 1");
  std::array<std::size_t, 2> lengths = {};
  for (const std::size_t i : {0U, 1U}) {
    const std::size_t padded = x.shape()[1 + i] + 2 * conv.padding;
    const std::size_t kernel = w.shape()[2 + i];
    if (kernel == 0 || kernel > padded) {
      check.refuse("{}: {}: a kernel that is not within {} {} padded by {}", w_name, to_text(w), x_name, to_text(x),
                   conv.padding);
    }
    lengths[i] = (padded - kernel) / conv.stride + 1;
  }
  const Shape expected = {x.shape()[0], lengths[0], lengths[1], w.shape()[0]};
  if (w.shape()[1] != x.shape()[3] || y.shape() != expected) {
    check.refuse("{} {}, {} {}, {} {}: the shapes do not fit; expected {} {}", x_name, to_text(x), w_name, to_text(w), y_name,
                 to_text(y), y_name, to_text(expected));
  }
}

}  // namespace

void conv2d(Engine& engine, const Conv2d& conv, const Tensor& x, const Tensor& w, const Tensor& bias, Tensor& y) {
  const Check check(engine, "conv2d");
  const DType values = check.values("x", x);
  check.typed("w", w, values);
  check.typed("y", y, values);
  check_conv(check, conv, {"x", x}, {"w", w}, {"y", y});
  if (bias) check.is("bias", bias, Check::of_parameters(values), {w.shape()[0]});
  engine.backend().conv2d(conv, x, w, bias, y);
}

void conv2d_backward_data(Engine& engine, const Conv2d& conv, const Tensor& dy, const Tensor& w, Tensor& dx) {
  const Check check(engine, "conv2d_backward_data");
  const DType values = check.values("dy", dy);
  check.typed("w", w, values);
  check.typed("dx", dx, values);
  check_conv(check, conv, {"dx", dx}, {"w", w}, {"dy", dy});
  engine.backend().conv2d_backward_data(conv, dy, w, dx);
}

void conv2d_backward_weights(Engine& engine, const Conv2d& conv, const Tensor& x, const Tensor& dy, Tensor& dw) {
  const Check check(engine, "conv2d_backward_weights");
  const DType values = check.values("x", x);
  check.typed("dy", dy, values);
  check.typed("dw", dw, Check::of_parameters(values));
  check_conv(check, conv, {"x", x}, {"dw", dw}, {"dy", dy});
  engine.backend().conv2d_backward_weights(conv, x, dy, dw);
}

namespace {

// Of (N,Y,X,C), with Y and X k times smaller.
Shape pooled(const Check& check, std::size_t k, std::string_view name, const Tensor& large) {
  check.axes(name, large, 4);
  const Shape& shape = large.shape();
  if (k == 0 || k > 15 || shape[1] % k != 0 || shape[2] % k != 0) {
    check.refuse("{}: {}: windows of {} x {} do not fit; expected 1 to 15 that divide both", name, to_text(large), k, k);
  }
  return shape.with(1, shape[1] / k).with(2, shape[2] / k);
}

}  // namespace

void max_pool(Engine& engine, std::size_t k, const Tensor& x, Tensor& y, Tensor& which) {
  const Check check(engine, "max_pool");
  const DType values = check.values("x", x);
  const Shape small = pooled(check, k, "x", x);
  check.is("y", y, values, small);
  check.is("which", which, DType::u8, small);
  engine.backend().max_pool(k, x, y, which);
}

void max_pool_backward(Engine& engine, std::size_t k, const Tensor& dy, const Tensor& which, Tensor& dx) {
  const Check check(engine, "max_pool_backward");
  const DType values = check.values("dx", dx);
  const Shape small = pooled(check, k, "dx", dx);
  check.is("dy", dy, values, small);
  check.is("which", which, DType::u8, small);
  engine.backend().max_pool_backward(k, dy, which, dx);
}

void upsample(Engine& engine, std::size_t k, const Tensor& x, Tensor& y) {
  const Check check(engine, "upsample");
  const DType values = check.values("y", y);
  check.is("x", x, values, pooled(check, k, "y", y));
  engine.backend().upsample(k, x, y);
}

void upsample_backward(Engine& engine, std::size_t k, const Tensor& dy, Tensor& dx) {
  const Check check(engine, "upsample_backward");
  const DType values = check.values("dy", dy);
  check.is("dx", dx, values, pooled(check, k, "dy", dy));
  engine.backend().upsample_backward(k, dy, dx);
}

void cross_entropy(Engine& engine, const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                   Tensor* dlogits) {
  const Check check(engine, "cross_entropy");
  const DType values = check.values("logits", logits);
  check.axes("logits", logits, 2);
  check.is("targets", targets, DType::i32, {logits.shape()[0]});
  check.is("loss", loss, Check::of_parameters(values), {logits.shape()[0]});
  if (classes == 0 || classes > logits.shape()[1]) {
    check.refuse("classes: {}; expected 1 to {}", classes, logits.shape()[1]);
  }
  if (dlogits != nullptr) check.like("dlogits", *dlogits, logits);
  engine.backend().cross_entropy(logits, targets, classes, scale, loss, dlogits);
}

void adamw(Engine& engine, std::span<const AdamWTensors> tensors, const AdamWStep& step) {
  const Check check(engine, "adamw");
  if (step.step == 0) check.refuse("step: 0; expected 1 for the first");
  for (const AdamWTensors& each : tensors) {
    const DType values = check.values("value", each.value);
    if (values != Check::of_parameters(values)) check.refuse("value: {}; expected f32", to_text(each.value));
    check.like("gradient", each.gradient, each.value);
    check.like("mean", each.mean, each.value);
    check.like("variance", each.variance, each.value);
    if (each.copy) check.is("copy", each.copy, check.values("copy", each.copy), each.value.shape());
  }
  engine.backend().adamw(tensors, step);
}

double sum_of_squares(Engine& engine, std::span<const Tensor> tensors) {
  const Check check(engine, "sum_of_squares");
  for (const Tensor& tensor : tensors) check.values("x", tensor);
  return engine.backend().sum_of_squares(tensors);
}

}  // namespace bitloom::nn
