#include "core/softmax.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <limits>

namespace bitloom {
namespace {

// Everything is computed in double and rounded to float once at the end: the rounding is then nearly the whole error.

constexpr float largest_exponent = 87.0F;  // exp(+-87) is a normal float
constexpr double log2_e = 1.4426950408889634;
constexpr double ln_2 = 0.6931471805599453;

// exp(x) for |x| <= 87, relative error below 1e-9.
double exp_core(double x) {
  // x = n ln 2 + r with integer n and |r| <= ln 2 / 2. Adding and subtracting 1.5 * 2^52 rounds to an integer, to nearest.
  constexpr double round_shift = 0x1.8p52;
  const double n = (x * log2_e + round_shift) - round_shift;
  const double r = x - n * ln_2;  // n ln 2 is off by at most 126 * 2^-54
  // The Taylor series up to r^9 / 9!; the first term left out is below 0.3466^10 / 10! = 7e-12.
  double p = 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  // 2^n by its exponent bits.
  const double power = std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::int64_t>(n) + 1023) << 52);
  return p * power;
}

// The natural logarithm of a normal x > 0, relative error below 1e-9.
double log_core(double x) {
  // x = m 2^k with sqrt(1/2) <= m < sqrt(2), so that k ln 2 never cancels log m.
  constexpr std::uint64_t sqrt_half = 0x3fe6a09e667f3bcdULL;  // the bits of sqrt(1/2)
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x);
  const std::int64_t k = static_cast<std::int64_t>(bits - sqrt_half) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<std::uint64_t>(k) << 52));
  // log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| <= 0.1716; m - 1 is exact. The series 2 (s + s^3/3 + s^5/5 + ...)
  // up to s^13 / 13; the first term left out is below s * 0.1716^14 / 15 = 1.3e-12 s.
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  double p = 1.0 / 13;
  p = p * q + 1.0 / 11;
  p = p * q + 1.0 / 9;
  p = p * q + 1.0 / 7;
  p = p * q + 1.0 / 5;
  p = p * q + 1.0 / 3;
  p = p * q + 1.0;
  return static_cast<double>(k) * ln_2 + 2.0 * s * p;
}

// exp of a logit less the largest one: x <= 0 or NaN.
double exp_below_one(double x) {
  if (x < -static_cast<double>(largest_exponent)) return 0.0;
  return std::isnan(x) ? x : exp_core(x);
}

float largest(std::span<const float> logits) {
  // Not std::max_element: a NaN must come through wherever it stands.
  float most = logits[0];
  for (const float logit : logits) {
    if (!(logit <= most)) most = logit;
    if (std::isnan(most)) break;
  }
  return most;
}

}  // namespace

float exp_fixed(float x) {
  if (std::isnan(x)) return x;
  if (x < -largest_exponent) return 0.0F;
  return static_cast<float>(exp_core(static_cast<double>(std::min(x, largest_exponent))));
}

float log_fixed(float x) {
  if (std::isnan(x)) return x;
  using Limits = std::numeric_limits<float>;
  return static_cast<float>(log_core(static_cast<double>(std::clamp(x, Limits::min(), Limits::max()))));
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
  const double most = static_cast<double>(largest(logits));
  double sum = 0.0;
  for (const float logit : logits) sum += exp_below_one(static_cast<double>(logit) - most);
  if (std::isnan(sum)) return sum;
  return log_core(sum) - (static_cast<double>(logits[label]) - most);
}

std::optional<std::int64_t> micro_nats(double nats) {
  const double scaled = 1e6 * nats;
  if (!(std::abs(scaled) <= static_cast<double>(largest_micro_nats))) return std::nullopt;
  return std::llround(scaled);
}

}  // namespace bitloom
