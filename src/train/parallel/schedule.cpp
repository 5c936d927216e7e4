#include "train/parallel/schedule.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"

namespace bitloom::train {
namespace {

constexpr const char* schedule_field = "pipeline_schedule";

// `ahead` forward passes, then a backward pass after every further one, then the rest of the backward passes.
std::vector<Action> interleave(const std::vector<Action>& forward, const std::vector<Action>& backward, std::size_t ahead) {
  ahead = std::min(ahead, forward.size());
  std::vector<Action> actions(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (std::size_t i = ahead; i < forward.size(); ++i) {
    actions.push_back(forward[i]);
    actions.push_back(backward[i - ahead]);
  }
  actions.insert(actions.end(), backward.end() - static_cast<std::ptrdiff_t>(ahead), backward.end());
  return actions;
}

// Groups of as many micro-batches as there are stages pass through one chunk after the other: the first of a group comes back
// from the last stage when the first stage has passed the last of it on.
std::vector<Action> in_groups(Work work, const PipelineShape& shape) {
  std::vector<Action> actions;
  for (std::size_t begin = 0; begin < shape.micro_batches; begin += shape.stages) {
    for (std::size_t c = 0; c < shape.chunks; ++c) {
      const std::size_t chunk = work == Work::forward ? c : shape.chunks - 1 - c;
      for (std::size_t m = begin; m < std::min(shape.micro_batches, begin + shape.stages); ++m) {
        actions.push_back({work, m, chunk});
      }
    }
  }
  return actions;
}

Schedule gpipe(const PipelineShape& shape) {
  const std::vector<Action> forward = in_groups(Work::forward, shape);
  return Schedule(shape.stages, interleave(forward, in_groups(Work::backward, shape), forward.size()));
}

Schedule one_forward_one_backward(const PipelineShape& shape) {
  Schedule schedule;
  for (std::size_t s = 0; s < shape.stages; ++s) {
    schedule.push_back(interleave(in_groups(Work::forward, shape), in_groups(Work::backward, shape), shape.stages - 1 - s));
  }
  return schedule;
}

Schedule interleaved(const PipelineShape& shape) {
  if (shape.micro_batches % shape.stages != 0) {
    fail_field(ErrorKind::usage, schedule_field,
               "interleaved, with {} micro-batches in {} stages; expected a multiple of the stages", shape.micro_batches,
               shape.stages);
  }
  Schedule schedule;
  for (std::size_t s = 0; s < shape.stages; ++s) {
    schedule.push_back(interleave(in_groups(Work::forward, shape), in_groups(Work::backward, shape),
                                  2 * (shape.stages - 1 - s) + (shape.chunks - 1) * shape.stages));
  }
  return schedule;
}

constexpr std::array schedules{
    NamedSchedule{"gpipe", "all forward passes, then all backward passes (Huang et al. 2019)", false, &gpipe},
    NamedSchedule{"1f1b",
                  "a backward pass as soon as there is one: at most as many micro-batches in flight as stages follow "
                  "(Narayanan et al. 2019)",
                  false, &one_forward_one_backward},
    NamedSchedule{"interleaved",
                  "1f1b over several parts of the net for each stage: a smaller bubble for more messages "
                  "(Narayanan et al. 2021)",
                  true, &interleaved},
};

// Runs through a schedule as its stages do. visit(stage, action) tells that an action can begin, and nothing that it waits for
// comes later. Throws where a stage waits for ever.
template <typename Visit>
void play(const Schedule& schedule, const PipelineShape& shape, Visit&& visit) {
  // By part and micro-batch.
  std::array<std::vector<std::uint8_t>, 2> done;
  for (auto& each : done) each.assign(shape.parts() * shape.micro_batches, 0);
  const auto is_done = [&](Work work, std::size_t part, std::size_t micro_batch) -> std::uint8_t& {
    return done[static_cast<std::size_t>(work)][part * shape.micro_batches + micro_batch];
  };
  const auto can_begin = [&](const Action& action, std::size_t part) {
    const std::size_t m = action.micro_batch;
    if (action.work == Work::forward) return part == 0 || is_done(Work::forward, part - 1, m) != 0;
    return is_done(Work::forward, part, m) != 0 && (part + 1 == shape.parts() || is_done(Work::backward, part + 1, m) != 0);
  };
  std::vector<std::size_t> next(schedule.size(), 0);
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t s = 0; s < schedule.size(); ++s) {
      for (; next[s] < schedule[s].size(); ++next[s], moved = true) {
        const Action& action = schedule[s][next[s]];
        const std::size_t part = shape.part(s, action.chunk);
        if (!can_begin(action, part)) break;
        visit(s, action);
        is_done(action.work, part, action.micro_batch) = 1;
      }
    }
  }
  for (std::size_t s = 0; s < schedule.size(); ++s) {
    if (next[s] == schedule[s].size()) continue;
    const Action& action = schedule[s][next[s]];
    fail(ErrorKind::internal, "schedule: stage {} waits for ever to pass micro-batch {} {} through chunk {}", s,
         action.micro_batch, action.work == Work::forward ? "forward" : "backward", action.chunk);
  }
}

// That a stage passes every micro-batch once each way, in ascending order, through every chunk.
void check_stage(const std::vector<Action>& actions, std::size_t stage, const PipelineShape& shape, bool forward_only) {
  const std::size_t ways = forward_only ? 1 : 2;
  std::vector<std::size_t> passed(ways * shape.chunks, 0);  // micro-batches, by way and chunk
  for (const Action& action : actions) {
    const std::size_t way = static_cast<std::size_t>(action.work);
    if (way >= ways || action.chunk >= shape.chunks || action.micro_batch != passed[way * shape.chunks + action.chunk]) {
      fail(ErrorKind::internal, "schedule: stage {} passes micro-batch {} {} through chunk {} out of turn", stage,
           action.micro_batch, action.work == Work::forward ? "forward" : "backward", action.chunk);
    }
    ++passed[way * shape.chunks + action.chunk];
  }
  for (const std::size_t count : passed) {
    if (count != shape.micro_batches) {
      fail(ErrorKind::internal, "schedule: stage {} passes {} of {} micro-batches through a chunk", stage, count,
           shape.micro_batches);
    }
  }
}

}  // namespace

std::optional<StageAction> next_action(const PipelineShape& shape, const StageAction& made) {
  std::size_t part = shape.part(made.stage, made.action.chunk);
  if (made.action.work == Work::forward) {
    if (++part == shape.parts()) return std::nullopt;
  } else {
    if (part-- == 0) return std::nullopt;
  }
  return StageAction{part % shape.stages, {made.action.work, made.action.micro_batch, part / shape.stages}};
}

std::span<const NamedSchedule> named_schedules() { return schedules; }

std::vector<std::string> schedule_names() { return names_of(schedules); }

const NamedSchedule& find_schedule(std::string_view name) { return find_named(schedules, name, marked_field(schedule_field)); }

std::size_t chunks_or_usual(std::string_view schedule, std::size_t given) {
  if (given != 0) return given;
  return find_schedule(schedule).takes_chunks ? 2 : 1;
}

void require_chunks(std::string_view schedule, std::size_t chunks) {
  const bool takes_chunks = find_schedule(schedule).takes_chunks;
  if (takes_chunks == (chunks > 1)) return;
  fail_field(ErrorKind::usage, schedule_field, "{}, with {} parts of the net for each stage; expected {}", schedule, chunks,
             takes_chunks ? "at least 2" : "1");
}

Schedule make_schedule(std::string_view name, const PipelineShape& shape) {
  const NamedSchedule& named = find_schedule(name);
  if (shape.stages == 0 || shape.micro_batches == 0 || shape.chunks == 0) {
    fail_field(ErrorKind::usage, schedule_field, "{} stages, {} micro-batches and {} chunks; expected at least one of each",
               shape.stages, shape.micro_batches, shape.chunks);
  }
  require_chunks(name, shape.chunks);
  Schedule schedule = named.make(shape);
  check(schedule, shape);
  return schedule;
}

Schedule forward_schedule(const PipelineShape& shape) { return Schedule(shape.stages, in_groups(Work::forward, shape)); }

void check(const Schedule& schedule, const PipelineShape& shape, bool forward_only) {
  if (schedule.size() != shape.stages) {
    fail(ErrorKind::internal, "schedule: {} stages; expected {}", schedule.size(), shape.stages);
  }
  for (std::size_t s = 0; s < schedule.size(); ++s) check_stage(schedule[s], s, shape, forward_only);
  play(schedule, shape, [](std::size_t, const Action&) {});
}

Simulation simulate(const Schedule& schedule, const PipelineShape& shape, std::span<const PassCosts> costs, double message) {
  if (costs.size() != shape.parts()) {
    fail(ErrorKind::internal, "schedule: costs of {} parts; expected {}", costs.size(), shape.parts());
  }
  std::array<std::vector<double>, 2> ends;
  for (auto& each : ends) each.assign(shape.parts() * shape.micro_batches, 0);
  const auto end_of = [&](Work work, std::size_t part, std::size_t micro_batch) -> double& {
    return ends[static_cast<std::size_t>(work)][part * shape.micro_batches + micro_batch];
  };
  const double way = shape.stages > 1 ? message : 0;
  Simulation result;
  result.events.resize(schedule.size());
  result.in_flight.assign(schedule.size(), 0);
  std::vector<double> free(schedule.size(), 0);
  std::vector<std::size_t> in_flight(schedule.size(), 0);
  play(schedule, shape, [&](std::size_t stage, const Action& action) {
    const bool is_forward = action.work == Work::forward;
    const std::size_t part = shape.part(stage, action.chunk);
    double begin = free[stage];
    if (is_forward && part > 0) begin = std::max(begin, end_of(Work::forward, part - 1, action.micro_batch) + way);
    if (!is_forward && part + 1 < shape.parts()) {
      begin = std::max(begin, end_of(Work::backward, part + 1, action.micro_batch) + way);
    }
    const double end = begin + (is_forward ? costs[part].forward : costs[part].backward);
    end_of(action.work, part, action.micro_batch) = free[stage] = end;
    result.seconds = std::max(result.seconds, end);
    result.events[stage].push_back(
        {is_forward ? EventKind::forward : EventKind::backward, action.micro_batch, action.chunk, begin, end});
    if (is_forward) {
      result.in_flight[stage] = std::max(result.in_flight[stage], ++in_flight[stage]);
    } else if (in_flight[stage] > 0) {
      --in_flight[stage];
    }
  });
  result.bubble = bubble_of(result.events);
  return result;
}

}  // namespace bitloom::train
