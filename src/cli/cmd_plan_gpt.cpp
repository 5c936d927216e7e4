// bitloom plan gpt: what training a GPT takes, in one process or on a grid of ranks, before any memory is asked for.
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/gpt_options.h"
#include "cli/grid_options.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/file.h"
#include "models/gpt/gpt.h"
#include "models/gpt/memory.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

// A way to keep less for the backward pass.
struct Saving {
  std::string name;
  unsigned bits = 0;
  bool recompute = false;
};

Json to_json(const models::GptMemory& memory) {
  return {{"parameters", memory.parameters}, {"gradients", memory.gradients},     {"optimizer", memory.optimizer},
          {"stash", memory.stash},           {"activations", memory.activations}, {"total", memory.total()},
          {"checkpoint", memory.checkpoint}};
}

// Prints a row for each way and gives them as JSON.
Json compare_savings(Terminal& terminal, const models::GptConfig& config, const train::TrainOptions& options,
                     std::uint64_t limit) {
  terminal.print("\nkept for the backward pass, and the most sequences at once within {}:", format_bytes(limit));
  terminal.print("  {:<24}{:>14}{:>9}{:>24}{:>12}", "", "a sequence", "saved", "saved, as papers count", "at once");
  std::uint64_t plain = 0;
  Json rows = Json::array();
  for (const Saving& saving :
       {Saving{"everything", 0, false}, Saving{"4 bits of activations", 4, false}, Saving{"3 bits", 3, false},
        Saving{"2 bits", 2, false}, Saving{"1 bit", 1, false}, Saving{"--recompute block", 0, true}}) {
    models::GptConfig changed = config;
    changed.activation_bits = saving.bits;
    changed.recompute = saving.recompute;
    const std::uint64_t stash = models::predict_memory(changed, 1, options).stash;
    if (plain == 0) plain = stash;
    const double saved = 1 - static_cast<double>(stash) / static_cast<double>(plain);
    const double paper = saving.bits == 0 ? 0 : models::paper_saving(config, saving.bits);
    const std::size_t most = models::largest_micro_batch(changed, options, limit);
    terminal.print("  {:<24}{:>14}{:>8.1f}%{:>24}{:>12}", saving.name, format_bytes(stash), 100 * saved,
                   paper > 0 ? fmt::format("{:.0f}%", 100 * paper) : "", most);
    rows.push_back({{"keeps", saving.name}, {"stash_bytes_per_sequence", stash}, {"saved", saved}, {"sequences", most}});
    if (paper > 0) rows.back()["saved_as_papers_count"] = paper;
  }
  return rows;
}

plan::FloatOptions training_of(const GptSettings& settings, const models::GptConfig& config) {
  plan::FloatOptions options;
  options.batch = settings.batch;
  options.micro_batch = settings.micro_batch_of(settings.batch).value_or(0);
  options.recompute = plan::find_recompute(settings.recompute);
  options.activation_bits = config.activation_bits;
  options.train = settings.make_options();
  return options;
}

// Prints what one process takes and gives it as JSON.
Json plan_alone(Terminal& terminal, const GptSettings& settings, const models::GptConfig& config, std::uint64_t limit) {
  train::TrainOptions train = settings.make_options();
  plan::FloatCluster cluster;
  cluster.memory = limit;
  const std::size_t micro_batch = plan::choose_micro_batch(plan::describe_gpt(config), {}, training_of(settings, config),
                                                           cluster, settings.enough_tokens(), GptSettings::savers);
  train.micro_batches = settings.batch / micro_batch;
  const models::GptMemory memory = models::predict_memory(config, micro_batch, train);
  terminal.print("\nmemory, in {}, with {} of {} sequences at once:", settings.values, micro_batch, settings.batch);
  const auto row = [&](const char* name, std::uint64_t bytes) { terminal.print("  {:<24}{:>14}", name, format_bytes(bytes)); };
  row("parameters", memory.parameters);
  row("gradients", memory.gradients);
  row("optimiser", memory.optimizer);
  row("kept for backward", memory.stash);
  row("on their way, about", memory.activations);
  row("all", memory.total());
  terminal.print("  and {} while a checkpoint is written; without room, training waits", format_bytes(memory.checkpoint));
  const Json savings = compare_savings(terminal, config, train, limit);
  return {{"micro_batch", micro_batch}, {"memory", to_json(memory)}, {"savings", savings}};
}

}  // namespace

int plan_gpt(Session& session, std::span<const std::string> args) {
  GptSettings settings;
  GridSettings grid_settings;
  std::size_t vocabulary = 50257;
  std::string json;
  Options options(
      "bitloom plan gpt [--net NAME] [--batch N] [--memory BYTES] [--ranks N [--tensor N] [--pipeline N]] [options]",
      "Tells what training a GPT takes in memory and operations, from its sizes alone. `bitloom train gpt` prints what it\n"
      "took beside it. With --ranks: memory, bytes and time of a step where that number of processes shares the training,\n"
      "on every grid of data x pipeline x tensor that is possible, best first, or on the one that is given.");
  options.everyday({"net",
                    "layers",
                    "heads",
                    "width",
                    "context",
                    "vocabulary",
                    "activation-bits",
                    "recompute",
                    "batch",
                    "micro-batch",
                    "memory",
                    "optimizer",
                    "dtype",
                    "master-weights",
                    "ranks",
                    "tensor",
                    "pipeline",
                    "pipeline-schedule",
                    "shard",
                    "link",
                    "host-link",
                    "ranks-per-host",
                    "gflops",
                    "json"});
  settings.declare(options, false);
  grid_settings.declare(options, 0);
  options.group("Plan");
  options.count("vocabulary", vocabulary, 2, 10000000, "Number of tokens: 257 of bytes, 50257 of GPT-2");
  options.text("json", json, "FILE", "JSON file for all figures");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  if (settings.recompute == "stage" && grid_settings.ranks == 0) {
    fail(ErrorKind::usage, "--recompute: stage has no effect; it needs --ranks");
  }
  grid_settings.measure(session, settings.dtype());
  session.on_root([&] {
    Terminal& terminal = session.terminal;
    const models::GptConfig config = settings.make_config(vocabulary);
    const std::uint64_t limit = settings.memory != 0 ? settings.memory : usable_memory({}, 1);
    const models::Gpt net(config, 0);
    const nn::Shape ids = {1, config.context};
    const double operations = 3 * net.cost(ids) / static_cast<double>(ids.size());
    terminal.print("net '{}': {} parameters, {} layers of width {}, {} heads, context {}, vocabulary {} padded to {}",
                   settings.net, format_count(config.parameters()), config.layers, config.width, config.heads, config.context,
                   config.vocabulary, config.padded_vocabulary());
    terminal.print("a token takes {:.3g} GFLOP, forward and backward; a step of {} sequences {:.3g} TFLOP", 1e-9 * operations,
                   settings.batch, 1e-12 * operations * static_cast<double>(settings.batch * config.context));
    Json result = grid_settings.ranks == 0 ? plan_alone(terminal, settings, config, limit)
                                           : plan_on_grids(terminal, plan::describe_gpt(config), grid_settings,
                                                           training_of(settings, config), limit);
    result["parameters"] = config.parameters();
    result["operations_per_token"] = operations;
    if (!json.empty()) write_atomically(json, result.dump(2) + "\n");
  });
  return exit_done;
}

}  // namespace bitloom::cli
