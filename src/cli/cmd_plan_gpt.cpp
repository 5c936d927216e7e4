// bitloom plan gpt: what training a GPT takes, in one process or on a grid of ranks, before any memory is asked for.
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/gpt_options.h"
#include "cli/grid_options.h"
#include "cli/plan_alone.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/file.h"
#include "models/gpt/memory.h"

namespace bitloom::cli {
namespace {

plan::FloatOptions training_of(const GptSettings& settings) {
  return planned_training(settings, settings.micro_batch_of(settings.batch).value_or(0));
}

AlonePlan alone(const GptSettings& settings, const models::GptConfig& config, const plan::FloatModel& model,
                std::uint64_t limit) {
  return {model,
          training_of(settings),
          settings.values,
          limit,
          settings.enough_tokens(),
          GptSettings::savers,
          [&config](unsigned bits) { return models::paper_saving(config, bits); }};
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
                    "compress-rank",
                    "link",
                    "host-link",
                    "ranks-per-host",
                    "gflops",
                    "json"});
  settings.declare(options, false);
  grid_settings.declare(options, 0);
  grid_settings.declare_compression(options, true);
  options.group("Plan");
  options.count("vocabulary", vocabulary, 2, 10000000, "Number of tokens: 257 of bytes, 50257 of GPT-2");
  options.text("json", json, "FILE", "JSON file for all figures");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  grid_settings.check_recompute(settings.recompute);
  grid_settings.measure(session, settings.dtype());
  session.on_root([&] {
    Terminal& terminal = session.terminal;
    const models::GptConfig config = settings.make_config(vocabulary);
    const std::uint64_t limit = settings.memory != 0 ? settings.memory : usable_memory({}, 1);
    const plan::FloatModel model = plan::describe_gpt(config);
    const double operations = 3 * model.operations() / static_cast<double>(config.context);
    terminal.print("net '{}': {} parameters, {} layers of width {}, {} heads, context {}, vocabulary {} padded to {}",
                   settings.net, format_count(config.parameters()), config.layers, config.width, config.heads, config.context,
                   config.vocabulary, config.padded_vocabulary());
    terminal.print("a token takes {:.3g} GFLOP, forward and backward; a step of {} sequences {:.3g} TFLOP", 1e-9 * operations,
                   settings.batch, 1e-12 * operations * static_cast<double>(settings.batch * config.context));
    nlohmann::json result = grid_settings.ranks == 0
                                ? plan_alone(terminal, alone(settings, config, model, limit))
                                : plan_on_grids(terminal, model, grid_settings, training_of(settings), limit);
    result["parameters"] = config.parameters();
    result["operations_per_token"] = operations;
    if (!json.empty()) write_atomically(json, result.dump(2) + "\n");
  });
  return exit_done;
}

}  // namespace bitloom::cli
