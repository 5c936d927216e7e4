#include "train/parallel/stages.h"

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::train {

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

std::uint64_t stash_peak(std::span<const Action> actions, std::span<const PartStash> chunks, bool is_last, bool recompute) {
  std::uint64_t peak = 0;
  std::uint64_t now = 0;
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
      peak = std::max(peak, now);
    } else {
      now -= held;
      peak = std::max(peak, now + (recompute ? part.input : 0) + part.peak);
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

}  // namespace bitloom::train
