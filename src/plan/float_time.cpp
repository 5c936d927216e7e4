#include "plan/float_time.h"

#include <algorithm>
#include <set>

#include "plan/float_shards.h"
#include "plan/float_traffic.h"
#include "train/muon.h"

namespace bitloom::plan {

FloatTimes::FloatTimes(const FloatLayout& layout, const FloatCluster& cluster)
    : layout_(layout),
      cluster_(cluster),
      shards_(group_of(layout.shards, layout.stages * layout.tensor)),
      copies_(group_of(layout.copies(), layout.stages * layout.tensor * layout.shards)),
      tensor_(group_of(layout.tensor, 1)) {}

// --- Links ---

FloatTimes::Group FloatTimes::group_of(std::size_t ranks, std::size_t stride) const {
  // Groups may begin anywhere on a host: that of a rank with the fewest others beside it counts.
  const std::size_t host = cluster_.ranks_per_host;
  const auto all = static_cast<std::size_t>(layout_.grid.ranks());
  Group group{ranks, ranks};
  std::set<std::size_t> places;  // on a host, of first ranks
  for (std::size_t first = 0; first < all && places.insert(first % host).second; first += ranks * stride) {
    for (std::size_t i = 0; i < ranks;) {
      const std::size_t place = (first + i * stride) % host;
      const std::size_t beside = std::min(ranks - i, (host - place + stride - 1) / stride);
      group.on_host = std::min(group.on_host, beside);
      i += beside;
    }
  }
  return group;
}

// One half of a sum: every rank sends a part of `bytes` to every other one, while those of other groups do so too.
double FloatTimes::exchange_seconds(const Group& group, std::uint64_t bytes) const {
  if (group.ranks == 1) return 0;
  const double part = static_cast<double>(bytes) / static_cast<double>(group.ranks);
  const std::size_t away = group.ranks - group.on_host;
  const double inside = static_cast<double>(group.on_host - 1) * part * 8 / cluster_.inside.bits_per_second;
  if (away == 0) return cluster_.inside.latency + inside;
  const auto senders = static_cast<double>(std::min(cluster_.ranks_per_host, static_cast<std::size_t>(layout_.grid.ranks())));
  const double outside = senders * static_cast<double>(away) * on_wire(part) * 8 / cluster_.link.bits_per_second;
  return cluster_.link.latency + std::max(inside, outside);
}

// Sums over the tensor group, one after the other.
double FloatTimes::sum_seconds(const std::vector<std::uint64_t>& bytes) const {
  double seconds = 0;
  for (const std::uint64_t each : bytes) seconds += 2 * exchange_seconds(tensor_, each);
  return seconds;
}

// From each rank of a tensor group to the one with its index in the next stage.
double FloatTimes::message_seconds(std::uint64_t bytes) const {
  const std::size_t host = cluster_.ranks_per_host;
  const std::size_t tensor = layout_.tensor;
  bool leaves = false;
  for (std::size_t rank = 0; rank + tensor < static_cast<std::size_t>(layout_.grid.ranks()); rank += tensor) {
    const bool has_next = rank / tensor % layout_.stages + 1 < layout_.stages;
    leaves |= has_next && rank / host != (rank + tensor) / host;
  }
  if (!leaves) return cluster_.inside.latency + static_cast<double>(bytes) * 8 / cluster_.inside.bits_per_second;
  const auto senders = static_cast<double>(std::min(host, tensor));
  return cluster_.link.latency + senders * on_wire(static_cast<double>(bytes)) * 8 / cluster_.link.bits_per_second;
}

// --- Passes ---

train::PassCosts FloatTimes::computing(std::size_t part) const {
  double forward = 0;
  double again = 0;
  for (std::size_t i = layout_.parts[part].first; i < layout_.parts[part].last; ++i) {
    const FloatLayer& layer = layout_.model.layers[i];
    const double operations = layer.operations_of(layout_.tensor);
    forward += operations;
    if (layout_.is_again(part, layer)) again += operations;
  }
  const double head = layout_.has_head(part) ? layout_.model.head_operations_of(layout_.tensor) : 0;
  const double unit = static_cast<double>(layout_.options.micro_batch) / cluster_.flops;
  // The head is passed forward and backward when the backward pass of the part begins.
  if (layout_.is_late(part)) return {0, 3 * (forward + head) * unit};
  return {forward * unit, (2 * forward + again + 3 * head) * unit};
}

train::PassCosts FloatTimes::whole(std::size_t part) const {
  train::PassCosts costs = computing(part);
  const TensorCalls calls = tensor_calls(layout_, part);
  costs.forward += sum_seconds(calls.forward);
  costs.backward += sum_seconds(calls.backward) + sum_seconds(calls.head_maxima) + sum_seconds(calls.head_sums);
  // While a layer computes, the parameters of the next and the gradients of the last are on their way.
  const auto [forward, backward] = exchanges_of(part);
  costs.forward = std::max(costs.forward, forward);
  costs.backward = std::max(costs.backward, backward);
  return costs;
}

double FloatTimes::message() const {
  std::uint64_t most = 0;
  for (std::size_t part = 0; part + 1 < layout_.shape.parts(); ++part) most = std::max(most, layout_.output_bytes(part));
  return layout_.stages == 1 ? 0 : message_seconds(most);
}

// --- A step ---

FloatTimes::Exchanges FloatTimes::exchanges_of(std::size_t part) const {
  Exchanges exchanges;
  if (layout_.divided.gradients) {
    exchanges.backward = exchange_seconds(shards_, layout_.bytes_of_gradients(layout_.all_of(part)));
  }
  if (!layout_.divided.parameters) return exchanges;
  std::uint64_t layers = 0;
  std::uint64_t head = 0;
  for (const ParameterBlock& block : layout_.blocks_of(part)) {
    (block.is_head ? head : layers) += layout_.bytes_of_values(layout_.count(block));
  }
  const double gather = exchange_seconds(shards_, layers);
  if (!layout_.is_late(part)) exchanges.forward = gather;
  exchanges.backward += (layout_.recomputes_stages() ? 2 : 1) * gather;
  if (head > 0) exchanges.backward += exchange_seconds(shards_, head);
  return exchanges;
}

FloatTimes::StageExchanges FloatTimes::stage_exchanges(std::size_t stage) const {
  RankParameters all;
  for (std::size_t chunk = 0; chunk < layout_.shape.chunks; ++chunk) all += layout_.all_of(layout_.shape.part(stage, chunk));
  const std::uint64_t gradients = layout_.bytes_of_gradients(all);
  const Divided& divided = layout_.divided;
  StageExchanges exchanges;
  exchanges.sum = exchange_seconds(shards_, gradients);
  exchanges.copies = 2 * exchange_seconds(copies_, gradients / layout_.shards);
  if (!divided.parameters) exchanges.new_values = exchange_seconds(shards_, layout_.bytes_of_values(all));
  return exchanges;
}

double FloatTimes::data_seconds(std::size_t stage) const {
  double seconds = 0;
  for (std::size_t chunk = 0; chunk < layout_.shape.chunks; ++chunk) {
    const auto [forward, backward] = exchanges_of(layout_.shape.part(stage, chunk));
    seconds += static_cast<double>(layout_.shape.micro_batches) * (forward + backward);
  }
  const StageExchanges exchanges = stage_exchanges(stage);
  seconds += (layout_.divided.gradients ? 0 : exchanges.sum) + exchanges.new_values;
  if (layout_.options.compress_rank == 0) return seconds + exchanges.copies;
  const Compressed factors = compressed_seconds();
  return seconds + factors.p + factors.q;
}

// P with what goes as it is, then Q, which follows from the sum of P.
FloatTimes::Compressed FloatTimes::compressed_seconds() const {
  const CompressionNeeds& needs = layout_.compression;
  return {2 * exchange_seconds(copies_, needs.sent.p + needs.sent.exact + needs.sent.flags),
          2 * exchange_seconds(copies_, needs.sent.q), needs.operations / cluster_.flops};
}

// Each of its processes makes all of them orthogonal.
double FloatTimes::muon_seconds(std::size_t stage) const {
  if (layout_.options.train.optimizer.rule != "muon") return 0;
  double operations = 0;
  for (std::size_t chunk = 0; chunk < layout_.shape.chunks; ++chunk) {
    for (const ParameterBlock& block : layout_.blocks_of(layout_.shape.part(stage, chunk))) {
      for (const FloatParameter& each : block.parameters) {
        if (!each.is_block_matrix()) continue;
        operations += train::orthogonalise_operations(each.rows, each.elements.of(1) / each.rows, each.column_blocks);
      }
    }
  }
  return operations / cluster_.flops;
}

// The sums of a layer begin when the last backward pass has left it; the first layer's, which it leaves last, have nothing to
// hide behind. Where gradients are shards, all but the first layer's are reduced in the pass itself. So begin the sums of
// shards over their copies and of P; Q, and what is made of it, follow when the pass is over.
double FloatTimes::after_passes(std::size_t stage, double last_backward) const {
  const bool compresses = layout_.options.compress_rank > 0;
  const std::size_t part = layout_.shape.part(stage, 0);
  const std::vector<ParameterBlock> blocks = layout_.blocks_of(part);
  const auto own = std::ranges::count_if(blocks, [&](const ParameterBlock& block) { return layout_.is_own(block); });
  const auto layers = static_cast<double>(std::max<std::ptrdiff_t>(1, own));
  const StageExchanges exchanges = stage_exchanges(stage);
  const double hidden = last_backward * (1 - 1 / layers);
  const Compressed factors = compresses ? compressed_seconds() : Compressed();
  const double first = compresses ? factors.p : exchanges.copies;
  const double sums = first + (layout_.divided.gradients ? 0 : exchanges.sum);
  double seconds = muon_seconds(stage) + (layout_.divided.gradients ? exchanges.sum / layers : 0);
  seconds += std::max(sums / layers, sums - hidden) + factors.q + factors.computing + exchanges.new_values;
  for (std::size_t chunk = 0; chunk < layout_.shape.chunks; ++chunk) {
    if (!layout_.shares_table(layout_.shape.part(stage, chunk))) continue;
    return seconds + message_seconds(shared_elements(layout_) * layout_.parameter_bytes);
  }
  return seconds;
}

}  // namespace bitloom::plan
