#include "mpi/sparse_exchange.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"
#include "mpi/meter.h"

namespace bitloom::mpi {
namespace {

constexpr double largest_threshold = 1e4;
constexpr std::size_t largest_staleness = 64;
constexpr std::uint64_t least_budget = 64;  // bytes
constexpr double largest_compression = 1e6;
constexpr std::uint64_t largest_narrow_step = std::uint64_t{1} << 30U;
constexpr std::uint64_t largest_wide_step = std::uint64_t{1} << 59U;  // four of them fit
constexpr double rms_parts = 16;                                      // parts of an integer in a rounded root mean square

template <typename T>
double root_mean_square(std::span<const T> values) {
  double squares = 0;
  for (const T value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
}

// Sums by place.
template <typename T>
void add_sizes(std::vector<std::uint64_t>& sums, const std::vector<T>& sizes) {
  sums.resize(std::max(sums.size(), sizes.size()));
  for (std::size_t i = 0; i < sizes.size(); ++i) sums[i] += sizes[i];
}

}  // namespace

void check(const ExchangeOptions& options) {
  if (!(options.threshold >= 0) || options.threshold > largest_threshold) {
    fail_field(ErrorKind::usage, "threshold", "{}; expected 0 to {:g} root mean squares", options.threshold, largest_threshold);
  }
  if (options.bytes_per_update != 0 && options.bytes_per_update < least_budget) {
    fail_field(ErrorKind::usage, "bytes_per_update", "{} bytes; expected 0 (no limit) or at least {}", options.bytes_per_update,
               least_budget);
  }
  if (options.compression != 0 && !(options.compression >= 1 && options.compression <= largest_compression)) {
    fail_field(ErrorKind::usage, "compression", "{}; expected 0 (no limit) or 1 to {:g} times fewer bytes than f32 gradients",
               options.compression, largest_compression);
  }
  if (options.compression != 0 && options.bytes_per_update != 0) {
    fail(ErrorKind::usage, "`compression` and `bytes_per_update` exclude each other");
  }
  if (!(options.last_messages >= 0 && options.last_messages <= 1)) {
    fail_field(ErrorKind::usage, "last_messages", "{} mean lengths; expected 0 to 1", options.last_messages);
  }
  if (options.staleness > largest_staleness) {
    fail_field(ErrorKind::usage, "staleness", "{} updates; expected 0 to {}", options.staleness, largest_staleness);
  }
  check(options.tree);
  levels_of(options.value_bits);
}

ExchangeCounts& ExchangeCounts::operator+=(const ExchangeCounts& other) {
  updates += other.updates;
  worker_bytes += other.worker_bytes;
  reply_bytes += other.reply_bytes;
  replies += other.replies;
  wanted_bytes += other.wanted_bytes;
  workers += other.workers;
  worker_updates += other.worker_updates;
  sent_elements += other.sent_elements;
  elements += other.elements;
  at_limit += other.at_limit;
  add_sizes(vector_bytes, other.vector_bytes);
  encode += other.encode;
  tree += other.tree;
  return *this;
}

SparseExchange::SparseExchange(Comm& comm, const ExchangeOptions& options, std::size_t workers, std::size_t first,
                               std::size_t count, std::vector<FeedbackVector> feedback, std::vector<std::uint64_t> statistics,
                               const ErrorFeedbackPlace& place)
    : comm_(comm),
      options_(options),
      tree_(comm, options.tree, count, feedback.size()),
      first_(first),
      count_(count),
      feedback_(std::move(feedback)),
      statistics_(std::move(statistics)),
      gather_(comm) {
  check(options);
  if (tree_.all_workers() != workers) {
    fail(ErrorKind::internal, "exchange: ranks carry {} workers; expected {}", tree_.all_workers(), workers);
  }
  if (count == 0) {
    fail_field(ErrorKind::usage, "workers", "rank {} of {} has none of {} workers; expected at least one per rank", comm.rank(),
               comm.size(), workers);
  }
  if (!options.exact()) {
    const bool keeps = options.keeps();
    kept_ = KeptState(feedback_, keeps ? statistics_ : std::vector<std::uint64_t>{}, keeps ? count : 1,
                      keeps ? place : ErrorFeedbackPlace{}, comm.rank());
  }
  tree_.set_beside([this] { move_state(); });
  up_thresholds_.assign(feedback_.size(), options.exact() ? 0 : nothing_passes);
  std::vector<ControlledVector> controlled;
  for (const FeedbackVector& vector : feedback_) controlled.push_back({vector.size, vector.threshold_scale});
  up_ = down_ = ThresholdControl(std::move(controlled), options.has_budget() ? 0 : options.threshold);
  reply_error_feedback_.resize(feedback_.size());
}

SparseFilter SparseExchange::filter(std::uint64_t threshold, bool narrow) const {
  if (options_.exact() || options_.value_bits == 0 || threshold == nothing_passes) return {threshold, 1, 0};
  const std::uint64_t levels = levels_of(options_.value_bits);
  // Kept values grow until they pass the threshold, so most that pass are little above it: half of the levels are below
  // twice the threshold, all below four times. The few values beyond have longer codes; were they cut, low thresholds would
  // leave most of what workers compute behind, more of it in every update.
  const std::uint64_t step = levels == 1 ? threshold + threshold / 4 : 4 * threshold / levels;
  return {threshold, std::clamp<std::uint64_t>(step, 1, narrow ? largest_narrow_step : largest_wide_step),
          levels == 1 ? 1U : 0U};
}

std::uint64_t SparseExchange::threshold_of(const ThresholdControl& control, std::size_t v) const {
  return options_.exact() ? 0 : control.threshold(v);
}

void SparseExchange::check_size(const char* what, std::uint64_t size, std::uint64_t expected) const {
  if (size != expected) fail(ErrorKind::internal, "exchange: {} of {} elements; expected {}", what, size, expected);
}

void SparseExchange::begin(std::uint64_t update, bool statistics, double length) {
  update_ = update;
  length_ = length;
  with_statistics_ = statistics;
  with_magnitudes_ = false;
  // Vectors without elements, such as those of units that a head lacks, never get a threshold.
  for (std::size_t v = 0; v < feedback_.size() && statistics && options_.has_budget(); ++v) {
    with_magnitudes_ |= feedback_[v].size != 0 && up_thresholds_[v] == nothing_passes;
  }
}

void SparseExchange::begin_worker(std::size_t worker) {
  worker_ = worker - first_;
  if (snapshot_ != nullptr) snapshot_->before_change(worker_);
  current_ = {};
  current_.update = update_;
  current_.workers = 1;
  current_.vectors.resize(feedback_.size() + statistics_.size());
  current_rms_.assign(feedback_.size(), 0);
  current_magnitudes_.assign(with_magnitudes_ ? feedback_.size() * magnitude_widths : 0, 0);
  current_is_new_ = false;
  user_totals_ = 0;
}

template <typename T>
void SparseExchange::add_fresh(std::size_t v, std::span<const T> fresh, std::span<T> kept) {
  check_size("a feedback vector", fresh.size(), feedback_[v].size);
  if (with_magnitudes_) {
    for (const T value : fresh) {
      const auto width = static_cast<std::size_t>(std::bit_width(magnitude(value)));
      ++current_magnitudes_[v * magnitude_widths + std::min(width, magnitude_widths - 1)];
    }
    current_is_new_ |= !fresh.empty() && up_thresholds_[v] == nothing_passes;
  }
  if (with_statistics_) current_rms_[v] = std::llround(std::min(rms_parts * root_mean_square(fresh), 0x1p60));
  SparseVector sent;
  if (options_.exact()) {
    sent = to_sparse(std::vector<std::int64_t>(fresh.begin(), fresh.end()));
  } else {
    sent = add_and_take(fresh, kept, filter(up_thresholds_[v], feedback_[v].narrow), &counts_.at_limit);
    if (options_.error_feedback == ErrorFeedback::none) std::fill(kept.begin(), kept.end(), T{0});
  }
  counts_.sent_elements += sent.index.size();
  counts_.elements += sent.size;
  current_.vectors[v] = std::move(sent);
}

void SparseExchange::add(std::size_t v, std::span<const std::int32_t> fresh) {
  const Clock::time_point start = Clock::now();
  add_fresh(v, fresh, options_.exact() ? std::span<std::int32_t>{} : kept().feedback[v].narrow);
  counts_.encode += seconds_since(start);
}

void SparseExchange::add(std::size_t v, std::span<const std::int64_t> fresh) {
  const Clock::time_point start = Clock::now();
  add_fresh(v, fresh, options_.exact() ? std::span<std::int64_t>{} : kept().feedback[v].wide);
  counts_.encode += seconds_since(start);
}

void SparseExchange::add_statistics(std::size_t s, std::span<const std::int64_t> values) {
  check_size("statistics", values.size(), statistics_[s]);
  if (options_.keeps()) {
    std::vector<std::int64_t>& kept = kept_[worker_].statistics[s];
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] += values[i];
    if (!with_statistics_) return;
    current_.vectors[statistic(s)] = to_sparse(kept);
    std::fill(kept.begin(), kept.end(), 0);
  } else if (with_statistics_) {
    current_.vectors[statistic(s)] = to_sparse(values);
  }
}

void SparseExchange::add_totals(std::span<const std::int64_t> totals) {
  current_.totals.assign(totals.begin(), totals.end());
  user_totals_ = totals.size();
}

void SparseExchange::end_worker() {
  const Clock::time_point start = Clock::now();
  if (with_statistics_) current_.totals.insert(current_.totals.end(), current_rms_.begin(), current_rms_.end());
  if (current_is_new_) {
    current_.totals.insert(current_.totals.end(), current_magnitudes_.begin(), current_magnitudes_.end());
  }
  current_.worker_bytes = encoded_size(current_, vector_sizes_);  // length of the message of a worker alone on its rank
  add_sizes(counts_.vector_bytes, vector_sizes_);
  merger_->add(first_ + worker_, std::move(current_));
  ++counts_.worker_updates;
  counts_.encode += seconds_since(start);
  tree_.poll();
}

std::optional<Bundle> SparseExchange::gather() {
  Clock::time_point start = Clock::now();
  Bundle own = merger_->finish();
  counts_.encode += seconds_since(start);
  std::optional<Bundle> merged = tree_.gather(update_, std::move(own));
  if (!merged) return merged;
  start = Clock::now();
  if (merged->workers != tree_.all_workers() && options_.tree.quorum == 1) {
    fail(ErrorKind::internal, "exchange: {} workers in update {}; expected {}", merged->workers, update_, tree_.all_workers());
  }
  require_sizes(*merged);
  if (with_statistics_ && merged->totals.size() < user_totals_ + feedback_.size()) {
    fail(ErrorKind::data, "exchange: update {} has {} totals; expected at least {}", update_, merged->totals.size(),
         user_totals_ + feedback_.size());
  }
  const auto each = static_cast<double>(merged->workers);
  counts_.workers += merged->workers;
  counts_.worker_bytes += merged->worker_bytes;
  const auto known = [&] { return std::ranges::count_if(up_.all_rms(), [](double rms) { return rms > 0; }); };
  const auto known_before = known();
  if (with_statistics_) {
    for (std::size_t v = 0; v < feedback_.size(); ++v) {
      up_.observe(v, static_cast<double>(merged->totals[user_totals_ + v]) / each / rms_parts);
    }
  }
  if (options_.has_budget()) {
    const double bytes = wanted(*merged);
    counts_.wanted_bytes += bytes;
    up_.steer(static_cast<double>(merged->worker_bytes) / each, bytes, vectors_in(*merged), !with_statistics_);
    const std::size_t end = user_totals_ + feedback_.size() + feedback_.size() * magnitude_widths;
    // Messages on the way are of workers that did not know the new thresholds.
    if (known() > known_before) begun_at_ = update_;
    if (with_statistics_ && merged->totals.size() == end && begun_at_ && update_ - *begun_at_ <= options_.staleness) {
      up_.begin_with(std::span(merged->totals).last(feedback_.size() * magnitude_widths), bytes, each);
    }
  }
  counts_.encode += seconds_since(start);
  return merged;
}

void SparseExchange::pass(std::uint64_t update) { tree_.gather(update, std::nullopt); }

// Workers add their root mean squares behind them where there are statistics, the root its thresholds.
std::span<const std::int64_t> SparseExchange::totals(const Bundle& bundle, std::size_t count) const {
  if (bundle.totals.size() < count) {
    fail(ErrorKind::data, "exchange: a bundle of {} totals; expected at least {}", bundle.totals.size(), count);
  }
  return std::span(bundle.totals).first(count);
}

SparseVector SparseExchange::limit(std::size_t v, const SparseVector& merged) {
  if (options_.exact() || merged.size == 0) return merged;
  const Clock::time_point start = Clock::now();
  std::vector<std::int64_t>& kept = reply_error_feedback_[v];
  kept.resize(feedback_[v].size, 0);
  double squares = 0;
  for (const std::int64_t value : merged.value) squares += static_cast<double>(value) * static_cast<double>(value);
  down_.observe(v, std::sqrt(squares / static_cast<double>(merged.size)));
  add_to(kept, merged);
  SparseVector reply = take(std::span(kept), filter(threshold_of(down_, v), false));
  if (options_.error_feedback == ErrorFeedback::none) std::fill(kept.begin(), kept.end(), 0);
  counts_.encode += seconds_since(start);
  return reply;
}

void SparseExchange::spread(Bundle reply) {
  const Clock::time_point start = Clock::now();
  reply.update = update_;
  reply.worker_bytes = 0;
  reply.totals.resize(user_totals_);
  for (std::size_t v = 0; v < feedback_.size(); ++v) {
    const std::uint64_t threshold = threshold_of(up_, v);
    reply.totals.push_back(threshold == nothing_passes ? -1 : static_cast<std::int64_t>(threshold));
  }
  std::vector<std::byte> bytes = encode(reply);
  ++counts_.replies;
  counts_.reply_bytes += bytes.size();
  if (options_.has_budget()) {
    down_.steer(static_cast<double>(bytes.size()), wanted(reply), vectors_in(reply), !with_statistics_);
  }
  counts_.encode += seconds_since(start);
  tree_.spread(std::move(bytes));
}

Bundle SparseExchange::next_reply(std::uint64_t update) {
  Bundle reply = tree_.next_reply();
  const std::size_t vectors = feedback_.size() + statistics_.size();
  const std::size_t own = feedback_.size();
  if (reply.update != update || reply.totals.size() < own || reply.vectors.size() != vectors) {
    fail(ErrorKind::data, "exchange: a reply to update {} of {} totals and {} vectors; expected update {}, at least {}, and {}",
         reply.update, reply.totals.size(), reply.vectors.size(), update, own, vectors);
  }
  require_sizes(reply);
  const std::span<const std::int64_t> thresholds = std::span(reply.totals).last(own);
  for (std::size_t v = 0; v < feedback_.size(); ++v) {
    up_thresholds_[v] = thresholds[v] < 0 ? nothing_passes : static_cast<std::uint64_t>(thresholds[v]);
  }
  if (options_.staleness == 0 && options_.tree.quorum == 1) tree_.finish_sends();
  ++counts_.updates;
  return reply;
}

// Vectors from other ranks are applied by place. Throws Error(data).
void SparseExchange::require_sizes(const Bundle& bundle) const {
  for (std::size_t v = 0; v < bundle.vectors.size(); ++v) {
    const std::uint64_t expected = v < feedback_.size() ? feedback_[v].size : statistics_[v - feedback_.size()];
    if (const std::uint64_t size = bundle.vectors[v].size; size != 0 && size != expected) {
      fail(ErrorKind::data, "exchange: vector {} of update {} has {} elements; expected {}", v, bundle.update, size, expected);
    }
  }
}

// How many feedback vectors there are in a bundle.
std::size_t SparseExchange::vectors_in(const Bundle& bundle) const {
  const auto end = bundle.vectors.begin() + static_cast<std::ptrdiff_t>(feedback_.size());
  return static_cast<std::size_t>(std::count_if(bundle.vectors.begin(), end, [](const auto& v) { return v.size != 0; }));
}

std::uint64_t SparseExchange::elements_in(const Bundle& bundle) const {
  std::uint64_t elements = 0;
  for (std::size_t v = 0; v < feedback_.size(); ++v) elements += bundle.vectors[v].size;
  return elements;
}

double SparseExchange::wanted(const Bundle& bundle) const {
  const double bytes = budget(elements_in(bundle));
  return options_.compression == 0 ? bytes : std::max(length_ * bytes, static_cast<double>(least_budget));
}

double SparseExchange::budget(std::uint64_t elements) const {
  if (options_.compression == 0) return static_cast<double>(options_.bytes_per_update);
  // Messages of statistics and totals alone have a length too.
  return std::max(4 * static_cast<double>(elements) / options_.compression, static_cast<double>(least_budget));
}

double SparseExchange::rms_of_sum(std::size_t v, std::uint64_t workers) const {
  return up_.rms(v) * std::sqrt(static_cast<double>(workers));
}

ExchangeCounts SparseExchange::take_counts() {
  counts_.tree = tree_.take_counts();
  return std::exchange(counts_, {});
}

}  // namespace bitloom::mpi
