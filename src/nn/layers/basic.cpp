#include "nn/layers/basic.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "nn/bit_pack.h"
#include "nn/dropout.h"
#include "nn/group_quantiser.h"
#include "nn/layers/parts.h"

namespace bitloom::nn {
namespace {

// The paper's table: its interval, every x equally likely (Novikov et al. 2022, section 3.4). Found once; that takes a moment.
const FewBitTable& paper_table(const Activation& activation, unsigned bits) {
  static std::mutex mutex;
  static std::map<std::pair<std::string, unsigned>, FewBitTable> tables;
  constexpr double reach = 10;
  const std::lock_guard lock(mutex);
  const std::pair<std::string, unsigned> key(activation.name, bits);
  auto found = tables.find(key);
  if (found == tables.end()) {
    found = tables.emplace(key, fit_few_bit(few_bit_problem(activation, uniform_weight(), -reach, reach), bits)).first;
  }
  return found->second;
}

// Numbers that the elements of one of x's examples have: every example begins with a call of Philox of its own.
std::size_t numbers_per_example(const Tensor& x) {
  const std::size_t elements = x.size() / std::max<std::size_t>(1, x.shape()[0]);
  return (elements + dropout_group - 1) / dropout_group * dropout_group;
}

}  // namespace

// --- Linear ---

Linear::Linear(const std::string& name, std::size_t inputs, std::size_t outputs, const LinearOptions& options)
    : name_(name), inputs_(inputs), outputs_(outputs) {
  using Division = LinearOptions::Division;
  weight_.name = name + ".weight";
  weight_.shape = options.transposed ? Shape{outputs, inputs} : Shape{inputs, outputs};
  weight_.transposed = options.transposed;
  if (!options.transposed && options.division != Division::inputs) weight_.column_blocks = options.blocks;
  weight_.deviation = options.deviation;
  weight_.overwrites = true;
  if (options.bias) bias_ = vector_parameter(name + ".bias", outputs, 0);
  if (options.division == Division::none) return;
  const bool divides_outputs = options.division == Division::outputs;
  const auto divide = [&](Parameter& parameter, std::size_t axis) {
    parameter.part = Part{parameter.shape, axis, options.blocks, options.begin, options.end};
    parameter.shape = parameter.part->shape();
  };
  divide(weight_, divides_outputs == options.transposed ? 0 : 1);
  if (divides_outputs) {
    if (bias_) divide(*bias_, 0);
    outputs_ = options.blocks * (options.end - options.begin);
  } else {
    if (bias_) fail(ErrorKind::internal, "{}: a bias beside one of the terms of a sum", name);
    inputs_ = options.blocks * (options.end - options.begin);
  }
}

Tensor Linear::apply(Pass& pass, const Tensor& x) const {
  require_columns(name_, x.shape(), inputs_);
  const Shape shape = output(x.shape());
  Tensor y = pass.engine.empty(shape, x.dtype(), Use::activations);
  Tensor flat = y.reshaped({shape.rows(), outputs_});
  MatmulOptions options;
  options.transpose_b = weight_.transposed;
  if (bias_) options.bias = bias_->read();
  matmul(pass.engine, x.reshaped({shape.rows(), inputs_}), weight_.read(), flat, options);
  return y;
}

Tensor Linear::apply_backward(Pass& pass, const Tensor& x, const Tensor& dy) {
  const std::size_t rows = x.shape().rows();
  const Tensor flat_x = x.reshaped({rows, inputs_});
  const Tensor flat_dy = dy.reshaped({rows, outputs_});
  MatmulOptions sum;
  sum.transpose_a = true;
  sum.accumulate = must_add(weight_);
  if (weight_.transposed) {
    matmul(pass.engine, flat_dy, flat_x, weight_.gradient, sum);
  } else {
    matmul(pass.engine, flat_x, flat_dy, weight_.gradient, sum);
  }
  pass.announce(weight_);
  if (bias_) {
    add_row_sums(pass.engine, flat_dy, bias_->gradient);
    pass.announce(*bias_);
  }
  Tensor dx = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  Tensor flat_dx = dx.reshaped({rows, inputs_});
  MatmulOptions back;
  back.transpose_b = !weight_.transposed;
  matmul(pass.engine, flat_dy, weight_.read(), flat_dx, back);
  return dx;
}

Tensor Linear::forward(Pass& pass, const Tensor& x) {
  Tensor y = apply(pass, x);
  pass.keep(x);
  return y;
}

Tensor Linear::backward(Pass& pass, const Tensor& dy) {
  const Tensor x = pass.stash->take();
  return apply_backward(pass, x, dy);
}

void Linear::add_parameters(std::vector<Parameter*>& all) {
  all.push_back(&weight_);
  if (bias_) all.push_back(&*bias_);
}

Shape Linear::output(const Shape& x) const {
  require_columns(name_, x, inputs_);
  return x.with(x.axes() - 1, outputs_);
}

double Linear::cost(const Shape& x) const { return 2 * static_cast<double>(x.size()) * static_cast<double>(outputs_); }

std::uint64_t Linear::stash_bytes(const Shape& x, DType values) const { return x.size() * dtype_size(values); }

// --- LayerNorm ---

LayerNorm::LayerNorm(const std::string& name, std::size_t columns, std::optional<DType> branch_values, double epsilon)
    : name_(name),
      columns_(columns),
      epsilon_(epsilon),
      branch_values_(branch_values),
      gain_(vector_parameter(name + ".gain", columns, 1)),
      bias_(vector_parameter(name + ".bias", columns, 0)) {}

Tensor LayerNorm::forward(Pass& pass, const Tensor& x) {
  require_columns(name_, x.shape(), columns_);
  Tensor y = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  const DType type = parameter_type(x.dtype());
  Tensor mean = pass.engine.empty({x.shape().rows()}, type, Use::activations);
  Tensor rstd = pass.engine.empty({x.shape().rows()}, type, Use::activations);
  layer_norm(pass.engine, x, gain_.read(), bias_.read(), epsilon_, y, mean, rstd);
  pass.keep(x);
  pass.keep(mean);
  pass.keep(rstd);
  return branch_values_ ? converted(pass.engine, y, *branch_values_) : y;
}

Tensor LayerNorm::backward(Pass& pass, const Tensor& dy) {
  const Tensor rstd = pass.stash->take();
  const Tensor mean = pass.stash->take();
  const Tensor x = pass.stash->take();
  Tensor dx = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  layer_norm_backward(pass.engine, converted(pass.engine, dy, x.dtype()), x, gain_.read(), mean, rstd, dx, gain_.gradient,
                      bias_.gradient);
  pass.announce(gain_);
  pass.announce(bias_);
  return dx;
}

void LayerNorm::add_parameters(std::vector<Parameter*>& all) { all.insert(all.end(), {&gain_, &bias_}); }

Shape LayerNorm::output(const Shape& x) const {
  require_columns(name_, x, columns_);
  return x;
}

std::uint64_t LayerNorm::stash_bytes(const Shape& x, DType values) const {
  const DType type = parameter_type(values);
  return x.size() * dtype_size(branch_values_ ? type : values) + 2 * x.rows() * dtype_size(type);
}

// --- Activate ---

Activate::Activate(const Activation& activation, unsigned bits, Quantiser quantiser, std::uint64_t number)
    : activation_(activation), bits_(bits), quantiser_(quantiser), number_(number) {
  if (bits != 0 && quantiser == Quantiser::few_bit) table_ = paper_table(activation, bits);
}

Tensor Activate::forward(Pass& pass, const Tensor& x) {
  Tensor y = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  if (bits_ == 0 || pass.stash == nullptr) {
    activate(pass.engine, activation_, x, y);
    pass.keep(x);
    return y;
  }
  Tensor packed = pass.engine.empty({packed_bytes(x.size(), bits_)}, DType::u8, Use::stash);
  if (table_) {
    activate_few_bit(pass.engine, activation_, *table_, x, y, packed);
    pass.keep(packed);
    return y;
  }
  static_assert(quantiser_draws == dropout_group);
  const Dropout numbers = pass.dropout(0, number_, x.shape()[0], numbers_per_example(x));
  Tensor ranges = pass.engine.empty({quantiser_groups(x.size()), 2}, DType::f32, Use::stash);
  quantise_groups(pass.engine, {bits_, numbers.seed, numbers.site, numbers.first}, x, packed, ranges);
  activate(pass.engine, activation_, x, y);
  pass.keep(packed);
  pass.keep(ranges);
  return y;
}

Tensor Activate::backward(Pass& pass, const Tensor& dy) {
  const Tensor kept = pass.stash->take();
  Tensor dx = pass.engine.empty(dy.shape(), dy.dtype(), Use::activations);
  if (table_) {
    activate_few_bit_backward(pass.engine, *table_, kept, dy, dx);
  } else if (bits_ != 0) {
    restore_groups(pass.engine, bits_, pass.stash->take(), kept, dx);
    activate_backward(pass.engine, activation_, dx, dy, dx);
  } else {
    activate_backward(pass.engine, activation_, kept, dy, dx);
  }
  return dx;
}

std::uint64_t Activate::stash_bytes(const Shape& x, DType values) const {
  return activation_stash_bytes(x.size(), bits_, quantiser_, dtype_size(values));
}

// --- DropoutLayer ---

Tensor DropoutLayer::forward(Pass& pass, const Tensor& x) {
  if (rate_ == 0 || !pass.training) return x;
  Tensor y = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  const std::size_t examples = x.shape()[0];
  const std::size_t drawn = numbers_per_example(x);
  Dropout numbers = pass.dropout(rate_, number_, examples, drawn);
  if (examples * drawn == x.size()) {
    dropout(pass.engine, numbers, x, y);
    return y;
  }
  for (std::size_t i = 0; i < examples; ++i, numbers.first += drawn) {
    Tensor part = y.slice(i, i + 1);
    dropout(pass.engine, numbers, x.slice(i, i + 1), part);
  }
  return y;
}

Tensor DropoutLayer::backward(Pass& pass, const Tensor& dy) { return forward(pass, dy); }

// --- Scale ---

Tensor Scale::scaled(Pass& pass, const Tensor& x) const {
  Tensor y = pass.engine.empty(x.shape(), x.dtype(), Use::activations);
  scale_add(pass.engine, factor_, x, 0, y);
  return y;
}

// --- Flatten ---

Shape Flatten::output(const Shape& x) const {
  const std::size_t each = example_.size();
  if (x.axes() == 0 || x.size() != x[0] * each) {
    fail(ErrorKind::usage, "flatten: x {}; expected examples of {}", to_text(x), to_text(example_));
  }
  return {x[0], each};
}

Tensor Flatten::forward(Pass& /*pass*/, const Tensor& x) { return x.reshaped(output(x.shape())); }

Tensor Flatten::backward(Pass& /*pass*/, const Tensor& dy) {
  std::array<std::size_t, Shape::most_axes> lengths = {dy.shape()[0]};
  for (std::size_t axis = 0; axis < example_.axes(); ++axis) lengths.at(axis + 1) = example_[axis];
  return dy.reshaped(Shape(std::span(lengths).first(example_.axes() + 1)));
}

}  // namespace bitloom::nn
