// Messages and stashes of a stage of a pipeline in a step, worked out from the net: what the pipeline and plans are compared
// with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "nn/layer.h"
#include "train/parallel/schedule.h"
#include "train/parallel/stages.h"

namespace bitloom::test {

struct StageNeeds {
  std::uint64_t messages = 0, message_bytes = 0;        // sent by Pipeline::run()
  std::uint64_t shared_messages = 0, shared_bytes = 0;  // and by sum_shared_gradients()
  std::uint64_t peak_stash_bytes = 0;                   // in stashes at once, those of nn::Recomputed included
};

inline train::PartStash part_stash(nn::Sequence& net, const train::LayerRange& range, const nn::Shape& input, DType input_type,
                                   DType values) {
  train::PartStash stash;
  stash.input = input.size() * dtype_size(input_type);
  nn::Shape shape = input;
  for (std::size_t i = range.first; i < range.last; ++i) {
    stash.peak = std::max(stash.peak, stash.kept + net[i].peak_stash_bytes(shape, values));
    stash.kept += net[i].stash_bytes(shape, values);
    shape = net[i].output(shape);
  }
  stash.output = shape.size() * dtype_size(values);
  return stash;
}

inline StageNeeds predict_stage(nn::Sequence& net, std::span<nn::Parameter* const> head, const train::PipelineOptions& options,
                                std::size_t stages, std::size_t stage, std::size_t micro_batches) {
  train::PipelineShape shape = train::pipeline_shape(net, options, stages);
  shape.micro_batches = micro_batches;
  const std::vector<train::Action> actions = train::make_schedule(options.schedule, shape)[stage];
  const std::vector<nn::Shape> inputs = train::part_inputs(net, options);
  StageNeeds needs;
  for (const train::Action& action : actions) {
    const std::optional<train::StageAction> next = train::next_action(shape, {stage, action});
    if (!next || next->stage == stage) continue;
    const std::size_t part = shape.part(stage, action.chunk);
    ++needs.messages;
    needs.message_bytes += inputs[action.work == train::Work::forward ? part + 1 : part].size() * dtype_size(options.values);
  }
  for (const train::StageParameter& each : train::stage_parameters(net, head, options.partition, stages)) {
    if (each.stages.size() == 1 || std::ranges::count(each.stages, stage) == 0) continue;
    const std::size_t size = dtype_size(nn::parameter_type(options.values));
    const std::size_t piece = train::shared_piece_bytes / size;
    const std::uint64_t others = each.stages.size() - 1;
    needs.shared_messages += others * ((each.parameter->shape.size() + piece - 1) / piece);
    needs.shared_bytes += others * each.parameter->shape.size() * size;
  }
  std::vector<train::PartStash> chunks;
  for (std::size_t c = 0; c < shape.chunks; ++c) {
    const std::size_t part = shape.part(stage, c);
    const DType type = part == 0 ? options.input_type.value_or(options.values) : options.values;
    chunks.push_back(part_stash(net, options.partition[part], inputs[part], type, options.values));
  }
  needs.peak_stash_bytes = train::stash_peak(actions, chunks, stage + 1 == stages, options.recompute);
  return needs;
}

}  // namespace bitloom::test
