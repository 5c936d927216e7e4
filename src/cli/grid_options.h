// Options of the plans of float trainings on a cluster, and these plans as text and JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/command.h"
#include "cli/options.h"
#include "plan/float_grids.h"

namespace bitloom::cli {

// A cluster and the grids to look at.
struct GridSettings {
  std::size_t ranks = 0, tensor = 0, pipeline = 0, chunks = 0;
  std::string schedule = "1f1b";
  std::string shard = "none";
  std::size_t shard_ranks = 0;
  std::string link = "1Gbit/100us";
  std::string host_link = "100Gbit/5us";
  std::size_t ranks_per_host = 1;
  double gflops = 0;
  bool has_compression = false;  // the trainer's, whose plans are compared
  bool has_local_steps = false;  // and these
  std::size_t compress_rank = 0;
  std::string compress_format = "f32", compress_errors = "f32", compress_start = "auto";

  // fewest: of ranks; 0, the default then, has no grid. has_tensor: whether tensor groups can divide the model's layers.
  void declare(Options& options, std::size_t fewest, bool has_tensor = true);
  // --compress-rank and what goes with it, of models whose training has them.
  void declare_compression(Options& options, bool with_local_steps);
  // Throws usage errors: options without effect.
  void check() const;
  // The same of --recompute stage in one process.
  void check_recompute(const std::string& recompute) const;
  // Collective: the speed of this machine, unless it is given or nobody needs it.
  void measure(Session& session, DType values);
  plan::FloatCluster make_cluster(std::uint64_t memory) const;
};

// Prints plans of all grids that are possible, and the best one's stages, and gives them as JSON. training: all but schedule,
// chunks and shards; micro_batch 0: the best of each grid. memory: of a rank. Throws Error(usage).
nlohmann::json plan_on_grids(Terminal& terminal, const plan::FloatModel& model, const GridSettings& settings,
                             const plan::FloatOptions& training, std::uint64_t memory);

}  // namespace bitloom::cli
