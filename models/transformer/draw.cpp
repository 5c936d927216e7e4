#include "models/transformer/draw.h"

#include <algorithm>
#include <cmath>
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

// Tokens by descending logits, ties by ascending number, of which as few are sorted as are asked for: a token that is drawn is
// mostly among the likeliest of a large vocabulary.
class Ranking {
 public:
  explicit Ranking(std::span<const float> logits) : logits_(logits), order_(logits.size()) {
    std::iota(order_.begin(), order_.end(), 0);
  }
  std::int32_t operator[](std::size_t place) {
    while (place >= sorted_) sort_more();
    return order_[place];
  }

 private:
  void sort_more() {
    const std::size_t end = std::min(order_.size(), std::max<std::size_t>(64, 8 * sorted_));
    const auto at = [this](std::size_t place) { return order_.begin() + static_cast<std::ptrdiff_t>(place); };
    std::partial_sort(at(sorted_), at(end), order_.end(), [this](std::int32_t a, std::int32_t b) {
      const float x = logits_[static_cast<std::size_t>(a)];
      const float y = logits_[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    });
    sorted_ = end;
  }

  std::span<const float> logits_;
  std::vector<std::int32_t> order_;
  std::size_t sorted_ = 0;
};

}  // namespace

std::int32_t draw(std::span<const float> logits, const DrawOptions& options, double uniform) {
  Ranking ranking(logits);
  if (options.temperature == 0) return ranking[0];
  const double largest = static_cast<double>(logits[static_cast<std::size_t>(ranking[0])]);
  // Probability up to a factor.
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - largest) / options.temperature); };
  const auto weight_at = [&](std::size_t place) { return weight(logits[static_cast<std::size_t>(ranking[place])]); };
  std::size_t kept = logits.size();
  double sum = 0;
  if (options.top_k != 0 && options.top_k < logits.size()) {
    kept = options.top_k;
    for (std::size_t place = 0; place < kept; ++place) sum += weight_at(place);
  } else {
    for (const float logit : logits) sum += weight(logit);
  }
  if (options.top_p < 1) {
    const double enough = options.top_p * sum;
    std::size_t place = 0;
    for (sum = weight_at(0); sum < enough && place + 1 < kept;) sum += weight_at(++place);
    kept = place + 1;
  }
  double before = 0;  // sum up to a token
  std::size_t place = 0;
  for (; place + 1 < kept; ++place) {
    before += weight_at(place);
    if (before > uniform * sum) break;
  }
  return ranking[place];
}

}  // namespace bitloom::models
