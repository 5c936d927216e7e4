#include "plan/float_plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/suggest.h"
#include "plan/float_layout.h"
#include "plan/float_memory.h"
#include "plan/float_time.h"
#include "plan/float_traffic.h"
#include "train/parallel/schedule.h"
#include "train/parallel/stage_messages.h"

namespace bitloom::plan {
namespace {

struct NamedRecompute {
  const char* name;
  Recompute recompute;
};
constexpr NamedRecompute recomputes[] = {{"none", Recompute::none}, {"block", Recompute::block}, {"stage", Recompute::stage}};

// Costs of every part's passes, in seconds: computing alone, and with what groups do in them.
struct Costs {
  std::vector<train::PassCosts> computing, whole;
};

Costs costs_of(const FloatLayout& layout, const FloatTimes& times) {
  Costs costs;
  for (std::size_t part = 0; part < layout.shape.parts(); ++part) {
    costs.computing.push_back(times.computing(part));
    costs.whole.push_back(times.whole(part));
  }
  return costs;
}

StagePlan plan_stage(const FloatLayout& layout, const FloatTimes& times, const Costs& costs, std::size_t stage,
                     std::span<const train::Action> actions) {
  StagePlan plan;
  for (std::size_t chunk = 0; chunk < layout.shape.chunks; ++chunk) {
    const std::size_t part = layout.shape.part(stage, chunk);
    plan.layers.push_back(layout.parts[part]);
    plan.compute += costs.computing[part].forward + costs.computing[part].backward;
    plan.forward += costs.whole[part].forward;
    plan.backward += costs.whole[part].backward;
  }
  const StageShards shards = shards_of(layout, stage);
  const ShardNeeds needs = needs_of(layout, shards, stage, actions);
  plan.memory = memory_of(layout, stage, actions, shards, needs);
  set_traffic(layout, stage, shards, needs, plan);
  plan.data_seconds = times.data_seconds(stage);
  return plan;
}

// A step ends when every stage has passed its last micro-batch backward and its gradients are summed.
void plan_time(const FloatLayout& layout, const FloatTimes& times, const Costs& costs, const train::Schedule& schedule,
               FloatPlan& plan) {
  plan.bubble = train::simulate(schedule, layout.shape, costs.computing).bubble;
  const train::Simulation step = train::simulate(schedule, layout.shape, costs.whole, times.message());
  double busy = 0;
  for (std::size_t s = 0; s < layout.stages; ++s) {
    const double last_backward = costs.whole[layout.shape.part(s, 0)].backward;
    plan.seconds = std::max(plan.seconds, step.events[s].back().end + times.after_passes(s, last_backward));
    busy += static_cast<double>(plan.micro_batches) * plan.stages[s].compute + times.muon_seconds(s);
  }
  plan.computing = busy / (static_cast<double>(layout.stages) * plan.seconds);
}

// "" or why stages cannot hand on a micro-batch, for a grid and options that have nothing else against them.
std::string reason_against_handing_on(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options) {
  const auto stages = static_cast<std::size_t>(grid.pipeline);
  std::uint64_t largest = 0;  // wherever the net is cut, for which most models need no layout
  for (std::size_t i = 0; i + 1 < model.layers.size(); ++i) largest = std::max(largest, model.layers[i].output);
  largest *= dtype_size(options.train.values);
  if (train::reason_against_messages(stages, options.micro_batch, largest).empty()) return "";
  const FloatLayout layout = layout_of(model, grid, options);
  largest = 0;
  for (std::size_t part = 0; part + 1 < layout.shape.parts(); ++part) {
    largest = std::max(largest, layout.output_bytes(part) / options.micro_batch);
  }
  return train::reason_against_messages(stages, options.micro_batch, largest);
}

}  // namespace

nlohmann::json to_json(const GroupBytes& bytes) {
  return {{"sums", bytes.sums},
          {"maxima", bytes.maxima},
          {"reduce_scatters", bytes.reduce_scatters},
          {"all_gathers", bytes.all_gathers},
          {"messages", bytes.messages},
          {"broadcasts", bytes.broadcasts}};
}

std::vector<std::string> recompute_names() { return names_of(recomputes); }

Recompute find_recompute(std::string_view name) { return find_named(recomputes, name, marked_field("recompute")).recompute; }

std::string reason_against(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options) {
  const std::size_t tensor = to_size(grid.tensor);
  const std::size_t data = to_size(grid.data);
  if (tensor > 1 && model.heads == 0) {
    return fmt::format("{}: {}; expected 1: {} has no attention", marked_field("tensor"), tensor, model.name);
  }
  if (tensor > 1 && model.heads % tensor != 0) {
    return fmt::format("{}: {}; expected a divisor of the {} heads", marked_field("tensor"), tensor, model.heads);
  }
  const std::size_t parts = to_size(grid.pipeline) * (grid.pipeline > 1 ? options.chunks : 1);
  if (parts > model.layers.size() && options.chunks > 1) {
    return fmt::format(
        "{}: {} of each of the {} stages, {} in all; expected at most the {} layers, the embedding and the last "
        "norm among them",
        marked_field("chunks"), options.chunks, grid.pipeline, parts, model.layers.size());
  }
  if (parts > model.layers.size()) {
    return fmt::format("{}: {}; expected at most the {} layers, the embedding and the last norm among them",
                       marked_field("pipeline"), parts, model.layers.size());
  }
  if (!options.partition.empty() &&
      (options.partition.size() != parts || options.partition.back().last != model.layers.size())) {
    return fmt::format("{}: {} parts of {} layers; expected {} of {}", marked_field("partition"), options.partition.size(),
                       options.partition.back().last, parts, model.layers.size());
  }
  if (const std::string reason = mpi::reason_against_shards(grid, options.shard_ranks); !reason.empty()) return reason;
  if (const std::string reason = train::reason_against_rule(options.train.optimizer.rule, grid, options.shard);
      !reason.empty()) {
    return reason;
  }
  if (const std::string reason = train::reason_against_block_scales(options.train, grid); !reason.empty()) return reason;
  if (options.compress_rank > 0) {
    const std::string reason = train::reason_against_compression(options.compress_rank, grid, options.shard,
                                                                 options.shard_ranks, options.compress_warm);
    if (!reason.empty()) return reason;
  }
  if (options.batch == 0 || options.batch % data != 0) {
    return fmt::format("{}: {}; expected a multiple of the {} data-parallel ranks", marked_field("batch"), options.batch, data);
  }
  if (options.micro_batch == 0) return "";
  if (options.batch / data % options.micro_batch != 0) {
    return fmt::format("{}: {}; expected a divisor of {}, a rank's share of the batch", marked_field("micro_batch"),
                       options.micro_batch, options.batch / data);
  }
  if (grid.pipeline == 1) return "";
  try {
    train::make_schedule(options.schedule,
                         {to_size(grid.pipeline), options.batch / data / options.micro_batch, options.chunks});
  } catch (const Error& error) {
    return error.what();
  }
  return reason_against_handing_on(model, grid, options);
}

bool is_possible(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options,
                 const FloatCluster& cluster) {
  return reason_against(model, grid, options).empty() && plan_grid(model, grid, options, cluster).fits;
}

std::string possible_grids(const FloatModel& model, int ranks, const mpi::GridShape& wanted, const FloatOptions& options) {
  return mpi::possible_shapes(ranks, wanted,
                              [&](const mpi::GridShape& grid) { return reason_against(model, grid, options).empty(); });
}

void require_grid(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options) {
  if (const std::string reason = reason_against(model, grid, options); !reason.empty()) {
    fail(ErrorKind::usage, "{}; {}", reason, possible_grids(model, grid.ranks(), grid, options));
  }
}

FloatPlan plan_grid(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options,
                    const FloatCluster& cluster) {
  if (options.micro_batch == 0) fail_field(ErrorKind::usage, "micro_batch", "0; expected at least 1");
  require_grid(model, grid, options);
  const FloatLayout layout = layout_of(model, grid, options);
  const FloatTimes times(layout, cluster);
  // A process alone passes each micro-batch forward and backward before the next.
  const train::Schedule schedule = train::make_schedule(layout.stages == 1 ? "1f1b" : options.schedule, layout.shape);
  FloatPlan plan;
  plan.grid = grid;
  plan.micro_batch = options.micro_batch;
  plan.micro_batches = layout.shape.micro_batches;
  const Costs costs = costs_of(layout, times);
  for (std::size_t s = 0; s < layout.stages; ++s) {
    plan.stages.push_back(plan_stage(layout, times, costs, s, schedule[s]));
    const FloatMemory& memory = plan.stages.back().memory;
    if (memory.total() > plan.memory().total()) plan.largest = s;
    plan.fits &= memory.total() <= cluster.memory;
  }
  plan_time(layout, times, costs, schedule, plan);
  return plan;
}

}  // namespace bitloom::plan
