#include "plan/float_traffic.h"

#include <algorithm>
#include <numeric>

#include "nn/ops.h"

namespace bitloom::plan {
namespace {

std::uint64_t total(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), UINT64_C(0));
}

// Activations forward and their gradients backward, and the gradients of a table that two stages have: each rank's shard of it.
void add_messages(const FloatLayout& layout, std::size_t part, GroupBytes& pipeline) {
  if (layout.stages == 1) return;
  const std::uint64_t micro_batches = layout.shape.micro_batches;
  if (part + 1 < layout.shape.parts()) pipeline.messages += micro_batches * layout.output_bytes(part);
  if (part > 0) pipeline.messages += micro_batches * layout.output_bytes(part - 1);
  if (layout.shares_table(part)) pipeline.messages += shared_elements(layout) * layout.parameter_bytes;
}

GroupBytes data_bytes(const FloatLayout& layout, const StageShards& shards, const ShardNeeds& needs) {
  GroupBytes bytes;
  if (layout.data == 1) return bytes;
  const Divided& divided = layout.divided;
  if (layout.copies() > 1) {
    const bool compresses = layout.options.compress_rank > 0;
    bytes.sums = compresses ? layout.compression.sent.sum() : layout.bytes_of_gradients(shards.largest());
  }
  if (layout.shards == 1) return bytes;
  bytes.reduce_scatters = (divided.gradients ? layout.shape.micro_batches : 1) * layout.bytes_of_gradients(shards.whole());
  // Values as ops read them: for passes, or the new ones.
  if (divided.parameters) {
    bytes.all_gathers = needs.gathered_bytes;
  } else {
    for (const RankParameters& own : shards.by_rank())
      bytes.all_gathers = std::max(bytes.all_gathers, layout.bytes_of_values(own));
  }
  return bytes;
}

// Losses and their number, what layers sum over a step, and the norm of all gradients: a sum of squares for every chunk of a
// parameter that is learned (train::GradientNorm).
void add_control(const FloatLayout& layout, std::size_t stage, StagePlan& plan) {
  constexpr std::uint64_t loss_bytes = 2 * sizeof(double);
  std::uint64_t squares = 0;
  std::uint64_t divided_squares = 0;  // of parameters that the tensor group divides
  const auto count = [&](const std::vector<FloatParameter>& parameters) {
    for (const FloatParameter& each : parameters) {
      if (each.is_frozen) continue;
      const std::uint64_t chunks = (each.elements.of(layout.tensor) + nn::squares_chunk - 1) / nn::squares_chunk;
      squares += chunks * sizeof(double);
      if (each.elements.split > 0) divided_squares += chunks * sizeof(double);
    }
  };
  for (const FloatLayer& layer : layout.model.layers) count(layer.parameters);
  if (!layout.model.has_tied_head()) count(layout.model.head_parameters());
  if (layout.data > 1) {
    plan.data.sums += loss_bytes + (layout.shards > 1 ? squares : 0);
    for (const train::LayerRange& part : plan.layers) {
      for (std::size_t i = part.first; i < part.last; ++i) {
        plan.data.sums += layout.model.layers[i].step_sums * layout.parameter_bytes;
      }
    }
  }
  if (layout.stages > 1) plan.pipeline.sums += squares;
  if (layout.stages > 1 && stage + 1 == layout.stages) plan.pipeline.broadcasts += loss_bytes;
  if (layout.tensor > 1) plan.tensor.sums += divided_squares;
}

}  // namespace

TensorCalls tensor_calls(const FloatLayout& layout, std::size_t part) {
  TensorCalls calls;
  if (layout.tensor == 1) return calls;
  std::vector<std::uint64_t>& forward = layout.is_late(part) ? calls.backward : calls.forward;
  for (std::size_t i = layout.parts[part].first; i < layout.parts[part].last; ++i) {
    const FloatLayer& layer = layout.model.layers[i];
    const std::uint64_t bytes = layout.options.micro_batch * layer.summed * layout.value_bytes;
    forward.insert(forward.end(), layer.forward_sums, bytes);
    calls.backward.insert(calls.backward.end(), layer.backward_sums + (layout.is_again(part, layer) ? layer.forward_sums : 0),
                          bytes);
  }
  if (!layout.has_head(part)) return calls;
  for (const FloatHead& head : layout.model.vocabulary_heads) {
    if (head.is_whole) continue;
    // Maxima, then targets' logits and sums of exponentials of all rows; the gradient of hidden states.
    const std::uint64_t rows = std::uint64_t{layout.options.micro_batch} * layout.model.tokens_of(head);
    calls.head_maxima.push_back(rows * layout.parameter_bytes);
    calls.head_sums.insert(calls.head_sums.end(), {2 * rows * layout.parameter_bytes, rows * head.width * layout.value_bytes});
  }
  return calls;
}

void set_traffic(const FloatLayout& layout, std::size_t stage, const StageShards& shards, const ShardNeeds& needs,
                 StagePlan& plan) {
  const std::uint64_t micro_batches = layout.shape.micro_batches;
  for (std::size_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    const std::size_t part = layout.shape.part(stage, chunk);
    add_messages(layout, part, plan.pipeline);
    const TensorCalls calls = tensor_calls(layout, part);
    plan.layer_sums += micro_batches * (calls.forward.size() + calls.backward.size());
    plan.tensor.sums += micro_batches * (total(calls.forward) + total(calls.backward) + total(calls.head_sums));
    plan.tensor.maxima += micro_batches * total(calls.head_maxima);
  }
  plan.data = data_bytes(layout, shards, needs);
  add_control(layout, stage, plan);
}

}  // namespace bitloom::plan
