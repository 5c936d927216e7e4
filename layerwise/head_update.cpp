// How a head learns from the sums of a minibatch.
#include <algorithm>
#include <cmath>

#include "layerwise/head.h"
#include "optim/schedule.h"

namespace bitloom::layerwise {
namespace {

constexpr double mean_decay = 0.95;
constexpr double widest_at_full_rate = 2048;  // features
constexpr double hidden_rate = 0.5;           // share of the learning rate

}  // namespace

void AdamParameter::resize(std::size_t size) {
  value.assign(size, 0.0F);
  mean.assign(size, 0.0F);
  variance.assign(size, 0.0F);
}

void AdamParameter::update(std::span<const std::int64_t> sums, double scale, double learning_rate, double weight_decay,
                           std::size_t step) {
  const double correction1 = 1.0 - power(0.9, step);
  const double correction2 = 1.0 - power(0.999, step);
  const auto rate = static_cast<float>(learning_rate / correction1);
  const auto bias_correction = static_cast<float>(1.0 / correction2);
  const auto decay_factor = static_cast<float>(1.0 - learning_rate * weight_decay);
  const auto factor = static_cast<float>(scale);
  constexpr std::ptrdiff_t part = 4096;
  const auto size = static_cast<std::ptrdiff_t>(value.size());
#pragma omp parallel for schedule(static) if (size > 2 * part)
  for (std::ptrdiff_t i = 0; i < size; i += part) {
    const auto n = static_cast<std::size_t>(std::min(part, size - i));
    simd::kernels().adam(sums.data() + i, n, factor, rate, bias_correction, decay_factor, value.data() + i, mean.data() + i,
                         variance.data() + i);
  }
}

std::array<std::span<std::int64_t>, 7> Head::Sums::all() {
  return {linear, linear_bias, hidden, hidden_bias, output, count, count_squared};
}

void Head::Sums::clear() {
  for (const std::span<std::int64_t> part : all()) std::fill(part.begin(), part.end(), 0);
}

Head::Sums Head::make_sums() const {
  Sums sums;
  sums.linear.assign(linear_.value.size(), 0);
  sums.linear_bias.assign(classes_, 0);
  sums.hidden.assign(input_.value.size(), 0);
  sums.hidden_bias.assign(hidden_, 0);
  sums.output.assign(output_.value.size(), 0);
  sums.count.assign(features(), 0);
  sums.count_squared.assign(1, 0);
  return sums;
}

void Head::update(const Sums& sums, std::size_t examples, double learning_rate, double weight_decay) {
  const float before = scale_;
  observe(sums, examples, 1);
  if (observations_ > unsettled_observations) learn(sums, examples, learning_rate, weight_decay, before);
}

void Head::observe(const Sums& sums, std::size_t examples, std::size_t steps) {
  const double inverse = 1.0 / static_cast<double>(examples);
  const double squares = static_cast<double>(sums.count_squared[0]) * inverse / static_cast<double>(regions_ * map_.channels);
  const double keep = power(mean_decay, steps);
  ++observations_;
  for (std::size_t k = 0; k < mean_.size(); ++k) {
    const double now = static_cast<double>(sums.count[k]) * inverse;
    mean_[k] = observations_ == 1 ? now : keep * mean_[k] + (1 - keep) * now;
    centre_[k] = static_cast<std::int16_t>(std::lround(mean_[k]));
  }
  // The first call saw features that were not yet centred: its mean is used, its squares are not.
  if (observations_ == 1) return;
  mean_square_ = observations_ == 2 ? squares : keep * mean_square_ + (1 - keep) * squares;
  scale_ = static_cast<float>(1.0 / std::sqrt(std::max(mean_square_, 1e-6)));
}

void Head::learn(const Sums& sums, std::size_t examples, double learning_rate, double weight_decay, float scale) {
  const double inverse = 1.0 / static_cast<double>(examples);
  const double feature = scale;
  const std::size_t t = ++steps_;
  weight_bits_ = 16;
  if (binary_) {
    // d loss / d gain = sum over weights of sign(w) * gradient(w).
    std::int64_t along = 0;
    for (std::size_t k = 0; k < sums.linear.size(); ++k) along += linear_.value[k] < 0 ? -sums.linear[k] : sums.linear[k];
    gain_.update({&along, 1}, inverse * feature / error_steps, 0.02 * learning_rate, 0, t);
    gain_.value[0] = std::max(gain_.value[0], 1e-4F);
  }
  const double linear_rate = learning_rate * std::min(1.0, widest_at_full_rate / static_cast<double>(features()));
  linear_.update(sums.linear, inverse * feature / error_steps, linear_rate, binary_ ? 0 : weight_decay, t);
  if (binary_) {
    for (float& v : linear_.value) v = std::clamp(v, -1.0F, 1.0F);
  }
  linear_bias_.update(sums.linear_bias, inverse / error_steps, learning_rate, 0, t);
  if (has_hidden_) {
    const double rate = hidden_rate * learning_rate;
    input_.update(sums.hidden, inverse * feature / hidden_error_steps, rate, weight_decay, t);
    input_bias_.update(sums.hidden_bias, inverse / hidden_error_steps, rate, 0, t);
    output_.update(sums.output, inverse / (error_steps * hidden_steps), rate, weight_decay, t);
  }
  quantise();
}

}  // namespace bitloom::layerwise
