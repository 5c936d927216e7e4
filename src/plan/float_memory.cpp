#include "plan/float_memory.h"

#include <algorithm>

#include "models/gpt/language_task.h"
#include "nn/activation.h"
#include "nn/parameter.h"
#include "train/muon.h"
#include "train/parallel/stages.h"
#include "train/update_rule.h"

namespace bitloom::plan {
namespace {

std::uint64_t kept_bytes(const FloatLayout& layout, const FloatLayer& layer) {
  const std::size_t tensor = layout.tensor;
  const std::uint64_t b = layout.options.micro_batch;
  const std::uint64_t inputs = b * layer.activations.of(tensor);
  return b * (layer.values.of(tensor) * layout.value_bytes + layer.statistics.of(tensor) * layout.parameter_bytes +
              layer.integers * sizeof(std::int32_t)) +
         nn::activation_stash_bytes(inputs, layout.options.activation_bits, layout.options.activation_quantiser,
                                    layout.value_bytes);
}

train::PartStash stash_of(const FloatLayout& layout, std::size_t part) {
  const train::LayerRange& range = layout.parts[part];
  train::PartStash stash{layout.input_bytes(range.first), layout.output_bytes(part)};
  for (std::size_t i = range.first; i < range.last; ++i) {
    const FloatLayer& layer = layout.model.layers[i];
    const bool again = layout.recomputes_block(layer);
    const std::uint64_t all = kept_bytes(layout, layer);
    stash.peak = std::max(stash.peak, stash.kept + all + (again && !layer.keeps_input ? layout.input_bytes(i) : 0));
    stash.kept += again ? layout.input_bytes(i) : all;
  }
  // The first layer's input is the one that the stage keeps.
  if (layout.recomputes_stages() && layout.model.layers[range.first].keeps_input) stash.peak -= stash.input;
  return stash;
}

// Activations on their way in a part: those in the largest layer, or hidden states, their gradients and logits; what is sent
// and received.
std::uint64_t way_bytes(const FloatLayout& layout, std::size_t part) {
  const FloatModel& model = layout.model;
  std::uint64_t largest = 0;
  for (std::size_t i = layout.parts[part].first; i < layout.parts[part].last; ++i) {
    const std::uint64_t elements = layout.options.micro_batch * model.layers[i].working.of(layout.tensor);
    largest = std::max(largest, elements * layout.value_bytes);
  }
  if (layout.has_head(part)) {
    std::uint64_t logits = 0;
    for (const FloatHead& head : model.vocabulary_heads) {
      const std::size_t columns = head.table().of(layout.tensor) / head.width;
      const std::uint64_t rows = std::uint64_t{layout.options.micro_batch} * model.tokens_of(head);
      logits =
          std::max(logits, models::LanguageTask::workspace_bytes(columns, rows, layout.options.train.values, head.is_clipped));
    }
    // Several heads have rows of their own, gathered from all, and their gradients.
    const std::uint64_t hidden = layout.rows() * model.vocabulary_heads.front().width * layout.value_bytes;
    largest = std::max(largest, (model.vocabulary_heads.size() > 1 ? 4 : 2) * hidden + logits);
  }
  if (layout.stages == 1) return largest;
  return largest + (part > 0 ? layout.input_bytes(layout.parts[part].first) : 0) +
         (part + 1 < layout.shape.parts() ? layout.output_bytes(part) : 0);
}

// Workspace of the stage's optimiser, which moves one matrix after the other.
std::uint64_t muon_bytes(const FloatLayout& layout, std::size_t stage) {
  std::uint64_t matrix_bytes = 0;
  if (layout.options.train.optimizer.rule != "muon") return matrix_bytes;
  for (std::size_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    for (const ParameterBlock& block : layout.blocks_of(layout.shape.part(stage, chunk))) {
      for (const FloatParameter& each : block.parameters) {
        if (!each.is_block_matrix()) continue;
        const std::size_t columns = each.elements.of(1) / each.rows;
        matrix_bytes =
            std::max(matrix_bytes, train::orthogonalise_bytes(each.rows, columns, each.column_blocks, layout.parameter_bytes));
      }
    }
  }
  return matrix_bytes;
}

// Largest workspace of a time when there are neither activations nor stashes.
std::uint64_t bytes_between_passes(const FloatLayout& layout, std::size_t stage) {
  const CompressionNeeds& factors = layout.compression;
  return std::max({muon_bytes(layout, stage), factors.work_bytes, factors.saved_bytes});
}

}  // namespace

FloatMemory memory_of(const FloatLayout& layout, std::size_t stage, std::span<const train::Action> actions,
                      const StageShards& shards, const ShardNeeds& needs) {
  FloatMemory memory;
  std::vector<train::PartStash> stashes;
  RankParameters frozen;
  for (std::size_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    const std::size_t part = layout.shape.part(stage, chunk);
    stashes.push_back(stash_of(layout, part));
    frozen += layout.frozen_of(part);
    memory.activations = std::max(memory.activations, way_bytes(layout, part));
  }
  memory.stash = train::stash_peak(actions, stashes, stage + 1 == layout.stages, layout.recomputes_stages());
  const std::uint64_t works_with = bytes_between_passes(layout, stage);
  memory.activations = std::max(memory.activations, works_with - std::min(works_with, memory.stash));
  memory.gathered = needs.whole_bytes;
  const auto kept = [&](bool divided) { return divided ? shards.largest() : shards.whole(); };
  const train::TrainOptions& train = layout.options.train;
  const bool has_copies = layout.value_bytes != layout.parameter_bytes;
  // Elements of matrices that have no value in f32 beside that which ops read.
  const auto without_masters = [&](const RankParameters& each) {
    return has_copies && train.master_weights == nn::MasterWeights::none ? each.block_matrices : 0;
  };
  memory.parameters = layout.bytes_of_values(kept(layout.divided.parameters));
  // Masters of 16-bit values go with the optimiser.
  if (has_copies) {
    const RankParameters& masters = kept(layout.divided.optimizer);
    memory.parameters += (masters.matrices - without_masters(masters)) * layout.parameter_bytes;
  }
  memory.gradients = layout.bytes_of_gradients(kept(layout.divided.gradients));
  // Layers may need gradients of what no optimiser moves.
  memory.parameters += layout.bytes_of_values(frozen) + (has_copies ? frozen.matrices * layout.parameter_bytes : 0);
  memory.gradients += layout.bytes_of_gradients(frozen);
  const std::uint64_t states = train::find_update_rule(train.optimizer.rule).moments + (train.optimizer.average > 0 ? 1 : 0) +
                               (train.optimizer.lookahead > 0 ? 1 : 0);
  // Moments of matrices in blocks may be narrower than gradients.
  const std::uint64_t saved = train::moment_bytes(train.optimizer, false, layout.parameter_bytes) -
                              train::moment_bytes(train.optimizer, true, layout.parameter_bytes);
  const auto state_bytes = [&](const RankParameters& each) {
    return states * layout.bytes_of_gradients(each) - saved * each.block_matrices;
  };
  // The rank that has the most elements need not be the one with the most bytes.
  for (const RankParameters& rank : shards.by_rank()) memory.optimizer = std::max(memory.optimizer, state_bytes(rank));
  // Columns of matrices are no slices of what is kept whole.
  const RankParameters columns = shards.largest_columns();
  if (!layout.divided.parameters) memory.parameters += layout.bytes_of_values(columns);
  if (!layout.divided.gradients) memory.gradients += layout.bytes_of_gradients(columns);
  const auto share = [&](std::uint64_t elements) { return (elements + layout.data - 1) / layout.data; };
  const RankParameters whole = shards.whole();
  memory.checkpoint = share(whole.matrices) * layout.parameter_bytes -
                      share(without_masters(whole)) * (layout.parameter_bytes - layout.value_bytes) +
                      (share(whole.vectors) + share(frozen.all()) + states * share(whole.all())) * layout.parameter_bytes -
                      saved * share(whole.block_matrices);
  memory.optimizer += layout.compression.error_bytes + layout.compression.query_bytes;
  // A rank's share of the sums of error buffers over the ranks that have the same, and of a warm start's last Q.
  memory.checkpoint += (layout.compression.saved_bytes + layout.copies() - 1) / layout.copies();
  return memory;
}

}  // namespace bitloom::plan
