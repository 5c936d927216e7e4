// bitloom plan shape: what training a model of the papers takes on a grid of ranks, from its shapes alone.
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/device.h"
#include "cli/float_options.h"
#include "cli/grid_options.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/file.h"
#include "core/progress.h"
#include "plan/float_names.h"

namespace bitloom::cli {
namespace {

struct ShapeSettings : FloatSettings {
  ShapeSettings() { batch = 32; }

  std::size_t activation_bits = 0;
  std::string activation_quantiser = "few-bit";
  std::string recompute = "none";
  std::string master_weights = "f32";
  std::string optimizer = "adamw";

  void declare(Options& options) {
    options.group("Training");
    options.count("batch", batch, 1, 1000000, "Examples per step: sequences or images");
    options.text("micro-batch", micro_batch, "N",
                 "Examples at once, a divisor of the batch; auto: of every grid the number that is best");
    options.bytes("memory", memory, "Memory of a rank; 0: most of what is available here");
    options.choice("optimizer", optimizer, train::update_rule_names(), "Optimiser: adamw, muon, rmsprop or sgd with momentum");
    declare_activation_bits(options, activation_bits, activation_quantiser);
    declare_recompute(options, recompute);
    declare_dtype(options, values);
    declare_master_weights(options, master_weights);
  }

  plan::FloatOptions training() const {
    plan::FloatOptions training;
    training.batch = batch;
    training.micro_batch = micro_batch_of(batch).value_or(0);
    training.recompute = plan::find_recompute(recompute);
    training.activation_bits = static_cast<unsigned>(activation_bits);
    training.activation_quantiser = nn::find_quantiser(activation_quantiser);
    training.train.values = dtype();
    training.train.master_weights = master_weights_named(master_weights);
    training.train.optimizer.rule = optimizer;
    return training;
  }
};

}  // namespace

int plan_shape(Session& session, std::span<const std::string> args) {
  ShapeSettings settings;
  GridSettings grid_settings;
  std::vector<std::string> names;
  std::string json;
  Options options(
      "bitloom plan shape MODEL --ranks N [--tensor N] [--pipeline N] [options]",
      "Tells what training a model of Huang et al. (2019) or Shoeybi et al. (2019) takes in memory, bytes and time\n"
      "where a number of processes shares it, on every grid of data x pipeline x tensor that is possible, best first,\n"
      "or on the one that is given. MODEL: amoebanet-d(L,F), transformer-L, t(L,H,A), or a GPT such as 8.3b.");
  options.arguments(names, "MODEL", 1, 1);
  settings.declare(options);
  grid_settings.declare(options, 1);
  options.group("Plan");
  options.text("json", json, "FILE", "JSON file for all figures");
  if (!parse_or_show_help(session, args, options)) return exit_done;
  grid_settings.measure(session, settings.dtype());
  session.on_root([&] {
    Terminal& terminal = session.terminal;
    const plan::FloatModel model = plan::find_model(names.front());
    const double operations = 3 * model.operations();
    terminal.print("model '{}': {} parameters, {} layers, {} .. {}", model.name, format_count(model.parameters()),
                   model.layers.size(), model.layers.front().name, model.layers.back().name);
    terminal.print("every {} takes {:.3g} TFLOP, forward and backward; a step of {} {:.3g} TFLOP", model.example,
                   1e-12 * operations, settings.batch, 1e-12 * operations * static_cast<double>(settings.batch));
    const std::uint64_t memory = settings.memory != 0 ? settings.memory : usable_memory({}, 1);
    nlohmann::json result = plan_on_grids(terminal, model, grid_settings, settings.training(), memory);
    result["model"] = model.name;
    result["parameters"] = model.parameters();
    result["operations_per_example"] = operations;
    if (!json.empty()) write_atomically(json, result.dump(2) + "\n");
  });
  return exit_done;
}

}  // namespace bitloom::cli
