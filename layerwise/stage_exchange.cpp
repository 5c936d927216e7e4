// A stage's step with sparse messages: each logical worker computes on its own images, what it sends is merged on the way to
// rank 0, and its reply, which is little too, updates all ranks alike. Rank 0 alone moves accumulators and chooses flips.
// With staleness the reply to a step updates them some steps later; then rank 0 keeps what it chooses by, which is as new as
// can be, beside what it computes with, which is as old as elsewhere.
#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "layerwise/stage.h"
#include "optim/schedule.h"

namespace bitloom::layerwise {
namespace {

constexpr unsigned most_fraction_bits = 6;
constexpr std::size_t first_updates = 4;  // with statistics, when heads and when weights begin to learn

// In the order of UpdateLayout::head().
std::array<std::vector<std::int64_t>*, UpdateLayout::head_parts> parts_of(Head::Sums& sums) {
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

std::uint64_t bytes_kept_by_worker(const simd::Kernels& kernels, const StageSpec& spec, const Encoder& encoder,
                                   std::vector<BinaryLayer> layers, const data::Dataset& train, TrainOptions options) {
  if (options.exchange.exact() || options.exchange.error_feedback == mpi::ErrorFeedback::none) return 0;
  options.workers = options.batch = 1;
  mpi::Comm alone;
  const Stage stage(kernels, alone, spec, encoder, layers, train, options, 0, {});
  return stage.exchange()->error_feedback_bytes();
}

void Stage::make_exchange() {
  layout_ = UpdateLayout(states_.size(), heads_.size());
  std::vector<mpi::FeedbackVector> feedback;
  std::vector<std::uint64_t> statistics;
  for (const LayerState& state : states_) {
    const BinaryLayer& layer = layers_[state.index];
    feedback.push_back({state.sums.weight.size(), true, 1});
    feedback.push_back({state.sums.channels, false, options_.bias_threshold_scale});
    statistics.push_back(state.sums.statistics.size());
    // Sums of a worker take a quarter of 32 bits at most.
    const MapShape& map = layer.geometry().output;
    const std::size_t images = (batch_ + workers_.count() - 1) / workers_.count();
    const auto width = static_cast<unsigned>(std::bit_width(images * map.height * map.width * largest_code));
    fraction_bits_.push_back(std::min(most_fraction_bits, width < 29 ? 29 - width : 0));
  }
  for (HeadState& head : heads_) {
    for (const std::vector<std::int64_t>* part : parts_of(head.sums)) {
      const bool bias = part == &head.sums.linear_bias || part == &head.sums.hidden_bias;
      feedback.push_back({part->size(), false, bias ? options_.bias_threshold_scale : options_.head_threshold_scale});
    }
    statistics.push_back(head.sums.count.size());
    statistics.push_back(head.sums.count_squared.size());
  }
  statistics.push_back(1);
  const auto [first, last] = workers_.on_rank(static_cast<std::size_t>(comm_.rank()), static_cast<std::size_t>(comm_.size()));
  exchange_ = std::make_unique<mpi::SparseExchange>(comm_, options_.exchange, workers_.count(), first, last - first,
                                                    std::move(feedback), std::move(statistics), options_.error_feedback_place);
  if (options_.exchange.staleness == 0 || !comm_.is_root()) return;
  server_ = std::make_unique<Server>();
  server_->layers.reserve(states_.size());  // their addresses stay
  for (std::size_t t = 0; t < states_.size(); ++t) {
    const BinaryLayer& layer = layers_[states_[t].index];
    TensorFile weights;
    layer.save(weights);
    BinaryLayer& copy = server_->layers.emplace_back(layer.spec(), layer.geometry());
    copy.load(weights);
    server_->trainers.push_back(std::make_unique<LayerTrainer>(copy, options_.layer, options_.seed, id_ * 1000 + t, true));
  }
}

LayerTrainer& Stage::chooser(std::size_t t) { return server_ != nullptr ? *server_->trainers[t] : *trainers_[t]; }

bool Stage::statistics_due(std::size_t step) const {
  // Heads have gradients once they have seen statistics, and weights once heads have learned from replies to theirs: with
  // staleness all of that comes late.
  const std::size_t first = first_updates + 4 * options_.exchange.staleness;
  const bool just_begun = step < first || (learns(step) && !learns(step - first));
  return options_.exchange.exact() || just_begun || (step + 1) % options_.exchange.statistics_every == 0;
}

std::size_t Stage::steps_observed(std::size_t step) const {
  std::size_t steps = 1;
  while (steps <= step && !statistics_due(step - steps)) ++steps;
  return steps;
}

// Number of steps, of those whose statistics are sent together, that are computed before a step's change is there. With a
// staleness of 2 or more some after the next statistics miss it too; these draw the means back, by a few percent of the change.
std::size_t Stage::steps_unseen(std::size_t step) const {
  if (!options_.exchange.keeps()) return 0;
  const std::size_t before = statistics_due(step) ? 0 : steps_observed(step);
  std::size_t after = 1;
  while (!statistics_due(step + after)) ++after;
  return std::min(before + options_.exchange.staleness, before + after);
}

// Messages are as long as learning is fast: most weights flip at the start of a stage.
double Stage::message_length() const {
  const double last = options_.exchange.last_messages;
  return last + 2 * (1 - last) * cosine_decay(progress(step_), 0);
}

// A step by sparse messages.
void Stage::step_sparse() {
  if (exchange_->is_late(step_)) {
    exchange_->pass(step_);
  } else {
    run_workers();
    Clock::time_point clock = Clock::now();
    if (std::optional<mpi::Bundle> merged = exchange_->gather()) exchange_->spread(reply_to(*std::move(merged)));
    lap(clock, result_.times.reduce);
  }
  std::vector<float>& scales = scales_.emplace_back();
  for (const HeadState& head : heads_) scales.push_back(head.head->feature_scale());
  for (const auto& trainer : trainers_) scales.push_back(trainer->unit());
  const bool last = step_ + 1 == total_steps();
  while (replied_ <= step_ && (last || replied_ + options_.exchange.staleness <= step_)) update_from_reply(replied_++);
  if (last) {
    Clock::time_point clock = Clock::now();
    exchange_->close();
    lap(clock, result_.times.reduce);
  }
  result_.exchange = exchange_->take_counts();
}

void Stage::run_workers() {
  const bool weights = learns_weights(step_);
  const Clock::time_point start = Clock::now();
  const std::size_t first = exchange_->first_worker();
  const std::size_t count = exchange_->local_workers();
  exchange_->begin(step_, statistics_due(step_), message_length());
  for (std::size_t w = first; w < first + count; ++w) {
    loaded_ = ~std::size_t{0};
    compute({workers_.first_place(w), workers_.places(w)}, weights);
    Clock::time_point clock = Clock::now();
    exchange_->begin_worker(w);
    send_worker();
    exchange_->end_worker();
    lap(clock, result_.times.reduce);
    keep_pace(start, static_cast<double>(w + 1 - first) / static_cast<double>(count));
  }
}

void Stage::send_worker() {
  const bool weights = learns_weights(step_);
  const bool statistics = statistics_due(step_);
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
      exchange_->add(layout_.weights(t), std::span<const std::int32_t>(sums.weight));
    }
    if (learns(step_)) exchange_->add(layout_.values(t), std::span<const std::int64_t>(sums.value()));
    kept_statistics_ = sums.statistics;
    std::fill_n(kept_statistics_.begin() + (sums.value().data() - sums.statistics.data()), sums.channels, 0);
    exchange_->add_statistics(layout_.of_layer(t), kept_statistics_);
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    HeadState& head = heads_[h];
    if (head.head->observations() + (statistics ? 1 : 0) > Head::unsettled_observations) {
      const auto parts = parts_of(head.sums);
      for (std::size_t k = 0; k < parts.size(); ++k) {
        exchange_->add(layout_.head(h, k), std::span<const std::int64_t>(*parts[k]));
      }
    }
    exchange_->add_statistics(layout_.counts(h), head.sums.count);
    exchange_->add_statistics(layout_.counts_squared(h), head.sums.count_squared);
  }
  exchange_->add_statistics(layout_.images(), std::span(&totals_.back(), 1));
  exchange_->add_totals(totals_);
}

// How many images a bundle's statistics are of.
std::size_t Stage::images_observed(const mpi::Bundle& bundle) const {
  std::int64_t images = 0;
  fill(std::span(&images, 1), bundle.vectors[layout_.place(layout_.images())]);
  return static_cast<std::size_t>(std::max<std::int64_t>(images, 0));
}

// At rank 0: what all ranks are to do about what the workers sent in this step.
mpi::Bundle Stage::reply_to(mpi::Bundle merged) {
  mpi::Bundle reply;
  reply.workers = merged.workers;
  const auto totals = exchange_->totals(merged, totals_.size());
  reply.totals.assign(totals.begin(), totals.end());
  reply.vectors.resize(merged.vectors.size());
  const std::size_t images = images_observed(merged);
  for (std::size_t t = 0; t < states_.size(); ++t) {
    LayerTrainer& trainer = chooser(t);
    LayerSums& sums = states_[t].sums;
    const std::size_t weights = layout_.weights(t), values = layout_.values(t), place = layout_.place(layout_.of_layer(t));
    mpi::SparseVector& statistics = merged.vectors[place];
    fill(std::span(sums.statistics), statistics);
    if (statistics_due(step_) && images > 0) trainer.observe(sums, images, steps_observed(step_));
    if (const mpi::SparseVector& gradient = merged.vectors[weights]; gradient.size != 0) {
      fill(std::span(sums.weight), gradient);
      fill(sums.value(), merged.vectors[values]);
      std::optional<double> rms;
      if (!options_.exchange.exact()) rms = exchange_->rms_of_sum(weights, merged.workers);
      trainer.choose(sums, rate(step_), step_, rms);
      reply.vectors[weights] = trainer.changes();
      if (server_ != nullptr) trainer.apply(steps_unseen(step_));
    }
    if (server_ != nullptr) trainer.place_thresholds();
    reply.vectors[values] = exchange_->limit(values, merged.vectors[values]);
    reply.vectors[place] = std::move(statistics);
  }
  const auto keep = [&](std::size_t statistic) {
    const std::size_t place = layout_.place(statistic);
    reply.vectors[place] = std::move(merged.vectors[place]);
  };
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    for (std::size_t k = 0; k < UpdateLayout::head_parts; ++k) {
      const std::size_t part = layout_.head(h, k);
      reply.vectors[part] = exchange_->limit(part, merged.vectors[part]);
    }
    keep(layout_.counts(h));
    keep(layout_.counts_squared(h));
  }
  keep(layout_.images());
  return reply;
}

void Stage::update_from_reply(std::size_t step) {
  Clock::time_point clock = Clock::now();
  const mpi::Bundle reply = exchange_->next_reply(step);
  lap(clock, result_.times.reduce);
  const std::vector<float> scales = std::move(scales_.front());
  scales_.pop_front();
  const std::size_t observed = images_observed(reply);
  const bool statistics = statistics_due(step) && observed > 0;
  const bool chooses = comm_.is_root() && server_ == nullptr;  // and has observed and noted changes
  const auto totals = exchange_->totals(reply, 2 * heads_.size() + 3);
  totals_.assign(totals.begin(), totals.end());
  // A reply that waited in a checkpoint would end the run that goes on from it again.
  if (step < resumed_at_) std::fill_n(totals_.begin() + static_cast<std::ptrdiff_t>(2 * heads_.size()), 2, 0);
  const std::size_t images = images_in_totals();
  for (std::size_t t = 0; t < states_.size(); ++t) {
    LayerTrainer& trainer = *trainers_[t];
    LayerSums& sums = states_[t].sums;
    fill(std::span(sums.statistics), reply.vectors[layout_.place(layout_.of_layer(t))]);
    if (statistics && !chooses) trainer.observe(sums, observed, steps_observed(step));
    if (const mpi::SparseVector& changes = reply.vectors[layout_.weights(t)]; changes.size != 0) {
      if (!chooses) trainer.take_changes(changes);
      result_.flips[t] += trainer.apply(steps_unseen(step));
    }
    if (learns(step)) {
      fill(sums.value(), reply.vectors[layout_.values(t)]);
      trainer.adapt(sums.value(), rate(step));
    }
    // With staleness the first of the steps that are summed up may have been measured in the unit before.
    if (statistics) trainer.fit_unit(sums, scales[heads_.size() + t]);
    trainer.place_thresholds();
  }
  for (std::size_t h = 0; h < heads_.size(); ++h) {
    HeadState& head = heads_[h];
    if (statistics) {
      fill(std::span(head.sums.count), reply.vectors[layout_.place(layout_.counts(h))]);
      fill(std::span(head.sums.count_squared), reply.vectors[layout_.place(layout_.counts_squared(h))]);
      head.head->observe(head.sums, observed, steps_observed(step));
    }
    if (reply.vectors[layout_.head(h, 0)].size == 0) continue;
    const auto parts = parts_of(head.sums);
    for (std::size_t k = 0; k < parts.size(); ++k) fill(std::span(*parts[k]), reply.vectors[layout_.head(h, k)]);
    head.head->learn(head.sums, images, head_rate(step), options_.head_decay, scales[h]);
  }
  report_sums(statistics ? observed : 0);
  lap(clock, result_.times.update);
}

void Stage::settle() {
  if (exchange_ != nullptr && step_ > replied_) exchange_->settle(step_ - 1);
}

void Stage::leave() {
  if (exchange_ == nullptr) return;
  settle();
  exchange_->close();
}

std::map<std::string, double> Stage::bytes_by_part(const mpi::ExchangeCounts& counts) const {
  std::map<std::string, double> bytes;
  for (std::size_t v = 0; v < counts.vector_bytes.size(); ++v) {
    bytes[layout_.part(v)] +=
        static_cast<double>(counts.vector_bytes[v]) / static_cast<double>(std::max<std::uint64_t>(counts.worker_updates, 1));
  }
  return bytes;
}

void Stage::save_server(TensorFile& file) const {
  std::vector<float> scales;
  for (const std::vector<float>& step : scales_) scales.insert(scales.end(), step.begin(), step.end());
  file.put("stage.scales", {scales_.size(), heads_.size() + states_.size()}, scales);
  if (server_ == nullptr) return;
  TensorFile server;
  for (const auto& trainer : server_->trainers) {
    trainer->layer().save(server);
    trainer->save(server);
  }
  for (auto& [name, tensor] : server.tensors) file.tensors.insert_or_assign("server." + name, std::move(tensor));
}

void Stage::load_exchange(const TensorFile& file) {
  exchange_->load(file, exchange_name);
  const std::size_t waiting = exchange_->replies_waiting();
  const std::size_t each = heads_.size() + states_.size();
  if (waiting > step_) fail(ErrorKind::data, "checkpoint: {} server replies after {} steps", waiting, step_);
  replied_ = step_ - waiting;
  const auto scales = file.get("stage.scales", DType::f32, {waiting, each}).as<float>();
  scales_.clear();
  for (std::size_t i = 0; i < waiting; ++i) {
    const auto step = scales.subspan(i * each, each);
    scales_.emplace_back(step.begin(), step.end());
  }
  if (server_ == nullptr) return;
  TensorFile server;
  const std::string prefix = "server.";
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with(prefix)) server.tensors.insert_or_assign(name.substr(prefix.size()), tensor);
  }
  for (const auto& trainer : server_->trainers) trainer->load(server);
}

}  // namespace bitloom::layerwise
