#include "plan/float_traffic.h"

#include <numeric>

namespace bitloom::plan {
namespace {

std::uint64_t total(const std::vector<std::uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), UINT64_C(0));
}

// Activations forward and their gradients backward, and the gradients of a table that two stages have.
void add_messages(const FloatLayout& layout, std::size_t part, GroupBytes& pipeline) {
  if (layout.stages == 1) return;
  const std::uint64_t micro_batches = layout.shape.micro_batches;
  if (part + 1 < layout.shape.parts()) pipeline.messages += micro_batches * layout.output_bytes(part);
  if (part > 0) pipeline.messages += micro_batches * layout.output_bytes(part - 1);
  if (layout.shares_table(part)) pipeline.messages += layout.table() * layout.parameter_bytes;
}

GroupBytes data_bytes(const FloatLayout& layout, const RankParameters& parameters) {
  GroupBytes bytes;
  if (layout.data == 1) return bytes;
  const Divided& divided = layout.divided;
  const std::uint64_t micro_batches = layout.shape.micro_batches;
  const std::uint64_t gradients = layout.bytes_of_gradients(parameters);
  if (divided.optimizer) {
    bytes.reduce_scatters = (divided.gradients ? micro_batches : 1) * gradients;
  } else {
    bytes.sums = gradients;
  }
  const std::uint64_t matrices = layout.shard_of(parameters.matrices);
  const std::uint64_t vectors = layout.shard_of(parameters.vectors);
  if (divided.parameters) {
    // As ops read them, for each forward and backward pass.
    bytes.all_gathers = 2 * micro_batches * layout.bytes_of_values({matrices, vectors});
  } else if (divided.optimizer) {
    bytes.all_gathers = (matrices + vectors) * layout.parameter_bytes;  // the new ones
  }
  return bytes;
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
  if (layout.has_head(part)) {
    // Maxima, then targets' logits and sums of exponentials of all rows; the gradient of hidden states.
    const std::uint64_t rows = layout.rows();
    calls.head_maxima = {rows * layout.parameter_bytes};
    calls.head_sums = {2 * rows * layout.parameter_bytes, rows * layout.model.head->width * layout.value_bytes};
  }
  return calls;
}

void set_traffic(const FloatLayout& layout, std::size_t stage, StagePlan& plan) {
  RankParameters parameters;
  const std::uint64_t micro_batches = layout.shape.micro_batches;
  for (std::size_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    const std::size_t part = layout.shape.part(stage, chunk);
    parameters += layout.all_of(part);
    add_messages(layout, part, plan.pipeline);
    const TensorCalls calls = tensor_calls(layout, part);
    plan.layer_sums += micro_batches * (calls.forward.size() + calls.backward.size());
    plan.tensor.sums += micro_batches * (total(calls.forward) + total(calls.backward) + total(calls.head_sums));
    plan.tensor.maxima += micro_batches * total(calls.head_maxima);
  }
  plan.data = data_bytes(layout, parameters);
}

}  // namespace bitloom::plan
