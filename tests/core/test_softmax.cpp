#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <vector>

#include "core/exp_log.h"
#include "core/hash.h"
#include "core/random.h"
#include "core/softmax.h"
#include "tests/support/catch.h"

using namespace bitloom;

namespace {

constexpr float infinite_value = std::numeric_limits<float>::infinity();
const float nan_value = std::nanf("");

std::vector<float> softmax_of(const std::vector<float>& logits) {
  std::vector<float> probabilities(logits.size(), -1.0F);
  softmax(logits, probabilities);
  return probabilities;
}

// 100000 numbers that are multiples of 2^-13 within +-64: the same everywhere.
std::vector<float> test_numbers() {
  Random random(1, Stream::test);
  std::vector<float> numbers(100000);
  for (float& number : numbers) number = static_cast<float>(static_cast<int>(random.below(1 << 20)) - (1 << 19)) / 8192.0F;
  return numbers;
}

}  // namespace

TEST_CASE("exp_fixed is exact to 2e-7 over its whole range", "[softmax]") {
  std::size_t wrong = 0;
  std::size_t tested = 0;
  const auto test = [&](float x) {
    const double expected = std::exp(static_cast<double>(x));
    const double error = std::abs(static_cast<double>(exp_fixed(x)) - expected) / expected;
    if (!(error < 2e-7)) ++wrong;
    ++tested;
  };
  for (float x = -87.0F; x <= 87.0F; x += 1.0F / 4096) test(x);
  // Small numbers of all magnitudes.
  for (float x = 1.0F; x > 1e-40F; x *= 0.97F) {
    test(x);
    test(-x);
  }
  CHECK(tested > 700000);
  CHECK(wrong == 0);
  CHECK(exp_fixed(0.0F) == 1.0F);
}

TEST_CASE("exp_fixed outside of its range", "[softmax]") {
  CHECK(exp_fixed(-87.01F) == 0.0F);
  CHECK(exp_fixed(-infinite_value) == 0.0F);
  CHECK(exp_fixed(88.0F) == exp_fixed(87.0F));
  CHECK(exp_fixed(infinite_value) == exp_fixed(87.0F));
  CHECK(exp_fixed(-87.0F) >= FLT_MIN);
  CHECK(std::isnan(exp_fixed(nan_value)));
}

TEST_CASE("log_fixed is exact to 2e-7 over its whole range, and near 1", "[softmax]") {
  std::size_t wrong = 0;
  std::size_t tested = 0;
  const auto test = [&](float x) {
    if (x == 1.0F) return;
    const double expected = std::log(static_cast<double>(x));
    const double error = std::abs((static_cast<double>(log_fixed(x)) - expected) / expected);
    if (!(error < 2e-7)) ++wrong;
    ++tested;
  };
  for (float x = FLT_MIN; x < FLT_MAX / 2; x *= 1.0003F) test(x);
  for (float x = 0.25F; x < 4.0F; x += 1.0F / 65536) test(x);
  float below = 1.0F, above = 1.0F;
  for (int i = 0; i < 1000; ++i) {
    test(below = std::nextafterf(below, 0.0F));
    test(above = std::nextafterf(above, 2.0F));
  }
  CHECK(tested > 700000);
  CHECK(wrong == 0);
  CHECK(log_fixed(1.0F) == 0.0F);
}

TEST_CASE("log_fixed outside of its range", "[softmax]") {
  for (const float low : {0.0F, -0.0F, -1.0F, -infinite_value, 1e-40F}) CHECK(log_fixed(low) == log_fixed(FLT_MIN));
  CHECK(log_fixed(infinite_value) == log_fixed(FLT_MAX));
  CHECK(std::isnan(log_fixed(nan_value)));
}

TEST_CASE("exp, log and softmax never change a bit, on any machine", "[softmax]") {
  const std::vector<float> numbers = test_numbers();
  std::vector<float> exps, logs, probabilities(numbers.size());
  for (const float number : numbers) {
    exps.push_back(exp_fixed(number));
    logs.push_back(log_fixed(number));
  }
  double entropy = 0.0;
  for (std::size_t i = 0; i < numbers.size(); i += 10) {
    const std::span<const float> logits = std::span(numbers).subspan(i, 10);
    softmax(logits, std::span(probabilities).subspan(i, 10));
    entropy += cross_entropy(logits, i / 10 % 10);
  }
  CHECK(hash_bytes(std::as_bytes(std::span(exps))).hex() == "97074e7fb400ca98073471d600495029");
  CHECK(hash_bytes(std::as_bytes(std::span(logs))).hex() == "f67f312c6081a5189656a6b92ed98194");
  CHECK(hash_bytes(std::as_bytes(std::span(probabilities))).hex() == "8614fdc2c2a418efd2644ddafd613795");
  CHECK(Hasher().update(entropy).finish().hex() == "12e81fe03af101b8599b36d02d133dbd");
}

TEST_CASE("softmax and cross-entropy agree with the textbook", "[softmax]") {
  const std::vector<float> logits{1.5F, -2.0F, 0.25F, 3.0F, 3.0F};
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
  const std::vector<float> probabilities = softmax_of(logits);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double expected = std::exp(static_cast<double>(logits[i])) / sum;
    CHECK(std::abs(static_cast<double>(probabilities[i]) - expected) < 2e-7 * expected);
    CHECK(std::abs(cross_entropy(logits, i) + std::log(expected)) < 1e-9);
  }
  std::vector<float> scores{1.0F, 2.0F, 3.0F, 4.0F, 5.0F};
  subtract_cross_entropies(logits, scores);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    CHECK(scores[i] == static_cast<float>(i + 1) - static_cast<float>(cross_entropy(logits, i)));
  }
  CHECK(softmax_of({7.0F}) == std::vector<float>{1.0F});
  CHECK(cross_entropy(std::vector<float>{7.0F}, 0) == 0.0);
}

TEST_CASE("softmax of large and of far apart logits", "[softmax]") {
  CHECK(softmax_of({1000.0F, 1000.0F}) == std::vector<float>{0.5F, 0.5F});
  CHECK(softmax_of({0.0F, -1000.0F, -infinite_value}) == std::vector<float>{1.0F, 0.0F, 0.0F});
  CHECK(softmax_of({-FLT_MAX, FLT_MAX}) == std::vector<float>{0.0F, 1.0F});
  // exp(-87) is normal but a third of it is not: no subnormal result.
  CHECK(softmax_of({0.0F, 0.0F, 0.0F, -87.0F})[3] == 0.0F);
  // The loss of a hopeless example is still its distance.
  CHECK(cross_entropy(std::vector<float>{0.0F, -1000.0F}, 1) == 1000.0);
}

TEST_CASE("softmax works in place", "[softmax]") {
  std::vector<float> values{1.0F, 2.0F, 3.0F};
  const std::vector<float> expected = softmax_of(values);
  softmax(values, values);
  CHECK(values == expected);
}

TEST_CASE("a NaN or +infinity among the logits is not hidden", "[softmax]") {
  for (const std::vector<float>& logits : {std::vector<float>{nan_value, 1.0F, 2.0F},
                                           {1.0F, nan_value, 2.0F},
                                           {1.0F, 2.0F, nan_value},
                                           {infinite_value, 1.0F, 2.0F},
                                           {-infinite_value, -infinite_value, -infinite_value}}) {
    for (const float probability : softmax_of(logits)) CHECK(std::isnan(probability));
    CHECK(std::isnan(cross_entropy(logits, 1)));
    std::vector<float> scores(3);
    subtract_cross_entropies(logits, scores);
    for (const float score : scores) CHECK(std::isnan(score));
  }
}

TEST_CASE("a loss becomes an integer unless sums of it could overflow", "[softmax]") {
  CHECK(micro_nats(0) == 0);
  CHECK(micro_nats(2.3025851) == 2302585);
  CHECK(micro_nats(1e6) == 1000000000000);
  for (const double nats : {std::nan(""), HUGE_VAL, -HUGE_VAL, 1e300, -1e300, 1.1e6 * 1.1}) CHECK_FALSE(micro_nats(nats));
}

TEST_CASE("exp_double and log_double are exact to 1e-9", "[softmax]") {
  double worst_exp = 0, worst_log = 0;
  for (int i = -8700; i <= 8700; ++i) {
    const double x = 0.01 * i;
    worst_exp = std::max(worst_exp, std::abs(exp_double(x) / std::exp(x) - 1));
    if (i != 0) worst_log = std::max(worst_log, std::abs(log_double(std::exp(x)) / x - 1));
  }
  CHECK(worst_exp < 1e-9);
  CHECK(worst_log < 1e-9);
  CHECK(exp_double(-87.0) > 0);
  CHECK(exp_double(std::nextafter(-87.0, -88.0)) == 0);
  CHECK(exp_double(-std::numeric_limits<double>::infinity()) == 0);
  CHECK(exp_double(0) == 1);
  CHECK(log_double(1) == 0);
}
