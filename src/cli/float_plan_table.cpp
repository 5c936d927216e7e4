#include "cli/float_plan_table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;
using plan::FloatMemory;
using plan::FloatPlan;
using plan::GroupBytes;
using plan::StagePlan;

std::string seconds_text(double seconds) {
  return seconds < 1 ? fmt::format("{:.1f} ms", 1e3 * seconds) : fmt::format("{:.2f} s", seconds);
}

// Three digits, for a token or an example.
std::string short_seconds_text(double seconds) {
  const auto digits = [](double x) { return fmt::format("{:.{}f}", x, x < 10 ? 2 : x < 100 ? 1 : 0); };
  if (seconds >= 1) return digits(seconds) + " s";
  return seconds >= 1e-3 ? digits(1e3 * seconds) + " ms" : digits(1e6 * seconds) + " us";
}

// The most of any stage.
template <typename Get>
std::uint64_t most_of(const FloatPlan& plan, Get&& get) {
  std::uint64_t most = 0;
  for (const StagePlan& stage : plan.stages) most = std::max<std::uint64_t>(most, get(stage));
  return most;
}

std::string dash_or_bytes(std::uint64_t bytes) { return bytes == 0 ? "-" : format_bytes(bytes); }

std::string layers_text(const plan::FloatModel& model, const StagePlan& stage) {
  const auto& [first, last] = stage.layers.front();
  std::string text = model.layers[first].name;
  if (last - first > 1) text += " .. " + model.layers[last - 1].name;
  return stage.layers.size() == 1 ? text : fmt::format("{}, ... ({} parts)", text, stage.layers.size());
}

// Unit that speed is counted in: tokens or, where examples have none, examples.
std::string unit_of(const plan::FloatModel& model) { return model.tokens > 1 ? "token" : model.example; }

template <typename Plan>
double speed_of(const plan::FloatModel& model, const Plan& plan, std::size_t batch) {
  return static_cast<double>(batch * model.tokens) / plan.seconds;
}

template <typename Plan>
double seconds_of(const plan::FloatModel& model, const Plan& plan, std::size_t batch) {
  return plan.seconds / static_cast<double>(batch * model.tokens);
}

Json to_json(const FloatMemory& memory) {
  return {{"parameters", memory.parameters}, {"gradients", memory.gradients},     {"optimizer", memory.optimizer},
          {"stash", memory.stash},           {"activations", memory.activations}, {"gathered", memory.gathered},
          {"total", memory.total()},         {"checkpoint", memory.checkpoint}};
}

}  // namespace

void print_grids(Terminal& terminal, const plan::FloatModel& model, std::span<const FloatPlan> plans, std::size_t batch) {
  terminal.print("  {:<16}{:>7}{:>14}{:>12}{:>12}{:>12}{:>8}{:>12}{:>12}", "grid", "at once", "memory", "tensor", "pipeline",
                 "data", "bubble", "a step", unit_of(model) + "s/s");
  for (const FloatPlan& plan : plans) {
    const auto bytes = [&](GroupBytes StagePlan::*group) {
      return dash_or_bytes(most_of(plan, [&](const StagePlan& stage) { return (stage.*group).total(); }));
    };
    terminal.print("  {:<16}{:>7}{:>14}{:>12}{:>12}{:>12}{:>7.1f}%{:>12}{:>12.0f}{}", mpi::described(plan.grid),
                   plan.micro_batch, format_bytes(plan.memory().total()), bytes(&StagePlan::tensor),
                   bytes(&StagePlan::pipeline), bytes(&StagePlan::data), 100 * plan.bubble, seconds_text(plan.seconds),
                   speed_of(model, plan, batch), plan.fits ? "" : "  does not fit");
  }
}

void print_stages(Terminal& terminal, const plan::FloatModel& model, const FloatPlan& plan, std::size_t batch) {
  terminal.print("\n{} (data x pipeline x tensor), micro-batches x {}s: {} x {}; memory of a rank:", mpi::described(plan.grid),
                 model.example, plan.micro_batches, plan.micro_batch);
  terminal.print("  {:<6}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}", "stage", "parameters", "gradients", "optimiser",
                 "backward", "on the way", "gathered", "all");
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const FloatMemory& memory = plan.stages[s].memory;
    terminal.print("  {:<6}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}{:>12}", s, format_bytes(memory.parameters),
                   format_bytes(memory.gradients), format_bytes(memory.optimizer), format_bytes(memory.stash),
                   format_bytes(memory.activations), dash_or_bytes(memory.gathered), format_bytes(memory.total()));
  }
  std::uint64_t copies = 0;
  for (const StagePlan& stage : plan.stages) copies = std::max(copies, stage.memory.checkpoint);
  terminal.print("  and up to {} in its host's memory while a checkpoint is written; without room, training waits",
                 format_bytes(copies));
  terminal.print("\nbytes that a rank sends in a step, and its time for a micro-batch:");
  terminal.print("  {:<6}{:>12}{:>12}{:>12}{:>12}  {}", "stage", "tensor", "pipeline", "data", "computing", "layers");
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    terminal.print("  {:<6}{:>12}{:>12}{:>12}{:>12}  {}", s, dash_or_bytes(stage.tensor.total()),
                   dash_or_bytes(stage.pipeline.total()), dash_or_bytes(stage.data.total()), seconds_text(stage.compute),
                   layers_text(model, stage));
  }
  terminal.print("\nbubble {:.1f}%: ranks wait because of the schedule and of stages that are not equal", 100 * plan.bubble);
  terminal.print("a step takes {}, {:.0f} {}s/s; ranks compute {:.0f}% of the time", seconds_text(plan.seconds),
                 speed_of(model, plan, batch), unit_of(model), 100 * plan.computing);
}

void print_compressions(Terminal& terminal, const plan::FloatModel& model, std::span<const plan::CompressionPlan> plans,
                        std::size_t batch) {
  const FloatPlan& whole = plans.front().plan;
  const auto bytes = [](const FloatPlan& plan) { return plan.stages.front().data.total(); };
  terminal.print("\n{} data-parallel ranks that exchange gradients whole, or by factors of a rank (--compress-rank):",
                 whole.grid.data);
  terminal.print("  {:<8}{:>14}{:>10}{:>12}{:>12}{:>13}", "rank", "bytes sent", "", "a step", unit_of(model) + "s/s",
                 "per " + unit_of(model));
  for (const auto& [rank, plan] : plans) {
    terminal.print("  {:<8}{:>14}{:>9.1f}%{:>12}{:>12.0f}{:>13}{}", rank == 0 ? "whole" : std::to_string(rank),
                   format_bytes(bytes(plan)), 100 * static_cast<double>(bytes(plan)) / static_cast<double>(bytes(whole)),
                   seconds_text(plan.seconds), speed_of(model, plan, batch), short_seconds_text(seconds_of(model, plan, batch)),
                   plan.fits ? "" : "  does not fit");
  }
  if (plans.size() == 1) {
    terminal.print("factors would not be much smaller: most parameters are tables of tokens or vectors, which go as they are");
  }
}

void print_local_steps(Terminal& terminal, const plan::FloatModel& model, std::span<const plan::LocalPlan> plans,
                       std::size_t batch) {
  const auto bytes = [](double x) { return format_bytes(static_cast<std::uint64_t>(x)); };
  terminal.print(
      "\nworkers that train by themselves, each with its share of the batch, and share what they learn at intervals "
      "(--exchange local), through a folder on a host with the same link:");
  terminal.print("  {:<8}{:>12}{:>12}{:>11}{:>11}{:>13}{:>11}", "steps", "message", "reply", "a step", unit_of(model) + "s/s",
                 "per " + unit_of(model), "computing");
  for (const plan::LocalPlan& plan : plans) {
    terminal.print("  {:<8}{:>12}{:>12}{:>11}{:>11.0f}{:>13}{:>10.0f}%", plan.inner_steps, bytes(plan.message_bytes),
                   bytes(plan.reply_bytes), seconds_text(plan.seconds), speed_of(model, plan, batch),
                   short_seconds_text(seconds_of(model, plan, batch)), 100 * plan.computing);
  }
  terminal.print("  memory of a worker {}{}, and {} of its host's for what is shared and what is kept",
                 format_bytes(plans.front().memory), plans.front().fits ? "" : ", which does not fit",
                 format_bytes(plans.front().kept));
  constexpr double enough = 0.95;
  const auto found = std::ranges::find_if(plans, [&](const plan::LocalPlan& plan) { return plan.computing >= enough; });
  if (found == plans.end()) {
    terminal.print("links still cost more than {:.0f}% of the time: a smaller --sent-share or more --inner-steps",
                   100 * (1 - enough));
  } else {
    terminal.print(
        "with --inner-steps {} or more links cost less than {:.0f}% of the time; the more there are, the less a step learns",
        found->inner_steps, 100 * (1 - enough));
  }
}

namespace {

// Names for people, in JSON, and of the number there.
struct ExchangeName {
  const char *name, *key, *number;
};
const ExchangeName& exchange_name(plan::Exchange exchange) {
  static constexpr std::array<ExchangeName, 3> names = {{{"whole gradients", "whole", nullptr},
                                                         {"factors", "factors", "compress_rank"},
                                                         {"local steps", "local_steps", "inner_steps"}}};
  return names[static_cast<std::size_t>(exchange)];
}

std::string with_option(const plan::ExchangeWay& way) {
  const char* const name = exchange_name(way.exchange).name;
  switch (way.exchange) {
    case plan::Exchange::whole: return name;
    case plan::Exchange::factors: return fmt::format("{} (--compress-rank {})", name, way.number);
    case plan::Exchange::local_steps: return fmt::format("{} (--exchange local --inner-steps {})", name, way.number);
  }
  return name;
}

Json to_json(const plan::ExchangeWay& way, const std::string& unit) {
  const ExchangeName& names = exchange_name(way.exchange);
  Json json = {{"exchange", names.key}, {"seconds_per_" + unit, way.seconds}, {"waiting_share", way.waiting}};
  if (names.number != nullptr) json[names.number] = way.number;
  return json;
}

}  // namespace

void print_advice(Terminal& terminal, const plan::FloatModel& model, const plan::ExchangeAdvice& advice,
                  const plan::FloatCluster& cluster, const FloatPlan& grid, std::size_t batch) {
  const std::string unit = unit_of(model);
  const plan::ExchangeWay& chosen = advice.chosen;
  std::string text = fmt::format("advice for data-parallel ranks with links of {}: {}, {} per {}, of which ranks wait {:.0f}%",
                                 plan::to_string(cluster.link), with_option(chosen), short_seconds_text(chosen.seconds), unit,
                                 100 * chosen.waiting);
  std::vector<std::string> before, after;  // of the kinds, in their order
  for (const plan::ExchangeWay& way : advice.best) {
    if (way.exchange == chosen.exchange) continue;
    (way.exchange < chosen.exchange ? before : after)
        .push_back(
            fmt::format("{} take {} ({:.0f}% waiting)", with_option(way), short_seconds_text(way.seconds), 100 * way.waiting));
  }
  if (!before.empty()) text += fmt::format(", since {}", fmt::join(before, " and "));
  if (!after.empty()) text += fmt::format("; {}, which saves little or nothing", fmt::join(after, " and "));
  text += fmt::format("; computing alone takes {}", short_seconds_text(advice.computing));
  const double best = seconds_of(model, grid, batch);
  if (grid.fits && grid.grid.data != grid.grid.ranks() && best < chosen.seconds) {
    text += fmt::format("; the grid {} takes {}", mpi::described(grid.grid), short_seconds_text(best));
  }
  terminal.print("\n{}", text);
}

Json to_json(const plan::ExchangeAdvice& advice, const plan::FloatModel& model) {
  const std::string unit = unit_of(model);
  Json json = to_json(advice.chosen, unit);
  json["computing_seconds_per_" + unit] = advice.computing;
  json["ways"] = Json::array();
  for (const plan::ExchangeWay& way : advice.best) json["ways"].push_back(to_json(way, unit));
  return json;
}

Json to_json(const plan::LocalPlan& plan, const plan::FloatModel& model, std::size_t batch) {
  return {{"inner_steps", plan.inner_steps},
          {"message_bytes", plan.message_bytes},
          {"reply_bytes", plan.reply_bytes},
          {"step_seconds", plan.seconds},
          {"seconds_per_" + unit_of(model), seconds_of(model, plan, batch)},
          {"computing_share", plan.computing},
          {"memory_bytes", plan.memory},
          {"kept_bytes", plan.kept},
          {"fits", plan.fits}};
}

Json to_json(const FloatPlan& plan, const plan::FloatModel& model, std::size_t batch) {
  Json stages = Json::array();
  for (const StagePlan& stage : plan.stages) {
    Json layers = Json::array();
    for (const train::LayerRange& range : stage.layers) layers.push_back({range.first, range.last});
    stages.push_back({{"layers", layers},
                      {"memory", to_json(stage.memory)},
                      {"bytes_sent",
                       {{"tensor", plan::to_json(stage.tensor)},
                        {"pipeline", plan::to_json(stage.pipeline)},
                        {"data", plan::to_json(stage.data)}}},
                      {"layer_sums", stage.layer_sums},
                      {"compute_seconds", stage.compute},
                      {"forward_seconds", stage.forward},
                      {"backward_seconds", stage.backward},
                      {"data_seconds", stage.data_seconds}});
  }
  return {{"data", plan.grid.data},
          {"pipeline", plan.grid.pipeline},
          {"tensor", plan.grid.tensor},
          {"micro_batch", plan.micro_batch},
          {"micro_batches", plan.micro_batches},
          {"stages", stages},
          {"largest_stage", plan.largest},
          {"memory", to_json(plan.memory())},
          {"fits", plan.fits},
          {"bubble", plan.bubble},
          {"computing_share", plan.computing},
          {"step_seconds", plan.seconds},
          {"seconds_per_" + unit_of(model), seconds_of(model, plan, batch)},
          {unit_of(model) + "s_per_second", speed_of(model, plan, batch)}};
}

}  // namespace bitloom::cli
