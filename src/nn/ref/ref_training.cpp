#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/narrow.h"
#include "nn/ref/numbers.h"
#include "nn/ref/ref_backend.h"
#include "nn/stochastic_rounding.h"

namespace bitloom::nn::ref {

namespace {

// The target of a row, or -1.
std::int32_t checked_target(std::span<const std::int32_t> targets_r, std::size_t r, std::size_t classes) {
  const std::int32_t target = targets_r[r];
  if (target < -1 || target >= static_cast<std::int64_t>(classes)) {
    fail(ErrorKind::usage, "cross_entropy: targets[{}] is {}; expected -1 to {}", r, target, classes - 1);
  }
  return target;
}

}  // namespace

void RefBackend::cross_entropy(const Tensor& logits, const Tensor& targets, std::size_t classes, double scale, Tensor& loss,
                               Tensor* dlogits, double smoothing) {
  const std::size_t columns = logits.shape()[1];
  const std::vector<double> logits_rc = load(logits);
  const std::span<const std::int32_t> targets_r = targets.as<std::int32_t>();
  std::vector<double> loss_r(loss.size());
  std::vector<double> gradient(logits.size());
  for (std::size_t r = 0; r < targets_r.size(); ++r) {
    const std::int32_t target = checked_target(targets_r, r, classes);
    if (target < 0) continue;
    const double* row = logits_rc.data() + r * columns;
    const double largest = *std::max_element(row, row + classes);
    double sum = 0;
    for (std::size_t c = 0; c < classes; ++c) sum += std::exp(row[c] - largest);
    const double mean = std::accumulate(row, row + classes, 0.0) / static_cast<double>(classes);
    loss_r[r] = largest + std::log(sum) - (1 - smoothing) * row[target] - smoothing * mean;
    for (std::size_t c = 0; c < classes; ++c) {
      const double wanted =
          (c == static_cast<std::size_t>(target) ? 1 - smoothing : 0) + smoothing / static_cast<double>(classes);
      gradient[r * columns + c] = scale * (std::exp(row[c] - largest) / sum - wanted);
    }
  }
  store(loss, loss_r);
  if (dlogits != nullptr) store(*dlogits, gradient);
}

void RefBackend::cross_entropy_maxima(const Tensor& logits, const VocabularySlice& slice, Tensor& maxima) {
  const std::size_t columns = logits.shape()[1];
  const std::vector<double> logits_rc = load(logits);
  std::vector<double> maxima_r(maxima.size(), std::numeric_limits<float>::lowest());
  for (std::size_t r = 0; r < maxima_r.size(); ++r) {
    for (std::size_t c = 0; c < slice.count(columns); ++c) maxima_r[r] = std::max(maxima_r[r], logits_rc[r * columns + c]);
  }
  store(maxima, maxima_r);
}

void RefBackend::cross_entropy_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                     const Tensor& maxima, Tensor& terms) {
  const std::size_t rows = logits.shape()[0];
  const std::size_t columns = logits.shape()[1];
  const std::size_t classes = slice.count(columns);
  const std::vector<double> logits_rc = load(logits);
  const std::vector<double> maxima_r = load(maxima);
  const std::span<const std::int32_t> targets_r = targets.as<std::int32_t>();
  std::vector<double> terms_2r(2 * rows);
  for (std::size_t r = 0; r < rows; ++r) {
    const double* row = logits_rc.data() + r * columns;
    for (std::size_t c = 0; c < classes; ++c) terms_2r[r] += std::exp(row[c] - maxima_r[r]);
    const std::int32_t target = checked_target(targets_r, r, slice.all);
    if (target < 0 || slice.place_of(target) >= classes) continue;
    terms_2r[rows + r] = row[slice.place_of(target)] - maxima_r[r];
  }
  store(terms, terms_2r);
}

void RefBackend::cross_entropy_of_terms(const Tensor& logits, const Tensor& targets, const VocabularySlice& slice,
                                        const Tensor& maxima, const Tensor& terms, double scale, Tensor& loss,
                                        Tensor* dlogits) {
  const std::size_t rows = logits.shape()[0];
  const std::size_t columns = logits.shape()[1];
  const std::vector<double> logits_rc = load(logits);
  const std::vector<double> maxima_r = load(maxima);
  const std::vector<double> terms_2r = load(terms);
  const std::span<const std::int32_t> targets_r = targets.as<std::int32_t>();
  std::vector<double> loss_r(rows);
  std::vector<double> gradient(logits.size());
  for (std::size_t r = 0; r < rows; ++r) {
    const std::int32_t target = checked_target(targets_r, r, slice.all);
    if (target < 0) continue;
    loss_r[r] = std::log(terms_2r[r]) - terms_2r[rows + r];
    for (std::size_t c = 0; c < slice.count(columns); ++c) {
      const std::size_t i = r * columns + c;
      gradient[i] = scale * (std::exp(logits_rc[i] - maxima_r[r]) / terms_2r[r] - (c == slice.place_of(target) ? 1 : 0));
    }
  }
  store(loss, loss_r);
  if (dlogits != nullptr) store(*dlogits, gradient);
}

namespace {

std::uint32_t rounding_draw(const AdamWTensors& tensors, const AdamWStep& step, Rounded what, std::size_t i) {
  const std::size_t number = tensors.numbers(i);
  const std::uint64_t counter = rounding_step(step.step, what);
  return philox_half(rounding_draws(tensors.rounding_key, counter, number / rounding_group),
                     static_cast<unsigned>(number % rounding_group));
}

// As bf16 has it, by way of f32.
double rounded(double value, std::uint32_t draw) {
  return std::bit_cast<float>(round_stochastically(std::bit_cast<std::uint32_t>(static_cast<float>(value)), draw));
}

// As T has it, by way of f32.
template <typename T>
double rounded_to(double value, std::uint32_t draw) {
  using Rounding = NarrowRounding<T::fraction_bits, T::bias>;
  const float magnitude = std::fabs(static_cast<float>(value));
  const float raised = magnitude + std::bit_cast<float>(Rounding::least_normal);
  const std::uint32_t code =
      Rounding::code(std::bit_cast<std::uint32_t>(magnitude), std::bit_cast<std::uint32_t>(raised), draw);
  return std::copysign(to_float(T{static_cast<std::uint16_t>(code)}), value);
}

}  // namespace

void RefBackend::adamw(std::span<const AdamWTensors> tensors, const AdamWStep& step) {
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  const double variance_limit = step.variance_limit > 0 ? step.variance_limit : std::numeric_limits<double>::infinity();
  for (const AdamWTensors& each : tensors) {
    const std::vector<double> gradient = load(each.gradient);
    std::vector<double> value = load(each.value);
    std::vector<double> mean = load(each.mean);
    std::vector<double> variance = load(each.variance);
    const double decay = each.decays ? step.decay : 0;
    for (std::size_t i = 0; i < value.size(); ++i) {
      const double g = gradient[i] * step.gradient_scale;
      mean[i] = step.beta1 * mean[i] + (1 - step.beta1) * g;
      variance[i] = std::min(step.beta2 * variance[i] + (1 - step.beta2) * g * g, variance_limit);  // NaN stays NaN
      const double m = mean[i] / correction1;
      const double v = variance[i] / correction2;
      value[i] -= step.rate * (m / (std::sqrt(v) + step.epsilon) + decay * value[i]);
    }
    if (each.value.dtype() == DType::bf16) {
      for (std::size_t i = 0; i < value.size(); ++i) {
        value[i] = rounded(value[i], rounding_draw(each, step, Rounded::value, i));
      }
    }
    if (each.mean.dtype() == DType::f1_6_9) {
      for (std::size_t i = 0; i < value.size(); ++i) {
        mean[i] = rounded_to<f1_6_9>(mean[i], rounding_draw(each, step, Rounded::mean, i));
        variance[i] = rounded_to<f0_6_10>(variance[i], rounding_draw(each, step, Rounded::variance, i));
      }
    }
    store(each.value, value);
    store(each.mean, mean);
    store(each.variance, variance);
    if (each.copy) store(each.copy, load(each.value));  // as convert() would give from the values as they are kept
  }
}

std::vector<double> RefBackend::sums_of_squares(std::span<const Tensor> tensors) {
  std::vector<double> sums;
  for (const Tensor& tensor : tensors) {
    const std::vector<double> values = load(tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % squares_chunk == 0) sums.push_back(0);
      sums.back() += values[i] * values[i];
    }
  }
  return sums;
}

}  // namespace bitloom::nn::ref
