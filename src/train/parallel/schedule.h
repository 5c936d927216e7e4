// The order in which the stages of a pipeline pass micro-batches on: schedules by name, what is true of all of them, and how
// long they take.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "train/parallel/event_log.h"

namespace bitloom::train {

enum class Work : std::uint8_t { forward, backward };

// A pass of one micro-batch through one chunk of a stage's layers.
struct Action {
  Work work = Work::forward;
  std::size_t micro_batch = 0, chunk = 0;

  friend auto operator<=>(const Action&, const Action&) = default;
};

struct PipelineShape {
  std::size_t stages = 1, micro_batches = 1;
  // Parts of the net that every stage has: chunk c of stage s is part c * stages + s, so that a micro-batch goes around
  // `chunks` times.
  std::size_t chunks = 1;

  std::size_t parts() const { return stages * chunks; }
  std::size_t part(std::size_t stage, std::size_t chunk) const { return chunk * stages + stage; }
};

// The action that takes what another one makes, and its stage; none after the first part's backward pass and, because the loss
// is between them, after the last part's forward pass.
struct StageAction {
  std::size_t stage = 0;
  Action action;
};
std::optional<StageAction> next_action(const PipelineShape& shape, const StageAction& made);

// Actions of every stage, in its order.
using Schedule = std::vector<std::vector<Action>>;

struct NamedSchedule {
  const char* name;
  const char* summary;
  bool takes_chunks;  // two or more; the others take one
  // Throws Error(usage), which names the field `pipeline_schedule`, for a shape that it does not have.
  Schedule (*make)(const PipelineShape& shape);
};
std::span<const NamedSchedule> named_schedules();
std::vector<std::string> schedule_names();
// Throws Error(usage), which names the field `pipeline_schedule`.
const NamedSchedule& find_schedule(std::string_view name);
// Parts of the net that each stage has: `given`, or, for 0, 2 of a schedule that takes several, else 1.
std::size_t chunks_or_usual(std::string_view schedule, std::size_t given);
// Throws Error(usage), which names the field `pipeline_schedule`, for chunks that the schedule does not take.
void require_chunks(std::string_view schedule, std::size_t chunks);
// The same, for a shape without stages, micro-batches or chunks, or with chunks that the schedule does not take, too.
Schedule make_schedule(std::string_view name, const PipelineShape& shape);
// Forward passes alone, for evaluation; takes any shape.
Schedule forward_schedule(const PipelineShape& shape);

// Throws Error(internal), which names stage and micro-batch, unless every stage passes every micro-batch once forward and then
// once backward through each of its chunks, both in ascending order of micro-batches (sums over them, of gradients and of batch
// norm's statistics, then have the same bits under every schedule), and no stage waits for ever where messages are buffered.
// forward_only: of a schedule that has no backward passes.
void check(const Schedule& schedule, const PipelineShape& shape, bool forward_only = false);

// Seconds of a part's passes, or any other unit.
struct PassCosts {
  double forward = 1, backward = 2;
};

struct Simulation {
  Events events;                       // passes of every stage
  double seconds = 0;                  // until the last pass ends
  double bubble = 0;                   // bubble_of(events)
  std::vector<std::size_t> in_flight;  // by stage: micro-batches whose forward pass has begun and backward pass not ended, at
                                       // most; once for each chunk
};
// Every stage begins its next action as soon as it is free and what the action needs is there, `message` seconds after it was
// made where another stage made it. costs: of all parts. Throws Error(internal) as check() does where a stage waits for ever.
Simulation simulate(const Schedule& schedule, const PipelineShape& shape, std::span<const PassCosts> costs, double message = 0);

}  // namespace bitloom::train
