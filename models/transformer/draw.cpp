#include "models/transformer/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::models {

void check(const DrawOptions& options) {
  if (!(options.temperature >= 0 && std::isfinite(options.temperature))) {
    fail_field(ErrorKind::usage, "temperature", "{}; expected at least 0", options.temperature);
  }
  if (!(options.top_p > 0 && options.top_p <= 1)) {
    fail_field(ErrorKind::usage, "top_p", "{}; expected more than 0 and at most 1", options.top_p);
  }
}

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct ComesBefore {
  std::span<const float> logits;
  bool operator()(std::int32_t a, std::int32_t b) const {
    const float x = logits[static_cast<std::size_t>(a)];
    const float y = logits[static_cast<std::size_t>(b)];
    return x > y || (x == y && a < b);
  }
};

// Tokens by descending logits, ties by ascending number.
class Ranking {
 public:
  // All but those that have the probability 0 because of an infinity.
  explicit Ranking(std::span<const float> logits) : comes_before_{logits}, order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
    const bool is_certain = std::ranges::max(logits) == infinity;
    std::erase_if(order_, [&](std::int32_t token) {
      const float logit = logits[static_cast<std::size_t>(token)];
      return logit == -infinity || (is_certain && logit != infinity);
    });
  }

  // Drops all but the first `count`.
  void keep(std::size_t count) {
    if (count >= order_.size()) return;
    std::ranges::nth_element(order_, order_.begin() + static_cast<std::ptrdiff_t>(count), comes_before_);
    order_.resize(count);
  }
  // Drops all but as few of the first as have `share` of the weight.
  template <typename Weight>
  void keep_share(double share, const Weight& weight) {
    std::ranges::sort(order_, comes_before_);
    const double enough = share * sum(weight);
    double sum = 0;
    std::size_t count = 0;
    while (count < order_.size() && (count == 0 || sum < enough)) sum += weight(order_[count++]);
    order_.resize(count);
  }
  template <typename Weight>
  double sum(const Weight& weight) const {
    return std::accumulate(order_.begin(), order_.end(), 0.0, [&](double sum, std::int32_t i) { return sum + weight(i); });
  }
  // The first token up to which there is more than `before` of the weight. Of the rest only what may be it is ordered.
  template <typename Weight>
  std::int32_t find(double before, const Weight& weight) {
    auto begin = order_.begin(), end = order_.end();
    constexpr std::ptrdiff_t few = 16;
    while (end - begin > few) {
      const auto middle = begin + (end - begin) / 2;
      std::nth_element(begin, middle, end, comes_before_);
      double upper = 0;
      for (auto each = begin; each != middle; ++each) upper += weight(*each);
      if (upper > before) {
        end = middle;
      } else {
        before -= upper;
        begin = middle;
      }
    }
    std::sort(begin, end, comes_before_);
    for (; begin + 1 != end; ++begin) {
      before -= weight(*begin);
      if (before < 0) break;
    }
    return *begin;
  }

 private:
  ComesBefore comes_before_;
  std::vector<std::int32_t> order_;
};

}  // namespace

void check_logits(std::span<const float> logits) {
  const auto bad = std::ranges::find_if(logits, [](float logit) { return std::isnan(logit); });
  if (bad != logits.end()) {
    fail(ErrorKind::data, "the model gives no number for token {}: its parameters are damaged, or it diverged in training",
         bad - logits.begin());
  }
  if (!logits.empty() && std::ranges::max(logits) == -infinity) {
    fail(ErrorKind::data, "the model gives -infinity for all {} tokens: its parameters are damaged, or it diverged in training",
         logits.size());
  }
}

std::int32_t draw(std::span<const float> logits, const DrawOptions& options, double uniform) {
  const auto likeliest = std::ranges::max_element(logits);
  if (options.temperature == 0) return static_cast<std::int32_t>(likeliest - logits.begin());
  // Probabilities up to a factor.
  std::vector<double> weights(logits.size());
  const auto largest = static_cast<double>(*likeliest);
  std::ranges::transform(logits, weights.begin(), [&](float logit) {
    if (logit == *likeliest) return 1.0;  // infinities have no difference
    return std::exp((static_cast<double>(logit) - largest) / options.temperature);
  });
  const auto weight = [&](std::int32_t token) { return weights[static_cast<std::size_t>(token)]; };
  Ranking ranking(logits);
  if (options.top_k != 0) ranking.keep(options.top_k);
  if (options.top_p < 1) ranking.keep_share(options.top_p, weight);
  return ranking.find(uniform * ranking.sum(weight), weight);
}

}  // namespace bitloom::models
