// A stage's step with sparse messages: each logical worker computes on its own images, what it sends is merged on the way to
// rank 0, and its reply (stage_server.h), which is little too, updates all ranks alike; with staleness, some steps later.
#include <algorithm>
#include <bit>
#include <deque>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/field.h"
#include "layerwise/gradient.h"
#include "layerwise/stage_exchange.h"
#include "layerwise/stage_server.h"
#include "layerwise/update_layout.h"
#include "layerwise/update_schedule.h"

namespace bitloom::layerwise {
namespace {

constexpr unsigned most_fraction_bits = 6;
constexpr const char* exchange_prefix = "stage.exchange";  // of its tensors in checkpoints

class SparseMessages : public StageExchange {
 public:
  explicit SparseMessages(const StageParts& parts);

  void step(StageStep& step) override;
  void take_first_statistics(std::size_t t) override;

  void settle(std::size_t done) override;
  void leave(std::size_t done) override;

  void begin_save(TensorFile& file) override;
  bool is_saved() const override { return messages_->is_saved(); }
  void wait_for_save() override { messages_->wait_for_save(); }
  void end_save(TensorFile& file) override { messages_->end_save(file, exchange_prefix); }
  void cancel_save() override { messages_->cancel_save(); }
  void load(const TensorFile& file, std::size_t done) override;

  std::size_t statistics_every() const override { return schedule_->statistics_every(); }
  bool statistics_due(std::size_t step) const override { return schedule_->statistics_due(step); }
  std::size_t steps_observed(std::size_t step) const override { return schedule_->steps_observed(step); }
  mpi::SparseExchange* messages() const override { return messages_.get(); }
  std::map<std::string, double> bytes_by_part(const mpi::ExchangeCounts& counts) const override;

 private:
  void describe_layer(std::size_t t, std::vector<mpi::FeedbackVector>& feedback, std::vector<std::uint64_t>& statistics);
  void describe_head(LearningHead& head, std::vector<mpi::FeedbackVector>& feedback, std::vector<std::uint64_t>& statistics);
  void run_workers(StageStep& step);
  void send_layer(std::size_t step, std::size_t t);
  void send_head(std::size_t step, std::size_t h);
  void update_from_reply(std::size_t step, StepResult& result);
  void update_layer(std::size_t step, std::size_t t, const mpi::Bundle& reply, float unit, StepResult& result);
  void update_head(std::size_t step, std::size_t h, const mpi::Bundle& reply, float scale);

  const StageSetup& setup_;
  const Workers& workers_;
  StageLearners& learners_;
  StagePasses& passes_;
  const UpdateLayout layout_;
  std::optional<UpdateSchedule> schedule_;
  std::vector<unsigned> fraction_bits_;  // per trained layer, of the gradients that are sent
  std::unique_ptr<mpi::SparseExchange> messages_;
  std::unique_ptr<StageServer> server_;        // at rank 0
  std::vector<std::int64_t> kept_statistics_;  // scratch
  std::size_t replied_ = 0;                    // steps whose server replies have arrived
  std::size_t resumed_at_ = 0;                 // step of a checkpoint: requests of steps before it are done
  // By step since then: the scales of the heads' features, then the units of the layers' gradients.
  std::deque<std::vector<float>> scales_;
};

SparseMessages::SparseMessages(const StageParts& parts)
    : setup_(parts.setup),
      workers_(parts.workers),
      learners_(parts.learners),
      passes_(parts.passes),
      layout_(learners_.layers.size(), learners_.heads.size()) {
  std::vector<mpi::FeedbackVector> feedback;
  std::vector<std::uint64_t> statistics;
  for (std::size_t t = 0; t < learners_.layers.size(); ++t) describe_layer(t, feedback, statistics);
  for (LearningHead& head : learners_.heads) describe_head(head, feedback, statistics);
  statistics.push_back(1);
  std::uint64_t elements = 0;
  for (const mpi::FeedbackVector& vector : feedback) elements += vector.size;
  const std::uint64_t all_statistics = std::accumulate(statistics.begin(), statistics.end(), std::uint64_t{0});
  const auto [first, last] = workers_.on_rank(setup_.rank(), setup_.ranks());
  messages_ =
      std::make_unique<mpi::SparseExchange>(setup_.comm, setup_.options.exchange, workers_.count(), first, last - first,
                                            std::move(feedback), std::move(statistics), setup_.options.error_feedback_place);
  schedule_.emplace(setup_, statistics_interval(setup_.options.exchange, messages_->budget(elements), all_statistics));
  if (setup_.comm.is_root()) server_ = std::make_unique<StageServer>(setup_, *schedule_, learners_);
}

void SparseMessages::describe_layer(std::size_t t, std::vector<mpi::FeedbackVector>& feedback,
                                    std::vector<std::uint64_t>& statistics) {
  const LayerSums& sums = learners_.layers[t].sums;
  if (sends_all_exact(setup_.options)) {
    feedback.push_back({sums.exact.size(), false, 1});
  } else {
    feedback.push_back({sums.weight.size(), true, 1});
  }
  feedback.push_back({sums.channels, false, setup_.options.bias_threshold_scale});
  statistics.push_back(sums.statistics.size());
  // Sums of a worker take a quarter of 32 bits at most.
  const MapShape& map = learners_.trainers[t]->layer().geometry().output;
  const auto width = static_cast<unsigned>(std::bit_width(workers_.most_places() * map.height * map.width * largest_quantised));
  fraction_bits_.push_back(std::min(most_fraction_bits, width < 29 ? 29 - width : 0));
}

void SparseMessages::describe_head(LearningHead& head, std::vector<mpi::FeedbackVector>& feedback,
                                   std::vector<std::uint64_t>& statistics) {
  for (const std::vector<std::int64_t>* part : parts_of(head.sums)) {
    const bool bias = part == &head.sums.linear_bias || part == &head.sums.hidden_bias;
    const TrainOptions& options = setup_.options;
    feedback.push_back({part->size(), false, bias ? options.bias_threshold_scale : options.head_threshold_scale});
  }
  statistics.push_back(head.sums.count.size());
  statistics.push_back(head.sums.count_squared.size());
}

void SparseMessages::take_first_statistics(std::size_t t) {
  if (server_ != nullptr) server_->take_first_statistics(t);
}

void SparseMessages::step(StageStep& step) {
  const std::size_t n = step.number;
  if (step.request.stop) messages_->ask_to_stop();
  if (messages_->is_late(n)) {
    messages_->pass(n);
  } else {
    run_workers(step);
    Clock::time_point clock = Clock::now();
    if (std::optional<mpi::Bundle> merged = messages_->gather()) {
      messages_->spread(server_->reply_to(*std::move(merged), *messages_, n));
    }
    lap(clock, step.result.times.reduce);
  }
  std::vector<float>& scales = scales_.emplace_back();
  for (const LearningHead& head : learners_.heads) scales.push_back(head.head->feature_scale());
  for (const auto& trainer : learners_.trainers) scales.push_back(trainer->unit());
  const bool last = n + 1 == setup_.total_steps();
  while (replied_ <= n && (last || replied_ + setup_.options.exchange.staleness <= n)) {
    update_from_reply(replied_++, step.result);
  }
  if (last) {
    Clock::time_point clock = Clock::now();
    messages_->close();
    lap(clock, step.result.times.reduce);
  }
  step.result.exchange = messages_->take_counts();
}

void SparseMessages::run_workers(StageStep& step) {
  const std::size_t n = step.number;
  const bool weights = setup_.learns_weights(n);
  const Clock::time_point start = Clock::now();
  const std::size_t first = messages_->first_worker();
  const std::size_t count = messages_->local_workers();
  messages_->begin(n, schedule_->statistics_due(n), schedule_->message_length(n));
  for (std::size_t w = first; w < first + count; ++w) {
    passes_.compute(step, {workers_.first_place(w), workers_.places(w)}, weights, [this] { messages_->poll(); });
    Clock::time_point clock = Clock::now();
    messages_->begin_worker(w);
    for (std::size_t t = 0; t < learners_.layers.size(); ++t) send_layer(n, t);
    for (std::size_t h = 0; h < learners_.heads.size(); ++h) send_head(n, h);
    messages_->add_statistics(layout_.images(), std::span(&learners_.totals.back(), 1));
    messages_->add_totals(learners_.totals);
    messages_->end_worker();
    lap(clock, step.result.times.reduce);
    step.keep_pace(start, static_cast<double>(w + 1 - first) / static_cast<double>(count));
  }
}

void SparseMessages::send_layer(std::size_t step, std::size_t t) {
  LayerSums& sums = learners_.layers[t].sums;
  const LayerTrainer& trainer = *learners_.trainers[t];
  if (setup_.learns_weights(step) && sends_all_exact(setup_.options)) {
    messages_->add(layout_.weights(t), std::span<const std::int64_t>(sums.exact));
  } else if (setup_.learns_weights(step)) {
    if (setup_.options.layer.exact) {
      trainer.exact_slopes(sums.exact, sums.weight);
    } else if (!setup_.options.exchange.exact()) {
      const std::size_t bits = trainer.layer().patch_bits();
      const auto channels = static_cast<std::ptrdiff_t>(trainer.layer().channels());
#pragma omp parallel for schedule(static)
      for (std::ptrdiff_t o = 0; o < channels; ++o) {
        std::int32_t* row = sums.weight.data() + static_cast<std::size_t>(o) * bits;
        trainer.centre(row, sums.value()[static_cast<std::size_t>(o)], fraction_bits_[t], row);
      }
    }
    messages_->add(layout_.weights(t), std::span<const std::int32_t>(sums.weight));
  }
  if (setup_.learns(step)) messages_->add(layout_.values(t), std::span<const std::int64_t>(sums.value()));
  kept_statistics_ = sums.statistics;
  std::fill_n(kept_statistics_.begin() + (sums.value().data() - sums.statistics.data()), sums.channels, 0);
  messages_->add_statistics(layout_.of_layer(t), kept_statistics_);
}

void SparseMessages::send_head(std::size_t step, std::size_t h) {
  LearningHead& head = learners_.heads[h];
  if (head.head->observations() + (schedule_->statistics_due(step) ? 1 : 0) > Head::unsettled_observations) {
    const auto parts = parts_of(head.sums);
    for (std::size_t k = 0; k < parts.size(); ++k) {
      messages_->add(layout_.head(h, k), std::span<const std::int64_t>(*parts[k]));
    }
  }
  messages_->add_statistics(layout_.counts(h), head.sums.count);
  messages_->add_statistics(layout_.counts_squared(h), head.sums.count_squared);
}

void SparseMessages::update_from_reply(std::size_t step, StepResult& result) {
  Clock::time_point clock = Clock::now();
  const mpi::Bundle reply = messages_->next_reply(step);
  lap(clock, result.times.reduce);
  const std::vector<float> scales = std::move(scales_.front());
  scales_.pop_front();
  const std::size_t heads = learners_.heads.size();
  const auto totals = messages_->totals(reply, 2 * heads + 3);
  learners_.totals.assign(totals.begin(), totals.end());
  // A reply that waited in a checkpoint would end the run that goes on from it again.
  if (step < resumed_at_) std::fill_n(learners_.totals.begin() + static_cast<std::ptrdiff_t>(2 * heads), 2, 0);
  for (std::size_t t = 0; t < learners_.layers.size(); ++t) update_layer(step, t, reply, scales[heads + t], result);
  for (std::size_t h = 0; h < heads; ++h) update_head(step, h, reply, scales[h]);
  learners_.report(schedule_->statistics_due(step) ? layout_.images_observed(reply) : 0, result);
  lap(clock, result.times.update);
}

void SparseMessages::update_layer(std::size_t step, std::size_t t, const mpi::Bundle& reply, float unit, StepResult& result) {
  const std::size_t observed = layout_.images_observed(reply);
  const bool statistics = schedule_->statistics_due(step) && observed > 0;
  const bool chose = server_ != nullptr && !server_->is_ahead();  // and has observed and noted changes
  LayerTrainer& trainer = *learners_.trainers[t];
  LayerSums& sums = learners_.layers[t].sums;
  fill_from(std::span(sums.statistics), reply.vectors[layout_.place(layout_.of_layer(t))]);
  if (statistics && !chose) trainer.observe(sums, observed, schedule_->steps_observed(step), setup_.rate(step));
  if (const mpi::SparseVector& changes = reply.vectors[layout_.weights(t)]; changes.size != 0) {
    if (!chose) trainer.take_changes(changes);
    result.flips[t] += trainer.apply(schedule_->steps_unseen(step));
  }
  if (setup_.learns(step)) {
    fill_from(sums.value(), reply.vectors[layout_.values(t)]);
    trainer.adapt(sums.value(), setup_.rate(step));
  }
  // With staleness the first of the steps that are summed up may have been measured in the unit before.
  if (statistics) trainer.fit_unit(sums, unit);
  trainer.place_thresholds();
}

void SparseMessages::update_head(std::size_t step, std::size_t h, const mpi::Bundle& reply, float scale) {
  LearningHead& head = learners_.heads[h];
  const std::size_t observed = layout_.images_observed(reply);
  if (schedule_->statistics_due(step) && observed > 0) {
    fill_from(std::span(head.sums.count), reply.vectors[layout_.place(layout_.counts(h))]);
    fill_from(std::span(head.sums.count_squared), reply.vectors[layout_.place(layout_.counts_squared(h))]);
    head.head->observe(head.sums, observed, schedule_->steps_observed(step));
  }
  if (reply.vectors[layout_.head(h, 0)].size == 0) return;
  const auto parts = parts_of(head.sums);
  for (std::size_t k = 0; k < parts.size(); ++k) fill_from(std::span(*parts[k]), reply.vectors[layout_.head(h, k)]);
  head.head->learn(head.sums, learners_.images(), setup_.head_rate(step), setup_.options.head_decay, scale);
}

void SparseMessages::settle(std::size_t done) {
  if (done > replied_) messages_->settle(done - 1);
}

void SparseMessages::leave(std::size_t done) {
  settle(done);
  messages_->close();
}

std::map<std::string, double> SparseMessages::bytes_by_part(const mpi::ExchangeCounts& counts) const {
  std::map<std::string, double> bytes;
  for (std::size_t v = 0; v < counts.vector_bytes.size(); ++v) {
    bytes[layout_.part(v)] +=
        static_cast<double>(counts.vector_bytes[v]) / static_cast<double>(std::max<std::uint64_t>(counts.worker_updates, 1));
  }
  return bytes;
}

void SparseMessages::begin_save(TensorFile& file) {
  messages_->begin_save(file, exchange_prefix);
  std::vector<float> scales;
  for (const std::vector<float>& step : scales_) scales.insert(scales.end(), step.begin(), step.end());
  file.put("stage.scales", {scales_.size(), learners_.heads.size() + learners_.layers.size()}, scales);
  if (server_ != nullptr) server_->save(file);
}

void SparseMessages::load(const TensorFile& file, std::size_t done) {
  messages_->load(file, exchange_prefix);
  const std::size_t waiting = messages_->replies_waiting();
  const std::size_t each = learners_.heads.size() + learners_.layers.size();
  if (waiting > done) fail(ErrorKind::data, "checkpoint: {} server replies after {} steps", waiting, done);
  replied_ = done - waiting;
  resumed_at_ = done;
  const auto scales = file.get("stage.scales", DType::f32, {waiting, each}).as<float>();
  scales_.clear();
  for (std::size_t i = 0; i < waiting; ++i) {
    const auto step = scales.subspan(i * each, each);
    scales_.emplace_back(step.begin(), step.end());
  }
  if (server_ != nullptr) server_->load(file);
}

bool sparse_chosen(const TrainOptions& options) { return options.sparse; }

void check_sparse(const TrainOptions& options, std::size_t ranks) {
  mpi::check(options.exchange);
  if (options.workers < ranks) {
    fail_field(ErrorKind::usage, "workers", "{} logical workers on {} ranks; expected at least one each", options.workers,
               ranks);
  }
  if (options.repeat != 1)
    fail_field(ErrorKind::usage, "repeat", "{} needs dense sums; expected 1 with `exchange` sparse", options.repeat);
}

StageLimits sparse_limits(const TrainOptions& options, std::size_t batch, std::size_t) {
  const std::size_t each = (batch + options.workers - 1) / options.workers;
  return {each, each, " per worker"};
}

StageShare sparse_share(const StageSetup& setup, const Workers& workers) {
  const auto [first, last] = workers.on_rank(setup.rank(), setup.ranks());
  const std::size_t begin = workers.first_place(first);
  return {{begin, workers.first_place(last) - begin}, workers.most_places(), {first, last}};
}

std::unique_ptr<StageExchange> make_sparse(const StageParts& parts) { return std::make_unique<SparseMessages>(parts); }

}  // namespace

const StageExchangeKind sparse_messages = {"sparse", sparse_chosen, check_sparse, sparse_limits, sparse_share, make_sparse};

}  // namespace bitloom::layerwise
