#include "train/parallel/stages.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::train {
namespace {

PartStash part_stash(nn::Sequence& net, const LayerRange& range, const nn::Shape& input, DType input_type, DType values) {
  PartStash stash;
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

}  // namespace

std::vector<StageParameter> stage_parameters(nn::Sequence& net, std::span<nn::Parameter* const> head,
                                             const Partition& partition, std::size_t stages) {
  std::vector<StageParameter> all;
  for (std::size_t part = 0; part < partition.size(); ++part) {
    for (std::size_t i = partition[part].first; i < partition[part].last; ++i) {
      for (nn::Parameter* parameter : nn::parameters_of(net[i])) {
        std::set<std::size_t> has{part % stages};
        if (std::ranges::count(head, parameter) > 0) has.insert(stages - 1);
        all.push_back({parameter, {has.begin(), has.end()}});
      }
    }
  }
  return all;
}

PipelineShape pipeline_shape(const nn::Sequence& net, const PipelineOptions& options, std::size_t stages) {
  const Partition& parts = options.partition;
  std::size_t begin = 0;
  for (const LayerRange& range : parts) {
    if (range.first != begin || range.last <= begin) {
      fail_field(ErrorKind::usage, "partition",
                 "layers {} to {} after {}; expected parts of at least one layer that follow one "
                 "another",
                 range.first, range.last, begin);
    }
    begin = range.last;
  }
  if (begin != net.size() || parts.empty()) {
    fail_field(ErrorKind::usage, "partition", "{} layers; expected the net's, {}", begin, net.size());
  }
  if (parts.size() % stages != 0) {
    fail_field(ErrorKind::usage, "partition", "{} parts for {} stages; expected a multiple", parts.size(), stages);
  }
  const PipelineShape shape{stages, 0, parts.size() / stages};
  require_chunks(options.schedule, shape.chunks);
  return shape;
}

std::vector<nn::Shape> part_inputs(nn::Sequence& net, const PipelineOptions& options) {
  std::vector<nn::Shape> inputs{options.input};
  for (const LayerRange& range : options.partition) {
    nn::Shape shape = inputs.back();
    for (std::size_t i = range.first; i < range.last; ++i) shape = net[i].output(shape);
    inputs.push_back(shape);
  }
  return inputs;
}

StashPeak stash_peak(std::span<const Action> actions, std::span<const PartStash> chunks, bool is_last, bool recompute) {
  StashPeak peak;
  std::uint64_t now = 0;
  std::size_t in_flight = 0;
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const Action& action = actions[i];
    const PartStash& part = chunks[action.chunk];
    const bool has_output = is_last && action.chunk + 1 == chunks.size();
    std::uint64_t held = recompute ? part.input : part.kept;
    if (has_output && !recompute) {
      const Action backward{Work::backward, action.micro_batch, action.chunk};
      // The net's output is kept where other passes come first.
      const bool waits = action.work == Work::forward
                             ? i + 1 == actions.size() || actions[i + 1] != backward
                             : i == 0 || actions[i - 1] != Action{Work::forward, action.micro_batch, action.chunk};
      if (waits) held += part.output;
    }
    if (action.work == Work::forward) {
      now += held;
      peak.bytes = std::max(peak.bytes, now);
      peak.micro_batches = std::max(peak.micro_batches, ++in_flight);
    } else {
      now -= held;
      peak.bytes = std::max(peak.bytes, now + (recompute ? part.input : 0) + part.peak);
      --in_flight;
    }
  }
  return peak;
}

std::vector<LayerPass> layer_passes(const PipelineShape& shape, std::size_t stage, const Partition& partition, bool recompute,
                                    std::span<const Action> actions, bool training) {
  std::vector<LayerPass> passes;
  for (const Action& action : actions) {
    const std::size_t part = shape.part(stage, action.chunk);
    const LayerRange& range = partition[part];
    const bool is_last = part + 1 == shape.parts();
    const bool backward = action.work == Work::backward;
    if (backward ? recompute : !(training && recompute && is_last)) {
      for (std::size_t i = range.first; i < range.last; ++i) passes.push_back({i, false});
    }
    if (is_last && backward == training) passes.push_back({partition.back().last, training});
    if (!backward) continue;
    for (std::size_t i = range.last; i > range.first; --i) passes.push_back({i - 1, true});
  }
  return passes;
}

StageNeeds predict_stage(nn::Sequence& net, std::span<nn::Parameter* const> head, const PipelineOptions& options,
                         std::size_t stages, std::size_t stage, std::size_t micro_batches) {
  PipelineShape shape = pipeline_shape(net, options, stages);
  shape.micro_batches = micro_batches;
  const std::vector<Action> actions = make_schedule(options.schedule, shape)[stage];
  const std::vector<nn::Shape> inputs = part_inputs(net, options);
  StageNeeds needs;
  for (const Action& action : actions) {
    const std::optional<StageAction> next = next_action(shape, {stage, action});
    if (!next || next->stage == stage) continue;
    const std::size_t part = shape.part(stage, action.chunk);
    ++needs.messages;
    needs.message_bytes += inputs[action.work == Work::forward ? part + 1 : part].size() * dtype_size(options.values);
  }
  for (const StageParameter& each : stage_parameters(net, head, options.partition, stages)) {
    if (each.stages.size() == 1 || std::ranges::count(each.stages, stage) == 0) continue;
    const std::size_t size = dtype_size(nn::parameter_type(options.values));
    const std::size_t piece = shared_piece_bytes / size;
    const std::uint64_t others = each.stages.size() - 1;
    needs.shared_messages += others * ((each.parameter->shape.size() + piece - 1) / piece);
    needs.shared_bytes += others * each.parameter->shape.size() * size;
  }
  std::vector<PartStash> chunks;
  for (std::size_t c = 0; c < shape.chunks; ++c) {
    const std::size_t part = shape.part(stage, c);
    const DType type = part == 0 ? options.input_type.value_or(options.values) : options.values;
    chunks.push_back(part_stash(net, options.partition[part], inputs[part], type, options.values));
  }
  const StashPeak peak = stash_peak(actions, chunks, stage + 1 == stages, options.recompute);
  needs.peak_stash_bytes = peak.bytes;
  needs.micro_batches = peak.micro_batches;
  return needs;
}

}  // namespace bitloom::train
