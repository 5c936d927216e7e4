// The checks of ops.h: matrices, elements, tables of rows, loss, optimiser. What is computed is the backend's business.
#include "nn/ops.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "nn/bit_pack.h"
#include "nn/few_bit.h"
#include "nn/group_quantiser.h"
#include "nn/ops_check.h"

namespace bitloom::nn {

DType parameter_type(DType values) { return values == DType::f64 ? DType::f64 : DType::f32; }

namespace {

// Bits that a table's elements take in a stash.
unsigned few_bits(const Check& check, const FewBitTable& table) {
  const std::size_t levels = table.levels.size();
  if (levels < 2 || levels > 256 || !std::has_single_bit(levels) || table.boundaries.size() != levels - 1) {
    check.refuse("table: {} levels and {} boundaries; expected 2, 4, ... 256 and one fewer", levels, table.boundaries.size());
  }
  return table.bits();
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
  if (out.dtype() != values && out.dtype() != parameter_type(values)) {
    check.refuse("out: {}; expected {} or {}", to_text(out), to_text(values), to_text(parameter_type(values)));
  }
  if (options.bias) check.is("bias", options.bias, parameter_type(values), {n});
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
  check.is("sums", sums, parameter_type(values), {x.shape().back()});
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

Tensor converted(Engine& engine, const Tensor& x, DType type) {
  if (x.dtype() == type) return x;
  Tensor y = engine.empty(x.shape(), type, Use::activations);
  convert(engine, x, y);
  return y;
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

void add_finite(Engine& engine, double alpha, const Tensor& x, Tensor& y) {
  const Check check(engine, "add_finite");
  check.values("x", x);
  check.is("y", y, check.values("y", y), x.shape());
  engine.backend().add_finite(alpha, x, y);
}

void clamp(Engine& engine, double limit, const Tensor& x, Tensor& y) {
  const Check check(engine, "clamp");
  check.values("x", x);
  check.like("y", y, x);
  check.positive("limit", limit);
  engine.backend().clamp(limit, x, y);
}

void clamp_backward(Engine& engine, double limit, const Tensor& x, const Tensor& dy, Tensor& dx) {
  const Check check(engine, "clamp_backward");
  check.values("x", x);
  check.like("dy", dy, x);
  check.like("dx", dx, x);
  check.positive("limit", limit);
  engine.backend().clamp_backward(limit, x, dy, dx);
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

namespace {

// Checks what is kept of n elements.
void check_groups(const Check& check, unsigned bits, std::size_t n, const Tensor& packed, const Tensor& ranges) {
  if (bits < 1 || bits > 8) check.refuse("bits: {}; expected 1 to 8", bits);
  check.is("packed", packed, DType::u8, {packed_bytes(n, bits)});
  check.is("ranges", ranges, DType::f32, {quantiser_groups(n), 2});
}

}  // namespace

void quantise_groups(Engine& engine, const GroupRounding& rounding, const Tensor& x, Tensor& packed, Tensor& ranges) {
  const Check check(engine, "quantise_groups");
  check.values("x", x);
  check_groups(check, rounding.bits, x.size(), packed, ranges);
  check.multiple("first", rounding.first, quantiser_draws);
  engine.backend().quantise_groups(rounding, x, packed, ranges);
}

void restore_groups(Engine& engine, unsigned bits, const Tensor& packed, const Tensor& ranges, Tensor& x) {
  const Check check(engine, "restore_groups");
  check.values("x", x);
  check_groups(check, bits, x.size(), packed, ranges);
  engine.backend().restore_groups(bits, packed, ranges, x);
}

void dropout(Engine& engine, const Dropout& dropout, const Tensor& x, Tensor& y) {
  const Check check(engine, "dropout");
  check.values("x", x);
  check.like("y", y, x);
  check.rate(dropout.rate);
  check.multiple("first", dropout.first, dropout_group);
  engine.backend().dropout(dropout, x, y);
}

namespace {

// The slice that a table of `rows` rows is, if none is given all of a vocabulary.
VocabularySlice slice_of(const VocabularySlice& given, std::size_t rows) {
  return given.all == 0 ? VocabularySlice{0, rows} : given;
}

}  // namespace

void gather(Engine& engine, const Tensor& table, const Tensor& ids, Tensor& out, bool accumulate,
            const VocabularySlice& slice) {
  const Check check(engine, "gather");
  check.axes("table", table, 2);
  const DType values = check.values("out", out);
  if (table.dtype() != values && table.dtype() != parameter_type(values)) {
    check.refuse("table: {}; expected {} or {}", to_text(table), to_text(values), to_text(parameter_type(values)));
  }
  check.axes("ids", ids, 1);
  check.typed("ids", ids, DType::i32);
  check.is("out", out, values, {ids.size(), table.shape()[1]});
  engine.backend().gather(table, ids, out, accumulate, slice_of(slice, table.shape()[0]));
}

void scatter_add(Engine& engine, const Tensor& dout, const Tensor& ids, Tensor& dtable, const VocabularySlice& slice) {
  const Check check(engine, "scatter_add");
  const DType values = check.values("dout", dout);
  check.axes("ids", ids, 1);
  check.typed("ids", ids, DType::i32);
  check.axes("dtable", dtable, 2);
  check.typed("dtable", dtable, parameter_type(values));
  check.is("dout", dout, values, {ids.size(), dtable.shape()[1]});
  engine.backend().scatter_add(dout, ids, dtable, slice_of(slice, dtable.shape()[0]));
}

namespace {

// dlogits may be of fewer bits than logits of f32.
void check_logit_gradient(const Check& check, const Tensor& logits, const Tensor& dlogits) {
  const DType gradients = check.values("dlogits", dlogits);
  const bool is_rounded = logits.dtype() == DType::f32 && parameter_type(gradients) == DType::f32;
  check.is("dlogits", dlogits, is_rounded ? gradients : logits.dtype(), logits.shape());
}

// Gives P.
DType check_slice_of_logits(const Check& check, const Tensor& logits, const VocabularySlice& slice) {
  const DType values = check.values("logits", logits);
  check.axes("logits", logits, 2);
  if (slice.all == 0) check.refuse("slice: of 0 classes; expected at least 1");
  return parameter_type(values);
}

void check_terms(const Check& check, const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                 const Tensor& maxima, const Tensor& terms) {
  const DType type = check_slice_of_logits(check, logits, slice);
  const std::size_t rows = logits.shape()[0];
  check.is("targets", targets, DType::i32, {rows});
  check.is("maxima", maxima, type, {rows});
  check.is("terms", terms, type, {2, rows});
}

}  // namespace

void cross_entropy(Engine& engine, const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                   Tensor* dlogits, double smoothing) {
  const Check check(engine, "cross_entropy");
  const DType values = check.values("logits", logits);
  check.axes("logits", logits, 2);
  check.is("targets", targets, DType::i32, {logits.shape()[0]});
  check.is("loss", loss, parameter_type(values), {logits.shape()[0]});
  if (classes == 0 || classes > logits.shape()[1]) {
    check.refuse("classes: {}; expected 1 to {}", classes, logits.shape()[1]);
  }
  if (!(smoothing >= 0 && smoothing <= 1)) check.refuse("smoothing: {}; expected 0 to 1", smoothing);
  if (dlogits != nullptr) check_logit_gradient(check, logits, *dlogits);
  engine.backend().cross_entropy(logits, targets, classes, scale, loss, dlogits, smoothing);
}

void cross_entropy_maxima(Engine& engine, const Tensor& logits, const VocabularySlice& slice, Tensor& maxima) {
  const Check check(engine, "cross_entropy_maxima");
  const DType type = check_slice_of_logits(check, logits, slice);
  check.is("maxima", maxima, type, {logits.shape()[0]});
  engine.backend().cross_entropy_maxima(logits, slice, maxima);
}

void cross_entropy_terms(Engine& engine, const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                         const Tensor& maxima, Tensor& terms) {
  check_terms(Check(engine, "cross_entropy_terms"), logits, targets, slice, maxima, terms);
  engine.backend().cross_entropy_terms(logits, targets, slice, maxima, terms);
}

void cross_entropy_of_terms(Engine& engine, const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                            const Tensor& maxima, const Tensor& terms, double scale, Tensor& loss, Tensor* dlogits) {
  const Check check(engine, "cross_entropy_of_terms");
  check_terms(check, logits, targets, slice, maxima, terms);
  check.is("loss", loss, maxima.dtype(), maxima.shape());
  if (dlogits != nullptr) check_logit_gradient(check, logits, *dlogits);
  engine.backend().cross_entropy_of_terms(logits, targets, slice, maxima, terms, scale, loss, dlogits);
}

void categorical_kl(Engine& engine, const Tensor& logits, double scale, Tensor& kl, Tensor* dlogits) {
  const Check check(engine, "categorical_kl");
  const DType values = check.values("logits", logits);
  check.some_axes("logits", logits);
  if (logits.shape().back() == 0) check.refuse("logits: {}; expected at least one column", to_text(logits));
  check.is("kl", kl, parameter_type(values), {logits.shape().rows()});
  if (dlogits != nullptr) check.like("dlogits", *dlogits, logits);
  engine.backend().categorical_kl(logits, scale, kl, dlogits);
}

void logit_laplace(Engine& engine, const LogitLaplace& distribution, const Tensor& maps, const Tensor& pixels, double scale,
                   Tensor& loss, Tensor* dmaps) {
  const Check check(engine, "logit_laplace");
  const DType values = check.values("maps", maps);
  check.some_axes("maps", maps);
  const std::size_t columns = maps.shape().back();
  if (columns % 2 != 0) check.refuse("maps: {}; expected an even number of columns", to_text(maps));
  check.is("pixels", pixels, parameter_type(values), maps.shape().with(maps.shape().axes() - 1, columns / 2));
  check.is("loss", loss, parameter_type(values), {maps.shape().rows()});
  if (dmaps != nullptr) check.like("dmaps", *dmaps, maps);
  if (!std::isfinite(distribution.least_log_b)) check.refuse("least_log_b: {}; expected a number", distribution.least_log_b);
  engine.backend().logit_laplace(distribution, maps, pixels, scale, loss, dmaps);
}

void adamw(Engine& engine, std::span<const AdamWTensors> tensors, const AdamWStep& step) {
  const Check check(engine, "adamw");
  if (step.step == 0) check.refuse("step: 0; expected 1 for the first");
  if (!(step.variance_limit >= 0)) check.refuse("variance_limit: {}; expected 0 or more", step.variance_limit);
  for (const AdamWTensors& each : tensors) {
    const DType values = check.values("value", each.value);
    const DType type = parameter_type(values);
    if (values != type && values != DType::bf16) check.refuse("value: {}; expected f32 or bf16", to_text(each.value));
    if (values != type && each.copy) check.refuse("copy: {}; expected none of a bf16 value", to_text(each.copy));
    check.is("gradient", each.gradient, type, each.value.shape());
    const bool is_narrow = type == DType::f32 && each.mean && each.mean.dtype() == DType::f1_6_9;
    check.is("mean", each.mean, is_narrow ? DType::f1_6_9 : type, each.value.shape());
    check.is("variance", each.variance, is_narrow ? DType::f0_6_10 : type, each.value.shape());
    if (each.copy) check.is("copy", each.copy, check.values("copy", each.copy), each.value.shape());
  }
  engine.backend().adamw(tensors, step);
}

std::vector<double> sums_of_squares(Engine& engine, std::span<const Tensor> tensors) {
  const Check check(engine, "sums_of_squares");
  for (const Tensor& tensor : tensors) check.values("x", tensor);
  return engine.backend().sums_of_squares(tensors);
}

double sum_of_squares(Engine& engine, std::span<const Tensor> tensors) {
  double sum = 0;
  for (const double each : sums_of_squares(engine, tensors)) sum += each;
  return sum;
}

}  // namespace bitloom::nn
