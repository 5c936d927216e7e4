// Updates of a few logical workers over a SparseExchange, for tests.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/random.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::test {

using namespace bitloom::mpi;

inline constexpr std::size_t workers = 7;
inline constexpr std::size_t narrow_size = 5000, wide_size = 300, statistics_size = 40;

inline std::vector<std::int64_t> drawn(std::uint64_t update, std::uint64_t worker, std::uint64_t what, std::size_t size,
                                       double scale) {
  Random random(update, Stream::test, worker, what);
  std::vector<std::int64_t> values(size);
  for (std::int64_t& value : values) value = std::llround(scale * random.normal());
  return values;
}

inline bool has_statistics(std::uint64_t update) { return update % 3 == 0; }

// A few workers' updates; the root's reply is what it got.
class Trial {
 public:
  Trial(Comm& comm, const ExchangeOptions& options, const ErrorFeedbackPlace& place = {})
      : first_(static_cast<std::size_t>(comm.rank()) * workers / static_cast<std::size_t>(comm.size())),
        last_((static_cast<std::size_t>(comm.rank()) + 1) * workers / static_cast<std::size_t>(comm.size())),
        exchange_(comm, options, workers, first_, last_ - first_, {{narrow_size, true}, {wide_size, false}}, {statistics_size},
                  place) {}

  // Adds the values of this rank's workers in update n.
  void compute(std::uint64_t n) {
    exchange_.begin(n, has_statistics(n), length);
    for (std::size_t w = first_; w < last_; ++w) {
      exchange_.begin_worker(w);
      const std::vector<std::int64_t> a = drawn(n, w, 0, narrow_size, 100);
      exchange_.add(0, std::vector<std::int32_t>(a.begin(), a.end()));
      exchange_.add(1, drawn(n, w, 1, wide_size, 1e12));
      exchange_.add_statistics(0, drawn(n, w, 2, statistics_size, 50));
      exchange_.add_totals(std::vector<std::int64_t>{static_cast<std::int64_t>(w), 1});
      exchange_.end_worker();
    }
  }
  // Adds all of it to (narrow, statistics).
  void note_computed(std::uint64_t n, std::vector<std::int64_t>& sum) const {
    for (std::size_t w = first_; w < last_; ++w) {
      const std::vector<std::int64_t> narrow = drawn(n, w, 0, narrow_size, 100);
      const std::vector<std::int64_t> statistics = drawn(n, w, 2, statistics_size, 50);
      for (std::size_t i = 0; i < narrow_size; ++i) sum[i] += narrow[i];
      for (std::size_t i = 0; i < statistics_size && has_statistics(n); ++i) sum[narrow_size + i] += statistics[i];
    }
  }
  void send() {
    std::optional<Bundle> merged = exchange_.gather();
    if (!merged) return;
    merged_ = *merged;
    for (std::size_t v = 0; v < 2; ++v) merged->vectors[v] = exchange_.limit(v, merged->vectors[v]);
    exchange_.spread(*std::move(merged));
  }
  // An update, and the reply to it or to one before.
  Bundle update(std::uint64_t n, std::uint64_t replied_to) {
    compute(n);
    send();
    return exchange_.next_reply(replied_to);
  }
  Bundle update(std::uint64_t n) { return update(n, n); }
  const Bundle& merged() const { return merged_; }  // at the root
  SparseExchange& exchange() { return exchange_; }

  double length = 1;  // length of messages

 private:
  std::size_t first_, last_;
  SparseExchange exchange_;
  Bundle merged_;
};

inline std::vector<ExchangeOptions> option_cases() {
  ExchangeOptions exact;
  ExchangeOptions fixed;
  fixed.threshold = 2;
  ExchangeOptions budget;
  budget.bytes_per_update = 400;
  budget.value_bits = 1;
  budget.tree.fan_in = 1;
  ExchangeOptions forgetful = fixed;
  forgetful.error_feedback = ErrorFeedback::none;
  forgetful.value_bits = 8;
  forgetful.tree.fan_in = 2;
  ExchangeOptions ratio;
  ratio.compression = 20;
  return {exact, fixed, budget, forgetful, ratio};
}

inline std::vector<std::int64_t> dense(const SparseVector& vector) {
  std::vector<std::int64_t> values(vector.size);
  add_to(values, vector);
  return values;
}

}  // namespace bitloom::test
