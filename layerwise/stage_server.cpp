#include "layerwise/stage_server.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/bits.h"
#include "layerwise/stage_exchange.h"

namespace bitloom::layerwise {
namespace {

constexpr const char* server_prefix = "server.";  // of its tensors in checkpoints

// Loss changes of flips (O, B) that were measured at the weights `then`, as those of `now`: where a weight has flipped in
// between, the flip that was measured is the way it has gone, and the way back changes the loss by as much in the other
// direction.
void turn_changes(const BinaryLayer& then, const BinaryLayer& now, std::span<std::int64_t> changes) {
  const std::size_t bits = now.patch_bits(), words = now.patch_words();
  const auto channels = static_cast<std::ptrdiff_t>(now.channels());
#pragma omp parallel for schedule(static)
  for (std::ptrdiff_t i = 0; i < channels; ++i) {
    const auto o = static_cast<std::size_t>(i);
    for (std::size_t w = 0; w < words; ++w) {
      std::uint64_t differing = then.rows()[o * words + w] ^ now.rows()[o * words + w];
      for (; differing != 0; differing &= differing - 1) {
        const std::size_t k = w * word_bits + static_cast<std::size_t>(std::countr_zero(differing));
        if (k < bits) changes[o * bits + k] = -changes[o * bits + k];
      }
    }
  }
}

}  // namespace

StageServer::StageServer(const StageSetup& setup, const UpdateSchedule& schedule, StageLearners& learners)
    : setup_(setup), schedule_(schedule), learners_(learners), layout_(learners.layers.size(), learners.heads.size()) {
  if (setup.options.exchange.staleness == 0) return;
  const std::size_t layers = learners.layers.size();
  ahead_layers_.reserve(layers);  // their addresses stay
  for (std::size_t t = 0; t < layers; ++t) {
    const BinaryLayer& layer = learners.trainers[t]->layer();
    TensorFile weights;
    layer.save(weights);
    BinaryLayer& copy = ahead_layers_.emplace_back(layer.spec(), layer.geometry());
    copy.load(weights);
    ahead_.push_back(std::make_unique<LayerTrainer>(copy, setup.options.layer, setup.options.seed, setup.id * 1000 + t, true));
  }
}

void StageServer::take_first_statistics(std::size_t t) {
  if (is_ahead()) ahead_[t]->set_statistics(learners_.layers[t].sums, setup_.batch);
}

mpi::Bundle StageServer::reply_to(mpi::Bundle merged, mpi::SparseExchange& exchange, std::size_t step) {
  mpi::Bundle reply;
  reply.workers = merged.workers;
  const auto totals = exchange.totals(merged, learners_.totals.size());
  reply.totals.assign(totals.begin(), totals.end());
  // Requests come when a clock or a user says so, from all workers of a rank. As numbers of workers they would make the reply
  // longer, and its length moves thresholds: the net would depend on when checkpoints were written.
  const std::span<std::int64_t> requests = std::span(reply.totals).subspan(2 * learners_.heads.size(), 2);
  for (std::int64_t& request : requests) request = std::min<std::int64_t>(request, 1);
  if (exchange.is_stop_asked()) requests[0] = 1;
  reply.vectors.resize(merged.vectors.size());
  for (std::size_t t = 0; t < learners_.layers.size(); ++t) choose(t, merged, exchange, step, reply);
  const auto keep = [&](std::size_t statistic) {
    const std::size_t place = layout_.place(statistic);
    reply.vectors[place] = std::move(merged.vectors[place]);
  };
  for (std::size_t h = 0; h < learners_.heads.size(); ++h) {
    for (std::size_t k = 0; k < UpdateLayout::head_parts; ++k) {
      const std::size_t part = layout_.head(h, k);
      reply.vectors[part] = exchange.limit(part, merged.vectors[part]);
    }
    keep(layout_.counts(h));
    keep(layout_.counts_squared(h));
  }
  keep(layout_.images());
  return reply;
}

// The reply to what came for trained layer t.
void StageServer::choose(std::size_t t, mpi::Bundle& merged, mpi::SparseExchange& exchange, std::size_t step,
                         mpi::Bundle& reply) {
  LayerTrainer& trainer = chooser(t);
  LayerSums& sums = learners_.layers[t].sums;
  const std::size_t images = layout_.images_observed(merged);
  const std::size_t weights = layout_.weights(t), values = layout_.values(t), place = layout_.place(layout_.of_layer(t));
  mpi::SparseVector& statistics = merged.vectors[place];
  fill_from(std::span(sums.statistics), statistics);
  if (schedule_.statistics_due(step) && images > 0) {
    trainer.observe(sums, images, schedule_.steps_observed(step), setup_.rate(step));
  }
  if (const mpi::SparseVector& gradient = merged.vectors[weights]; gradient.size != 0) {
    if (sends_all_exact(setup_.options)) {
      fill_from(std::span(sums.exact), gradient);
      if (is_ahead()) turn_changes(learners_.trainers[t]->layer(), trainer.layer(), sums.exact);
    } else {
      fill_from(std::span(sums.weight), gradient);
    }
    fill_from(sums.value(), merged.vectors[values]);
    std::optional<double> rms;
    if (!setup_.options.exchange.exact()) rms = exchange.rms_of_sum(weights, merged.workers);
    trainer.choose(sums, setup_.rate(step), step, rms);
    reply.vectors[weights] = trainer.changes();
    if (is_ahead()) trainer.apply(schedule_.steps_unseen(step));
  }
  if (is_ahead()) trainer.place_thresholds();  // which checkpoints hold
  reply.vectors[values] = exchange.limit(values, merged.vectors[values]);
  reply.vectors[place] = std::move(statistics);
}

void StageServer::save(TensorFile& file) const {
  TensorFile server;
  for (const auto& trainer : ahead_) {
    trainer->layer().save(server);
    trainer->save(server);
  }
  for (auto& [name, tensor] : server.tensors) file.tensors.insert_or_assign(server_prefix + name, std::move(tensor));
}

void StageServer::load(const TensorFile& file) {
  if (!is_ahead()) return;
  const std::string begin = server_prefix;
  TensorFile server;
  for (const auto& [name, tensor] : file.tensors) {
    if (name.starts_with(begin)) server.tensors.insert_or_assign(name.substr(begin.size()), tensor);
  }
  for (const auto& trainer : ahead_) trainer->load(server);
}

}  // namespace bitloom::layerwise
