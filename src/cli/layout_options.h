// Options that say how processes divide one float net (tensor and pipeline parallel, sharded), and compress its gradients.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/options.h"
#include "cli/terminal.h"
#include "mpi/grid.h"
#include "nn/layer.h"
#include "plan/float_model.h"
#include "plan/float_plan.h"
#include "train/trainer.h"

namespace bitloom::cli {

// Where the learning rate has no option of that name.
inline constexpr std::array<Options::Former, 1> former_layout_options{{{"schedule", "pipeline-schedule", "", ""}}};

struct LayoutSettings {
  std::size_t tensor = 1, pipeline = 1, chunks = 0;
  std::string schedule = "1f1b", partition = "auto", shard = "none";
  std::size_t shard_ranks = 0;
  std::size_t log_events = 0;
  std::size_t compress_rank = 0;
  std::string compress_format = "f32", compress_errors = "f32", compress_start = "auto";

  // All, for training; without --tensor where no layer can be divided.
  void declare(Options& options, bool has_tensor = true);
  // --compress-rank and what goes with it, of nets whose residual blocks have matrices.
  void declare_compression(Options& options);
  // The grid alone, for what uses a trained net.
  void declare_grid(Options& options, bool has_tensor = true);
  // Collective. Throws Error(usage) that lists possible grids near by.
  mpi::Grid make_grid(mpi::Comm& world) const;
  // grid outlives it. Throws Error(usage).
  train::Layout make_layout(mpi::Grid& grid, const nn::Sequence& net) const;
  // Parts of the net that a stage has, and those that were given; empty: by cost, which is measured where is_measured().
  std::size_t parts_of_stage() const;
  train::Partition parts(const nn::Sequence& net) const;
  bool is_measured() const { return partition == measured; }
  // Those of a training that a plan looks at, besides the batch and what is trained.
  void add_to(plan::FloatOptions& options, const nn::Sequence& net) const;
  // "4 processes: 2 data-parallel x 2 stages (1f1b) x 1 tensor-parallel, sharded parameters"; empty for one process.
  std::string described(const mpi::Grid& grid) const;
  // Whether every process has all parameters of the net, between steps too.
  bool is_whole() const { return tensor == 1 && pipeline == 1 && shard != "parameters"; }
  // Where it is not: throws Error(usage) that names one of the options on samples that was given; every: of --sample-every.
  void refuse_samples(const Options& options, const std::string& every, std::initializer_list<const char*> names) const;
  bool is_warm_start() const;
  // Chooses --compress-start for a run: one that goes on in another layout keeps it, and one that is older has fixed factors.
  void settle_compression(const Options& options, bool resumes);
  // Adds to a run's identity how gradients are compressed, if they are.
  void add_compression(nlohmann::json& identity) const;
  // Says how many bytes compression saves, with a note where that is too few; nothing without. model_command: "plan gpt".
  void announce_compression(Terminal& terminal, mpi::Grid& grid, const plan::FloatModel& model,
                            const char* model_command) const;

  static constexpr const char* measured = "measured";
};

}  // namespace bitloom::cli
