#include "cli/plan_alone.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/progress.h"
#include "plan/float_grids.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

// A way to keep less for the backward pass.
struct Saving {
  const char* name;
  unsigned bits = 0;
  plan::Recompute recompute = plan::Recompute::none;
};
constexpr Saving savings[] = {{"everything"}, {"4 bits of activations", 4},
                              {"3 bits", 3},  {"2 bits", 2},
                              {"1 bit", 1},   {"--recompute block", 0, plan::Recompute::block}};

// Memory of one process, which gathers nothing.
Json memory_json(const plan::FloatMemory& memory) {
  return {{"parameters", memory.parameters}, {"gradients", memory.gradients},     {"optimizer", memory.optimizer},
          {"stash", memory.stash},           {"activations", memory.activations}, {"total", memory.total()},
          {"checkpoint", memory.checkpoint}};
}

plan::FloatMemory memory_with(const plan::FloatModel& model, const plan::FloatOptions& training) {
  return plan::plan_grid(model, {}, training, plan::FloatCluster()).memory();
}

// Prints a row for each way and gives them as JSON.
Json compare_savings(Terminal& terminal, const AlonePlan& plan) {
  const std::string& example = plan.model.example;
  terminal.print("\nkept for the backward pass, and the most {}s at once within {}:", example, format_bytes(plan.limit));
  terminal.print("  {:<24}{:>14}{:>9}{:>24}{:>12}", "", (example == "image" ? "an " : "a ") + example, "saved",
                 plan.paper_saving ? "saved, as papers count" : "", "at once");
  std::uint64_t plain = 0;
  Json rows = Json::array();
  for (const Saving& saving : savings) {
    if (saving.recompute != plan::Recompute::none && !plan.has_recompute) continue;
    plan::FloatOptions changed = plan.training;
    changed.activation_bits = saving.bits;
    changed.activation_quantiser = nn::Quantiser::few_bit;
    changed.recompute = saving.recompute;
    const plan::FloatModel model = plan.with_bits ? plan.with_bits(saving.bits) : plan.model;
    const auto memory_of = [&](std::size_t examples) {
      changed.batch = changed.micro_batch = examples;
      return memory_with(model, changed);
    };
    const std::uint64_t stash = memory_of(1).stash;
    if (plain == 0) plain = stash;
    const double saved = 1 - static_cast<double>(stash) / static_cast<double>(plain);
    const double paper = saving.bits == 0 || !plan.paper_saving ? 0 : plan.paper_saving(saving.bits);
    const std::size_t most = plan::most_examples([&](std::size_t examples) { return memory_of(examples).total(); }, plan.limit);
    terminal.print("  {:<24}{:>14}{:>8.1f}%{:>24}{:>12}", saving.name, format_bytes(stash), 100 * saved,
                   paper > 0 ? fmt::format("{:.0f}%", 100 * paper) : "", most);
    rows.push_back(
        {{"keeps", saving.name}, {fmt::format("stash_bytes_per_{}", example), stash}, {"saved", saved}, {example + "s", most}});
    if (paper > 0) rows.back()["saved_as_papers_count"] = paper;
  }
  return rows;
}

}  // namespace

Json plan_alone(Terminal& terminal, const AlonePlan& plan) {
  plan::FloatCluster cluster;
  cluster.memory = plan.limit;
  plan::FloatOptions training = plan.training;
  training.micro_batch = plan::choose_micro_batch(plan.model, {}, training, cluster, plan.enough, plan.savers);
  const plan::FloatMemory memory = memory_with(plan.model, training);
  terminal.print("\nmemory, in {}, with {} of {} {}s at once:", plan.values, training.micro_batch, training.batch,
                 plan.model.example);
  const auto row = [&](const char* name, std::uint64_t bytes) { terminal.print("  {:<24}{:>14}", name, format_bytes(bytes)); };
  row("parameters", memory.parameters);
  row("gradients", memory.gradients);
  row("optimiser", memory.optimizer);
  row("kept for backward", memory.stash);
  row("on their way, about", memory.activations);
  row("all", memory.total());
  terminal.print("  and {} while a checkpoint is written; without room, training waits", format_bytes(memory.checkpoint));
  const Json rows = compare_savings(terminal, plan);
  return {{"micro_batch", training.micro_batch}, {"memory", memory_json(memory)}, {"savings", rows}};
}

}  // namespace bitloom::cli
