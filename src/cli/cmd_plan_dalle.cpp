// bitloom plan dalle: what training a text-to-image transformer takes, in one process or on a grid of ranks, before any memory
// is asked for.
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/dalle_options.h"
#include "cli/device.h"
#include "cli/grid_options.h"
#include "cli/plan_alone.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"

namespace bitloom::cli {
namespace {

plan::FloatOptions training_of(const DalleSettings& settings) {
  return planned_training(settings, settings.micro_batch_of(settings.batch).value_or(0));
}

AlonePlan alone(const DalleSettings& settings, const plan::FloatModel& model, std::uint64_t limit) {
  return {model, training_of(settings), settings.values, limit, settings.enough_tokens(), DalleSettings::savers, {}};
}

}  // namespace

int plan_dalle(Session& session, std::span<const std::string> args) {
  DalleSettings settings;
  GridSettings grid_settings;
  std::size_t vocabulary = 16384, grid = 0, codes = 0;
  std::string json;
  Options options(
      "bitloom plan dalle [--net NAME] [--batch N] [--memory BYTES] [--ranks N [--tensor N] [--pipeline N]] [options]",
      "Tells what training a text-to-image transformer takes in memory and operations, from its sizes alone. With --ranks:\n"
      "memory, bytes and time of a step where that number of processes shares the training, on every grid of data x\n"
      "pipeline x tensor that is possible, best first, or on the one that is given; and what compressed gradients save.");
  options.everyday({"net",
                    "layers",
                    "heads",
                    "width",
                    "text-positions",
                    "vocabulary",
                    "grid",
                    "codes",
                    "activation-bits",
                    "recompute",
                    "batch",
                    "micro-batch",
                    "memory",
                    "optimizer",
                    "dtype",
                    "ranks",
                    "tensor",
                    "pipeline",
                    "shard",
                    "ranks-per-host",
                    "link",
                    "host-link",
                    "gflops",
                    "pipeline-schedule",
                    "compress-rank",
                    "json"});
  settings.declare_plan(options);
  grid_settings.declare(options, 0);
  grid_settings.declare_compression(options, false);
  options.group("Plan");
  options.count("vocabulary", vocabulary, 2, 10000000, "Number of tokens of text");
  options.count("grid", grid, 0, 256, "Rows and columns of image tokens; 0: as the net has them");
  options.count("codes", codes, 0, 65536, "Number of codes of the discrete VAE; 0: as the net has them");
  options.text("json", json, "FILE", "JSON file for all figures");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  grid_settings.check_recompute(settings.recompute);
  grid_settings.measure(session, settings.dtype());
  session.on_root([&] {
    Terminal& terminal = session.terminal;
    const models::DalleConfig named = models::config_of(models::find_dalle(settings.net));
    const models::DalleConfig config =
        settings.make_config(vocabulary, grid == 0 ? named.grid : grid, codes == 0 ? named.codes : codes);
    const std::uint64_t limit = settings.memory != 0 ? settings.memory : usable_memory({}, 1);
    const plan::FloatModel model = plan::describe_dalle(config);
    const double operations = 3 * model.operations();
    const std::uint64_t square = std::uint64_t{config.width} * config.width;
    const std::uint64_t matrices = 12 * config.layers * square;
    terminal.print("net '{}': {} parameters, {} of them in the matrices of {} layers (12 x {} x {}^2), {} heads", settings.net,
                   format_count(config.parameters()), format_count(matrices), config.layers, config.layers, config.width,
                   config.heads);
    terminal.print("{} text tokens of {}, {} x {} image tokens of {} codes", config.text, config.text_vocabulary, config.grid,
                   config.grid, config.codes);
    terminal.print("a pair takes {:.3g} TFLOP, forward and backward; a step of {} pairs {:.3g} TFLOP", 1e-12 * operations,
                   settings.batch, 1e-12 * operations * static_cast<double>(settings.batch));
    nlohmann::json result = grid_settings.ranks == 0
                                ? plan_alone(terminal, alone(settings, model, limit))
                                : plan_on_grids(terminal, model, grid_settings, training_of(settings), limit);
    result["parameters"] = config.parameters();
    result["matrices"] = matrices;
    result["operations_per_pair"] = operations;
    if (!json.empty()) write_atomically(json, result.dump(2) + "\n");
  });
  return exit_done;
}

}  // namespace bitloom::cli
