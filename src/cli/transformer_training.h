// Parts that the trainings of transformers in a grid have in common. Settings: those of a command, with a LayoutSettings.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/adam_options.h"
#include "mpi/grid.h"
#include "nn/layer.h"
#include "plan/float_grids.h"
#include "plan/float_model.h"
#include "train/run.h"
#include "train/trainer.h"

namespace bitloom::cli {

// grid outlives it. Throws Error(usage).
template <typename Settings>
train::Layout layout_of(const Settings& settings, mpi::Grid& grid, const nn::Sequence& net) {
  train::Layout layout = settings.layout.make_layout(grid, net);
  layout.recompute_stages = settings.recompute == "stage";
  return layout;
}

// planned_training() in the command's grid.
template <typename Settings>
plan::FloatOptions planned_in_grid(const Settings& settings, const nn::Sequence& net, std::size_t examples) {
  plan::FloatOptions options = planned_training(settings, examples);
  settings.layout.add_to(options, net);
  return options;
}

// Examples at once of a process's share of the batch, for which there are `memory` bytes: `kept`, if it is not 0 and that is
// possible. Throws Error(usage).
template <typename Settings>
std::size_t choose_micro_batch(const Settings& settings, const plan::FloatModel& model, const mpi::Grid& grid,
                               const nn::Sequence& net, std::size_t share, std::uint64_t memory, std::size_t kept) {
  plan::FloatCluster cluster;
  cluster.memory = memory;
  if (kept != 0 && plan::is_possible(model, grid.shape(), planned_in_grid(settings, net, kept), cluster)) return kept;
  return plan::choose_micro_batch(model, grid.shape(),
                                  planned_in_grid(settings, net, settings.micro_batch_of(share).value_or(0)), cluster,
                                  settings.enough_tokens(), Settings::savers);
}

// "; best 1.2345 after step 100"; nothing where no evaluation's loss was finite.
inline std::string best_text(const train::RunResult& result) {
  return result.best_loss ? fmt::format("; best {:.4f} after step {}", *result.best_loss, result.best_step) : "";
}

}  // namespace bitloom::cli
