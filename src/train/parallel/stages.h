// How a net is divided among the stages of a pipeline, and what each of them has and keeps: told from the net's description,
// before there is any memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/layer.h"
#include "train/parallel/partition.h"
#include "train/parallel/schedule.h"

namespace bitloom::train {

struct PipelineOptions {
  // Parts of the net, one after the other: as many for each stage, which has them as PipelineShape says.
  Partition partition;
  std::string schedule = "1f1b";  // one of schedule_names()
  // A stage keeps its input alone of a micro-batch, and computes its layers again before their backward pass (section 2.3). The
  // last part, whose output nobody else waits for, is computed then for the first time.
  bool recompute = false;
  nn::Shape input;                  // of the first layer, a micro-batch's
  std::optional<DType> input_type;  // none: V
  DType values = DType::f32;        // V, which activations between layers have
};

// A parameter, and the stages that have it, ascending: that of its layer and, if the loss reads it, the last one.
struct StageParameter {
  nn::Parameter* parameter = nullptr;
  std::vector<std::size_t> stages;
};
// All of a net, in its order. head: those that the loss reads.
std::vector<StageParameter> stage_parameters(nn::Sequence& net, std::span<nn::Parameter* const> head,
                                             const Partition& partition, std::size_t stages);

// The stages and the parts of each, without micro-batches. Throws Error(usage), which names the field `partition` or
// `pipeline_schedule`, for parts that are not the net's layers one after the other, not as many for each stage, or too many for
// the schedule.
PipelineShape pipeline_shape(const nn::Sequence& net, const PipelineOptions& options, std::size_t stages);
// Shapes of the parts' inputs, then that of the net's output.
std::vector<nn::Shape> part_inputs(nn::Sequence& net, const PipelineOptions& options);

// A pass through a layer of the net, or through the loss, which counts as one more.
struct LayerPass {
  std::size_t layer = 0;
  bool backward = false;  // adds to gradients; the loss's does

  friend bool operator==(const LayerPass&, const LayerPass&) = default;
};
// Those of a stage, one after the other. training: false for forward_schedule().
std::vector<LayerPass> layer_passes(const PipelineShape& shape, std::size_t stage, const Partition& partition, bool recompute,
                                    std::span<const Action> actions, bool training);

// Gradients of a parameter on several stages are summed in pieces of this many bytes, a message each.
inline constexpr std::size_t shared_piece_bytes = std::size_t{16} << 20U;

// Bytes that a part keeps of a micro-batch.
struct PartStash {
  std::uint64_t input = 0, output = 0;
  std::uint64_t kept = 0;  // by its layers, from the forward to the backward pass
  std::uint64_t peak = 0;  // by its layers, at most; without an input that the stage keeps and they do, too
};
// Most bytes in stashes at once: follows a stage's through its actions as Pipeline does. chunks: its parts, which end with the
// net's output if the stage is the last. recompute: as in PipelineOptions.
std::uint64_t stash_peak(std::span<const Action> actions, std::span<const PartStash> chunks, bool is_last, bool recompute);

}  // namespace bitloom::train
