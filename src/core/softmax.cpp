#include "core/softmax.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "core/exp_log.h"

namespace bitloom {
namespace {

// Everything is computed in double and rounded to float once at the end: the rounding is then nearly the whole error.

constexpr float largest_exponent = 87.0F;  // exp(+-87) is a normal float

// exp of a logit less the largest one: x <= 0 or NaN.
double exp_below_one(double x) { return std::isnan(x) ? x : exp_double(x); }

float largest(std::span<const float> logits) {
  // Not std::max_element: a NaN must come through wherever it stands.
  float most = logits[0];
  for (const float logit : logits) {
    if (!(logit <= most)) most = logit;
    if (std::isnan(most)) break;
  }
  return most;
}

// Cross entropies of the labels of the same logits.
class CrossEntropies {
 public:
  explicit CrossEntropies(std::span<const float> logits) : most_(static_cast<double>(largest(logits))) {
    double sum = 0.0;
    for (const float logit : logits) sum += exp_below_one(static_cast<double>(logit) - most_);
    log_sum_ = std::isnan(sum) ? sum : log_double(sum);
  }
  double of(float logit) const { return std::isnan(log_sum_) ? log_sum_ : log_sum_ - (static_cast<double>(logit) - most_); }

 private:
  double most_, log_sum_;
};

}  // namespace

float exp_fixed(float x) {
  if (std::isnan(x)) return x;
  if (x < -largest_exponent) return 0.0F;
  return static_cast<float>(exp_double(static_cast<double>(std::min(x, largest_exponent))));
}

float log_fixed(float x) {
  if (std::isnan(x)) return x;
  using Limits = std::numeric_limits<float>;
  return static_cast<float>(log_double(static_cast<double>(std::clamp(x, Limits::min(), Limits::max()))));
}

void softmax(std::span<const float> logits, std::span<float> probabilities) {
  assert(!logits.empty() && logits.size() == probabilities.size());
  const double most = static_cast<double>(largest(logits));
  double sum = 0.0;
  for (const float logit : logits) sum += exp_below_one(static_cast<double>(logit) - most);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double probability = exp_below_one(static_cast<double>(logits[i]) - most) / sum;
    const bool subnormal = probability < static_cast<double>(std::numeric_limits<float>::min());
    probabilities[i] = subnormal ? 0.0F : static_cast<float>(probability);
  }
}

double cross_entropy(std::span<const float> logits, std::size_t label) {
  assert(label < logits.size());
  return CrossEntropies(logits).of(logits[label]);
}

void subtract_cross_entropies(std::span<const float> logits, std::span<float> scores) {
  assert(!logits.empty() && logits.size() == scores.size());
  const CrossEntropies all(logits);
  for (std::size_t l = 0; l < logits.size(); ++l) scores[l] -= static_cast<float>(all.of(logits[l]));
}

std::optional<std::int64_t> micro_nats(double nats) {
  const double scaled = 1e6 * nats;
  if (!(std::abs(scaled) <= static_cast<double>(largest_micro_nats))) return std::nullopt;
  return std::llround(scaled);
}

}  // namespace bitloom
