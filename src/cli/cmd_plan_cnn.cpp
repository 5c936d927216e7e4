// bitloom plan cnn: what training a convolutional net takes, in one process or on a grid of ranks, before any memory is asked
// for.
#include <nlohmann/json.hpp>

#include "cli/cnn_options.h"
#include "cli/command.h"
#include "cli/device.h"
#include "cli/grid_options.h"
#include "cli/plan_alone.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "plan/cnn_model.h"

namespace bitloom::cli {

int plan_cnn(Session& session, std::span<const std::string> args) {
  CnnSettings settings;
  GridSettings grid_settings;
  std::size_t image_size = 32, channels = 3, classes = 10;
  std::string json;
  Options options(
      "bitloom plan cnn [--net NAME|FILE] [--batch N] [--memory BYTES] [--ranks N [--pipeline N]] [options]",
      "Tells what training a convolutional net takes in memory and operations, from its sizes alone. `bitloom train cnn`\n"
      "prints what it took beside it. With --ranks: memory, bytes and time of a step where that number of processes shares\n"
      "the training, as data-parallel ranks or stages of a pipeline, and what local steps (--exchange local) would send.");
  options.everyday({"net", "activation-bits", "image-size", "classes", "batch", "micro-batch", "memory", "optimizer", "dtype",
                    "ranks", "pipeline", "shard", "ranks-per-host", "link", "host-link", "gflops", "pipeline-schedule",
                    "json"});
  settings.declare_plan(options);
  grid_settings.declare(options, 0, false);
  grid_settings.has_local_steps = true;
  options.group("Plan");
  options.count("image-size", image_size, 1, 4096, "Height and width of images");
  options.count("channels", channels, 1, 4, "Number of an image's channels");
  options.count("classes", classes, 2, 65536, "Number of classes");
  options.text("json", json, "FILE", "JSON file for all figures");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  grid_settings.measure(session, settings.dtype());
  session.on_root([&] {
    Terminal& terminal = session.terminal;
    models::CnnConfig config = settings.make_planned(options);
    config.image = {image_size, image_size, channels};
    config.classes = classes;
    const plan::FloatModel model = plan::describe_cnn(config, settings.dtype());
    const double operations = 3 * model.operations();
    terminal.print("net '{}': {} parameters; images of {} x {} pixels, {} channel{}, {} classes", config.name,
                   format_count(model.parameters()), image_size, image_size, channels, channels == 1 ? "" : "s", classes);
    terminal.print("an image takes {:.3g} GFLOP, forward and backward; a step of {} images {:.3g} TFLOP", 1e-9 * operations,
                   settings.batch, 1e-12 * operations * static_cast<double>(settings.batch));
    const std::uint64_t limit = settings.memory != 0 ? settings.memory : usable_memory({}, 1);
    const plan::FloatOptions training = settings.planned(settings.micro_batch_of(settings.batch).value_or(0), 1);
    nlohmann::json result = grid_settings.ranks == 0
                                ? plan_alone(terminal, {.model = model,
                                                        .training = training,
                                                        .values = settings.values,
                                                        .limit = limit,
                                                        .enough = settings.batch,
                                                        .savers = CnnSettings::savers,
                                                        .paper_saving = {},
                                                        .has_recompute = false,
                                                        .with_bits =
                                                            [&](unsigned bits) {
                                                              models::CnnConfig changed = config;
                                                              changed.activation_bits = bits;
                                                              changed.activation_quantiser = nn::Quantiser::few_bit;
                                                              return plan::describe_cnn(changed, settings.dtype());
                                                            }})
                                : plan_on_grids(terminal, model, grid_settings, training, limit);
    result["parameters"] = model.parameters();
    result["operations_per_image"] = operations;
    if (!json.empty()) write_atomically(json, result.dump(2) + "\n");
  });
  return exit_done;
}

}  // namespace bitloom::cli
