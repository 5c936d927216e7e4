#include "train/parallel/power_sgd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/random.h"
#include "core/stopwatch.h"
#include "core/suggest.h"
#include "mpi/float_collectives.h"
#include "nn/ops.h"
#include "train/parallel/low_rank.h"
#include "train/parallel/sharding.h"

namespace bitloom::train {
namespace {

// Step 5: what is added to the diagonal of P, relative to its largest number. Vogels et al. add nothing.
constexpr double least_diagonal = 1e-6;

// Keeps the numbers of Q apart from those of initial values, which have the same stream.
constexpr std::uint64_t query_seed = 0x506f776572534744ULL;

struct NamedFormat {
  const char* name;
  FloatFormat format;
};
constexpr std::array formats = {NamedFormat{"f32", FloatFormat::f32}, NamedFormat{"1-6-9", FloatFormat::f1_6_9}};

std::uint64_t bytes_of(FloatFormat format) { return format == FloatFormat::f32 ? sizeof(float) : sizeof(f1_6_9); }

void scale_by(std::span<float> values, float factor) {
  for (float& x : values) x *= factor;
}

}  // namespace

std::vector<std::string> float_format_names() { return names_of(formats); }

FloatFormat float_format_named(std::string_view name) {
  return find_named(formats, name, marked_field("compress_format")).format;
}

PowerSgdShape power_sgd_shape(std::string name, std::size_t rows, std::size_t columns, std::size_t rank) {
  const std::size_t possible = std::min({rank, rows, columns});
  const bool pays = possible * (rows + columns) < rows * columns;
  return {std::move(name), rows, columns, pays ? possible : 0};
}

PowerSgdShape power_sgd_shape_of_shard(std::string name, std::size_t rows, std::size_t columns, std::size_t rank,
                                       std::size_t shards, std::size_t own) {
  PowerSgdShape shape = power_sgd_shape(std::move(name), rows, columns, rank);
  shape.rank /= shards;
  (is_cut_by_columns(rows, columns) ? shape.columns : shape.rows) = own / std::min(rows, columns);
  return shape;
}

std::string power_sgd_error_name(const std::string& parameter) { return "power_sgd.error." + parameter; }

PowerSgdBytes power_sgd_bytes(std::span<const PowerSgdShape> shapes, FloatFormat messages) {
  PowerSgdBytes bytes;
  for (const PowerSgdShape& shape : shapes) {
    if (shape.rank == 0) {
      bytes.exact += shape.rows * shape.columns * sizeof(float);
      continue;
    }
    bytes.p += shape.rows * shape.rank * bytes_of(messages);
    bytes.q += shape.columns * shape.rank * bytes_of(messages);
    bytes.flags += sizeof(float);
  }
  return bytes;
}

ErrorUpdate error_update(bool factors_are_taken, bool buffer_is_finite) {
  if (factors_are_taken) return ErrorUpdate::subtract;
  return buffer_is_finite ? ErrorUpdate::keep : ErrorUpdate::clear;
}

PowerSgd::PowerSgd(nn::Engine& engine, mpi::Comm& group, std::vector<PowerSgdShape> shapes, const PowerSgdOptions& options)
    : engine_(engine), group_(group), shapes_(std::move(shapes)), options_(options) {
  if (!(options_.p_scale > 0 && options_.q_scale > 0)) {
    fail(ErrorKind::internal, "PowerSGD: scales {} and {} of factors; expected positive numbers", options_.p_scale,
         options_.q_scale);
  }
  std::size_t longest = 0;
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const PowerSgdShape& shape = shapes_[i];
    if (shape.rank > std::min(shape.rows, shape.columns)) {
      fail(ErrorKind::internal, "PowerSGD: rank {} of {}, which is {} x {}", shape.rank, shape.name, shape.rows, shape.columns);
    }
    if (shape.part >= parts_.size()) parts_.resize(shape.part + 1);
    Part& part = parts_[shape.part];
    if (shape.rank == 0) {
      part.exact.push_back(i);
      part.exact_size += shape.rows * shape.columns;
      continue;
    }
    part.matrices.push_back(matrices_.size());
    matrices_.push_back(make(i, part));
    part.p_size += matrices_.back().p_rows * shape.rank;
    part.q_size += matrices_.back().q_rows * shape.rank;
    longest = std::max(longest, shape.rows * shape.columns);
  }
  if (group_.size() > 1) sent_bytes_ = power_sgd_bytes(shapes_, options_.messages).sum();
  for (const PowerSgdShape& shape : shapes_) whole_bytes_ += shape.rows * shape.columns * sizeof(float);
  if (options_.error_buffers == FloatFormat::f1_6_9) work_ = engine_.empty({longest}, DType::f32, nn::Use::workspace);
}

PowerSgd::Matrix PowerSgd::make(std::size_t number, const Part& part) const {
  const PowerSgdShape& shape = shapes_[number];
  Matrix matrix;
  matrix.shape = number;
  matrix.rows = shape.rows;
  matrix.columns = shape.columns;
  matrix.rank = shape.rank;
  matrix.is_transposed = !options_.warm_start && shape.rows > shape.columns;
  matrix.p_rows = matrix.is_transposed ? shape.columns : shape.rows;
  matrix.q_rows = matrix.is_transposed ? shape.rows : shape.columns;
  matrix.p_begin = part.p_size;
  matrix.q_begin = part.q_size;
  const DType type = options_.error_buffers == FloatFormat::f32 ? DType::f32 : DType::f1_6_9;
  matrix.error = engine_.zeros({shape.rows, shape.columns}, type, nn::Use::optimizer);
  matrix.query = engine_.empty({matrix.q_rows, shape.rank}, DType::f32, nn::Use::optimizer);
  draw_query(matrix);
  return matrix;
}

void PowerSgd::draw_query(Matrix& matrix) const {
  Random random(mix64(options_.seed ^ query_seed), Stream::weight_init, matrix.shape);
  for (float& x : matrix.query.as<float>()) x = static_cast<float>(random.normal());
}

nn::Tensor PowerSgd::error_of(const Matrix& matrix) const {
  if (matrix.error.dtype() == DType::f32) return matrix.error;
  const nn::Tensor copy = work_.slice(0, matrix.error.size()).reshaped({matrix.rows, matrix.columns});
  convert(matrix.error.as<f1_6_9>(), copy.as<float>());
  return copy;
}

void PowerSgd::keep_error(Matrix& matrix, std::span<const float> values) {
  if (matrix.error.dtype() == DType::f32) return;
  const std::span<f1_6_9> error = matrix.error.as<f1_6_9>();
  // Numbers beyond 1-6-9 become its largest one; what is infinite stays so, and is told.
  for (std::size_t i = 0; i < error.size(); ++i) {
    error[i] = std::isfinite(values[i]) ? clamped(to_f1_6_9(values[i])) : to_f1_6_9(values[i]);
  }
}

void PowerSgd::require(std::span<const nn::Tensor> gradients) const {
  if (gradients.size() != shapes_.size()) {
    fail(ErrorKind::internal, "PowerSGD: {} gradients, expected {}", gradients.size(), shapes_.size());
  }
  for (std::size_t i = 0; i < shapes_.size(); ++i) {
    const PowerSgdShape& shape = shapes_[i];
    if (gradients[i].dtype() != DType::f32 || gradients[i].size() != shape.rows * shape.columns) {
      fail(ErrorKind::internal, "PowerSGD: the gradient of {} is {}, expected f32 ({}, {})", shape.name,
           nn::to_text(gradients[i]), shape.rows, shape.columns);
    }
  }
}

PowerSgdReport PowerSgd::exchange(std::span<nn::Tensor> gradients) {
  begin_step();
  const PowerSgdReport report = finish(gradients);
  settle(gradients, [&](std::size_t /*shape*/) { return report.not_finite > 0; });
  return report;
}

void PowerSgd::begin_step(std::vector<double> scales) {
  if (!scales.empty() && scales.size() != shapes_.size()) {
    fail(ErrorKind::internal, "PowerSGD: {} scales, expected {}", scales.size(), shapes_.size());
  }
  report_ = {};
  times_ = {1, 0, 0, sent_bytes_, whole_bytes_};
  scales_ = std::move(scales);
  next_ = 0;
  announced_.assign(shapes_.size(), {});
  for (Part& part : parts_) {
    part.left = part.matrices.size() + part.exact.size();
    // An exception may have left sums under way, whose memory is still theirs.
    for (Sum* sum : {&part.first, &part.second}) {
      sum->of_factors = {};
      sum->of_rest = {};
    }
  }
}

void PowerSgd::announce(std::size_t shape, const nn::Tensor& gradient) {
  announced_.at(shape) = gradient;
  --parts_[shapes_[shape].part].left;
  while (next_ < parts_.size() && parts_[next_].left == 0) start(parts_[next_++]);
}

PowerSgdReport PowerSgd::finish(std::span<nn::Tensor> gradients) {
  require(gradients);
  std::ranges::copy(gradients, announced_.begin());
  while (next_ < parts_.size()) start(parts_[next_++]);
  for (Part& part : parts_) start_q(part);
  for (Part& part : parts_) take(part, gradients);
  announced_.clear();
  if (report_.not_finite > 0) report_.squares = std::numeric_limits<double>::infinity();
  return report_;
}

void PowerSgd::start(Part& part) {
  engine_.synchronize();
  const Stopwatch computing(times_.computing_seconds);
  part.first = {engine_.empty({part.p_size + part.exact_size + part.matrices.size()}, DType::f32, nn::Use::workspace),
                part.p_size,
                {},
                {},
                {}};
  const std::span<float> values = part.first.values.as<float>();
  float* next = values.data() + part.p_size;
  for (const std::size_t i : part.exact) next = std::ranges::copy(announced_[i].as<float>(), next).out;
  for (const std::size_t i : part.matrices) {
    accumulate(matrices_[i], announced_[matrices_[i].shape].as<float>());
    form_p(matrices_[i], part.first.values);
    *next++ = matrices_[i].factors_are_finite ? 0.0F : 1.0F;
  }
  engine_.synchronize();
  start(part.first);
}

void PowerSgd::start_q(Part& part) {
  wait(part.first);
  const Stopwatch computing(times_.computing_seconds);
  const std::span<float> values = part.first.values.as<float>();
  const std::span<float> flags = values.subspan(part.p_size + part.exact_size);
  part.second = {engine_.empty({part.q_size}, DType::f32, nn::Use::workspace), part.q_size, {}, {}, {}};
  for (std::size_t i = 0; i < part.matrices.size(); ++i) {
    Matrix& matrix = matrices_[part.matrices[i]];
    matrix.factors_are_finite = flags[i] == 0;
    orthogonalise_p(matrix, values.subspan(matrix.p_begin, matrix.p_rows * matrix.rank));
    form_q(matrix, part.second.values);
  }
  engine_.synchronize();
  start(part.second);
}

void PowerSgd::take(Part& part, std::span<nn::Tensor> gradients) {
  wait(part.second);
  const Stopwatch computing(times_.computing_seconds);
  for (const std::size_t i : part.matrices) {
    Matrix& matrix = matrices_[i];
    const std::span<float> gradient = gradients[matrix.shape].as<float>();
    const std::span<float> q = part.second.values.as<float>();
    take_q(matrix, q.subspan(matrix.q_begin, matrix.q_rows * matrix.rank), gradient);
    if (!matrix.factors_are_finite) ++report_.not_finite;
    scale_by(gradient, static_cast<float>(scale_of(matrix.shape)));
    matrix.p = {};
  }
  const std::span<const float> exact = part.first.values.as<float>().subspan(part.p_size, part.exact_size);
  std::size_t begin = 0;
  for (const std::size_t i : part.exact) {
    const std::span<const float> sums = exact.subspan(begin, gradients[i].size());
    std::ranges::copy(sums, gradients[i].as<float>().begin());
    begin += sums.size();
    report_.squares += sum_of_squares(sums) / (scale_of(i) * scale_of(i));
    if (!all_finite(sums)) ++report_.not_finite;
  }
  part.first = {};
  part.second = {};
}

void PowerSgd::settle(std::span<const nn::Tensor> gradients, const std::function<bool(std::size_t shape)>& is_skipped) {
  const Stopwatch computing(times_.computing_seconds);
  for (Matrix& matrix : matrices_) update_error(matrix, is_skipped(matrix.shape), gradients[matrix.shape].as<float>());
}

// Step 2: without its scale; a gradient that is not finite is left out, so that the buffer stays what it was.
void PowerSgd::accumulate(Matrix& matrix, std::span<const float> gradient) {
  const bool is_finite = all_finite(gradient);
  if (is_finite) {
    const nn::Tensor error = error_of(matrix);
    const std::span<float> sums = error.as<float>();
    const auto unscale = static_cast<float>(1 / scale_of(matrix.shape));
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += unscale * gradient[i];
    keep_error(matrix, sums);
  }
  matrix.buffer_is_finite = all_finite(error_of(matrix).as<float>());
  matrix.factors_are_finite = is_finite && matrix.buffer_is_finite;
}

// Step 3.
void PowerSgd::form_p(Matrix& matrix, nn::Tensor& message) const {
  nn::Tensor p =
      message.slice(matrix.p_begin, matrix.p_begin + matrix.p_rows * matrix.rank).reshaped({matrix.p_rows, matrix.rank});
  nn::MatmulOptions options;
  options.transpose_a = matrix.is_transposed;
  options.scale = factor(options_.p_scale);
  nn::matmul(engine_, error_of(matrix), matrix.query, p, options);
}

// Step 5, of the mean of P.
void PowerSgd::orthogonalise_p(Matrix& matrix, std::span<float> p) {
  matrix.factors_are_finite = matrix.factors_are_finite && all_finite(p);
  if (!matrix.factors_are_finite) return;
  orthogonalise(p, matrix.p_rows, matrix.rank, options_.warm_start ? 0 : least_diagonal);
  matrix.p = engine_.from(std::span<const float>(p), {matrix.p_rows, matrix.rank}, nn::Use::workspace);
}

// Step 6.
void PowerSgd::form_q(Matrix& matrix, nn::Tensor& message) const {
  nn::Tensor q =
      message.slice(matrix.q_begin, matrix.q_begin + matrix.q_rows * matrix.rank).reshaped({matrix.q_rows, matrix.rank});
  if (!matrix.factors_are_finite) {
    std::ranges::fill(q.as<float>(), 0.0F);
    return;
  }
  nn::MatmulOptions options;
  options.transpose_a = !matrix.is_transposed;
  options.scale = factor(options_.q_scale);
  nn::matmul(engine_, error_of(matrix), matrix.p, q, options);
}

// Steps 9 to 11: the norm and the gradient, by Q in the units of gradients.
void PowerSgd::take_q(Matrix& matrix, std::span<float> q, std::span<float> gradient) {
  scale_by(q, static_cast<float>(1 / options_.q_scale));
  const bool mean_is_finite = matrix.factors_are_finite && all_finite(q);
  // A Q of zeros, of a gradient that is 0, would make the next P zeros, too.
  if (options_.warm_start && mean_is_finite && sum_of_squares(q) > 0) std::ranges::copy(q, matrix.query.as<float>().begin());
  scale_by(q, static_cast<float>(group_.size()));
  matrix.factors_are_finite = mean_is_finite && all_finite(q);
  if (!matrix.factors_are_finite) {
    std::ranges::fill(gradient, std::numeric_limits<float>::quiet_NaN());
    return;
  }
  report_.squares += sum_of_squares(q);
  const std::span<const float> p = matrix.p.as<float>();
  if (matrix.is_transposed) {
    multiply_factors(q, p, matrix.rank, gradient);
  } else {
    multiply_factors(p, q, matrix.rank, gradient);
  }
}

// Step 12. The paper takes off what the factors carried where the update is skipped, too, and loses it.
void PowerSgd::update_error(Matrix& matrix, bool is_skipped, std::span<const float> gradient) {
  const ErrorUpdate update = error_update(matrix.factors_are_finite && !is_skipped, matrix.buffer_is_finite);
  if (update == ErrorUpdate::keep) return;
  const nn::Tensor error = error_of(matrix);
  const std::span<float> values = error.as<float>();
  if (update == ErrorUpdate::clear) {
    std::ranges::fill(values, 0.0F);
  } else {
    const auto unscale = static_cast<float>(1 / scale_of(matrix.shape));
    const auto part = static_cast<float>(1.0 / group_.size());
    for (std::size_t i = 0; i < values.size(); ++i) values[i] -= part * (unscale * gradient[i]);
  }
  keep_error(matrix, values);
}

void PowerSgd::clamp(std::span<f1_6_9> values) {
  report_.narrowed += values.size();
  for (f1_6_9& x : values) {
    const f1_6_9 kept = clamped(x);
    report_.clamped += kept == x ? 0 : 1;
    x = kept;
  }
}

void PowerSgd::start(Sum& sum) {
  const std::span<float> values = sum.values.as<float>();
  if (values.empty()) return;
  if (options_.messages == FloatFormat::f32) {
    sum.of_rest = mpi::start_sum(group_, values);
    return;
  }
  sum.narrow.resize(sum.factors);
  convert(values.first(sum.factors), sum.narrow);
  clamp(sum.narrow);  // infinities of both signs would add up to NaN
  if (sum.factors > 0) sum.of_factors = mpi::start_sum(group_, std::span(sum.narrow));
  if (const std::span<float> rest = values.subspan(sum.factors); !rest.empty()) sum.of_rest = mpi::start_sum(group_, rest);
}

void PowerSgd::wait(Sum& sum) {
  {
    const Stopwatch waiting(times_.waiting_seconds);
    sum.of_factors.wait();
    sum.of_rest.wait();
  }
  if (sum.narrow.empty()) return;
  const Stopwatch computing(times_.computing_seconds);
  clamp(sum.narrow);
  convert(sum.narrow, sum.values.as<float>().first(sum.factors));
}

PowerSgdState PowerSgd::empty_state() {
  PowerSgdState state;
  for (const Matrix& matrix : matrices_) {
    const std::string& name = shapes_[matrix.shape].name;
    state.emplace_back(power_sgd_error_name(name),
                       engine_.empty({matrix.rows, matrix.columns}, DType::f32, nn::Use::workspace));
    if (!options_.warm_start) continue;
    state.emplace_back("power_sgd.query." + name, engine_.empty({matrix.q_rows, matrix.rank}, DType::f32, nn::Use::workspace));
  }
  return state;
}

PowerSgdState PowerSgd::state() {
  PowerSgdState state = empty_state();
  auto next = state.begin();
  for (const Matrix& matrix : matrices_) {
    const std::span<float> sums = next++->second.as<float>();
    std::ranges::copy(error_of(matrix).as<float>(), sums.begin());
    mpi::sum_in_order(group_, sums);
    if (options_.warm_start) std::ranges::copy(matrix.query.as<float>(), next++->second.as<float>().begin());
  }
  return state;
}

void PowerSgd::set_state(const PowerSgdState& state) {
  const auto part = static_cast<float>(1.0 / group_.size());
  auto next = state.begin();
  for (Matrix& matrix : matrices_) {
    const nn::Tensor error = error_of(matrix);
    std::ranges::transform(next++->second.as<float>(), error.as<float>().begin(), [part](float x) { return part * x; });
    keep_error(matrix, error.as<float>());
    if (options_.warm_start) std::ranges::copy(next++->second.as<float>(), matrix.query.as<float>().begin());
  }
}

}  // namespace bitloom::train
