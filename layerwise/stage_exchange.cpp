// A stage's step with sparse messages: each logical worker computes on its own images, what it sends is merged on the way to
// rank 0, and the answer, which is little too, updates all ranks alike. Rank 0 alone moves accumulators and chooses flips.
//
// Feedback vectors: per trained layer its weights' gradients (in the answer: the changes of the weights) and its channels' sums
// of values; per head its five parts. Statistics: per layer LayerSums::statistics without the values, per head its counts.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "layerwise/stage.h"

namespace bitloom::layerwise {
namespace {

constexpr unsigned most_fraction_bits = 6;
constexpr std::size_t first_updates = 4;  // with statistics, when heads and when weights begin to learn
constexpr std::size_t head_parts = 5;

std::size_t weights_of(std::size_t layer) { return 2 * layer; }
std::size_t values_of(std::size_t layer) { return 2 * layer + 1; }

// Those that head_parts vectors carry.
std::array<std::vector<std::int64_t>*, head_parts> parts_of(Head::Sums& sums) {
  return {&sums.linear, &sums.linear_bias, &sums.hidden, &sums.hidden_bias, &sums.output};
}

// `values` become those of a sparse vector; zeros if it is not there.
template <typename T>
void fill(std::span<T> values, const mpi::SparseVector& vector) {
  std::fill(values.begin(), values.end(), T{0});
  if (vector.size == 0) return;
  if (vector.size != values.size()) {
    fail(ErrorKind::data, "exchange: a vector of {} elements; expected {}", vector.size, values.size());
  }
  for (std::size_t i = 0; i < vector.index.size(); ++i) {
    values[vector.index[i]] =
        static_cast<T>(std::clamp<std::int64_t>(vector.value[i], std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
}

}  // namespace

void Stage::make_exchange() {
  std::vector<mpi::FeedbackVector> feedback;
  std::vector<std::uint64_t> statistics;
  for (const LayerState& state : states_) {
    const BinaryLayer& layer = layers_[state.index];
    feedback.push_back({state.sums.weight.size(), true});
    feedback.push_back({state.sums.channels, false});
    statistics.push_back(state.sums.statistics.size());
    // Sums of a worker take a quarter of 32 bits at most.
    const MapShape& map = layer.geometry().output;
    const std::size_t images = (batch_ + workers_.count() - 1) / workers_.count();
    const auto width = static_cast<unsigned>(std::bit_width(images * map.height * map.width * largest_code));
    fraction_bits_.push_back(std::min(most_fraction_bits, width < 29 ? 29 - width : 0));
  }
  for (HeadState& head : heads_) {
    for (const std::vector<std::int64_t>* part : parts_of(head.sums)) feedback.push_back({part->size(), false});
    statistics.push_back(head.sums.count.size());
    statistics.push_back(head.sums.count_squared.size());
  }
  const auto [first, last] = workers_.on_rank(static_cast<std::size_t>(comm_.rank()), static_cast<std::size_t>(comm_.size()));
  exchange_ = std::make_unique<mpi::SparseExchange>(comm_, options_.exchange, workers_.count(), first, last - first,
                                                    std::move(feedback), std::move(statistics));
}

bool Stage::statistics_due(std::size_t warmup) const {
  const auto just_begun = [&](std::size_t begin) { return step_ >= begin && step_ < begin + first_updates; };
  return options_.exchange.exact() || just_begun(0) || just_begun(warmup) ||
         (step_ + 1) % options_.exchange.statistics_every == 0;
}

// A step by sparse messages.
void Stage::step_sparse(bool weights, bool learn) {
  run_workers(weights, learn);
  Clock::time_point clock = Clock::now();
  mpi::Bundle merged = exchange_->gather();
  const mpi::Bundle answer = exchange_->spread(comm_.is_root() ? answer_to(std::move(merged)) : mpi::Bundle{});
  lap(clock, result_.times.reduce);
  update_from_answer(answer, learn);
  lap(clock, result_.times.update);
  result_.exchange = exchange_->take_counts();
}

void Stage::run_workers(bool weights, bool learn) {
  const std::size_t begin = local_begin_;
  const std::size_t images = local_images_;
  exchange_->begin(step_, with_statistics_);
  for (std::size_t w = exchange_->first_worker(); w < exchange_->first_worker() + exchange_->local_workers(); ++w) {
    local_begin_ = workers_.first_place(w);
    local_images_ = workers_.places(w);
    loaded_ = ~std::size_t{0};
    compute(weights);
    Clock::time_point clock = Clock::now();
    exchange_->begin_worker(w);
    send_worker(weights, learn);
    exchange_->end_worker();
    lap(clock, result_.times.reduce);
  }
  local_begin_ = begin;
  local_images_ = images;
}

void Stage::send_worker(bool weights, bool learn) {
  for (std::size_t t = 0; t < states_.size(); ++t) {
    LayerSums& sums = states_[t].sums;
    if (weights) {
      if (!options_.exchange.exact()) {
        const std::size_t bits = layers_[states_[t].index].patch_bits();
        const auto channels = static_cast<std::ptrdiff_t>(layers_[states_[t].index].channels());
#pragma omp parallel for schedule(static)
        for (std::ptrdiff_t o = 0; o < channels; ++o) {
          std::int32_t* row = sums.weight.data() + static_cast<std::size_t>(o) * bits;
          trainers_[t]->centre(row, sums.value()[static_cast<std::size_t>(o)], fraction_bits_[t], row);
        }
      }
      exchange_->add(weights_of(t), std::span<const std::int32_t>(sums.weight));
    }
    if (learn) exchange_->add(values_of(t), std::span<const std::int64_t>(sums.value()));
    if (!with_statistics_) continue;
    kept_statistics_ = sums.statistics;
    std::fill_n(kept_statistics_.begin() + (sums.value().data() - sums.statistics.data()), sums.channels, 0);
    exchange_->add_statistics(t, kept_statistics_);
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    HeadState& head = heads_[h];
    const std::size_t first = 2 * states_.size() + h * head_parts;
    if (head.head->observations() + (with_statistics_ ? 1 : 0) > Head::unsettled_observations) {
      const auto parts = parts_of(head.sums);
      for (std::size_t k = 0; k < head_parts; ++k) exchange_->add(first + k, std::span<const std::int64_t>(*parts[k]));
    }
    if (!with_statistics_) continue;
    exchange_->add_statistics(states_.size() + 2 * h, head.sums.count);
    exchange_->add_statistics(states_.size() + 2 * h + 1, head.sums.count_squared);
  }
  exchange_->add_totals(totals_);
}

// At rank 0: what all ranks are to do about what the workers sent.
mpi::Bundle Stage::answer_to(mpi::Bundle merged) {
  mpi::Bundle answer;
  answer.workers = merged.workers;
  const auto totals = exchange_->totals(merged);
  answer.totals.assign(totals.begin(), totals.end());
  answer.vectors.resize(merged.vectors.size());
  for (std::size_t t = 0; t < states_.size(); ++t) {
    LayerSums& sums = states_[t].sums;
    mpi::SparseVector& statistics = merged.vectors[exchange_->statistic(t)];
    fill(std::span(sums.statistics), statistics);
    if (with_statistics_) trainers_[t]->observe(sums, batch_, step_ + 1 - observed_);
    if (const mpi::SparseVector& gradient = merged.vectors[weights_of(t)]; gradient.size != 0) {
      fill(std::span(sums.weight), gradient);
      fill(sums.value(), merged.vectors[values_of(t)]);
      std::optional<double> rms;
      if (!options_.exchange.exact()) rms = exchange_->rms_of_sum(weights_of(t));
      trainers_[t]->choose(sums, rate(), step_, rms);
      answer.vectors[weights_of(t)] = trainers_[t]->changes();
    }
    answer.vectors[values_of(t)] = exchange_->limit(values_of(t), merged.vectors[values_of(t)]);
    answer.vectors[exchange_->statistic(t)] = std::move(statistics);
  }
  for (std::size_t v = 2 * states_.size(); v < exchange_->statistic(0); ++v) {
    answer.vectors[v] = exchange_->limit(v, merged.vectors[v]);
  }
  for (std::size_t v = exchange_->statistic(states_.size()); v < merged.vectors.size(); ++v) {
    answer.vectors[v] = std::move(merged.vectors[v]);
  }
  return answer;
}

void Stage::update_from_answer(const mpi::Bundle& answer, bool learn) {
  const std::size_t steps = step_ + 1 - observed_;
  for (std::size_t t = 0; t < states_.size(); ++t) {
    LayerTrainer& trainer = *trainers_[t];
    LayerSums& sums = states_[t].sums;
    fill(std::span(sums.statistics), answer.vectors[exchange_->statistic(t)]);
    if (with_statistics_ && !comm_.is_root()) trainer.observe(sums, batch_, steps);
    std::size_t flips = 0;
    if (answer.vectors[weights_of(t)].size != 0) {
      if (!comm_.is_root()) trainer.take_changes(answer.vectors[weights_of(t)]);
      flips = trainer.apply();
    }
    result_.flips.push_back(flips);
    if (learn) {
      fill(sums.value(), answer.vectors[values_of(t)]);
      trainer.adapt(sums.value(), rate());
    }
    if (with_statistics_) trainer.fit_unit(sums);
    trainer.place_thresholds();
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    HeadState& head = heads_[h];
    const float scale = head.head->feature_scale();
    if (with_statistics_) {
      fill(std::span(head.sums.count), answer.vectors[exchange_->statistic(states_.size() + 2 * h)]);
      fill(std::span(head.sums.count_squared), answer.vectors[exchange_->statistic(states_.size() + 2 * h + 1)]);
      head.head->observe(head.sums, batch_, steps);
    }
    const std::size_t first = 2 * states_.size() + h * head_parts;
    if (answer.vectors[first].size == 0) continue;
    const auto parts = parts_of(head.sums);
    for (std::size_t k = 0; k < head_parts; ++k) fill(std::span(*parts[k]), answer.vectors[first + k]);
    head.head->learn(head.sums, batch_, head_rate(), options_.head_decay, scale);
  }
  if (with_statistics_) observed_ = step_ + 1;
  const auto totals = exchange_->totals(answer);
  totals_.assign(totals.begin(), totals.end());
  report_sums();
}

}  // namespace bitloom::layerwise
