#include "cli/layout_options.h"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "cli/float_options.h"
#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"
#include "plan/float_compression.h"

namespace bitloom::cli {
namespace {

constexpr std::size_t most_ranks = 1000000;
// Share of the bytes of whole gradients: factors with more save none that count, whatever the link.
constexpr double least_share_without_use = 0.99;

}  // namespace

void LayoutSettings::declare_grid(Options& options, bool has_tensor) {
  options.group("Processes");
  if (has_tensor) {
    options.count("tensor", tensor, 1, most_ranks,
                  "Number of processes that divide each layer; those that --tensor and --pipeline leave are data-parallel");
  }
  options.count("pipeline", pipeline, 1, most_ranks,
                has_tensor ? "Number of stages of neighbouring layers, each of a process or a tensor group"
                           : "Number of stages of neighbouring layers; processes beyond that are data-parallel");
}

void LayoutSettings::declare(Options& options, bool has_tensor) {
  declare_grid(options, has_tensor);
  options.choice("pipeline-schedule", schedule, train::schedule_names(),
                 fmt::format("Order of the pipeline's passes: {}", fmt::join(train::schedule_names(), ", ")));
  options.count("chunks", chunks, 0, 1000,
                "Number of parts of the net that a stage has; 0: 2 of an interleaved schedule, else 1");
  options.text("partition", partition, "N,N,...",
               fmt::format("Numbers of layers of the parts; auto: parts of multiplications that vary least; {}: of seconds, "
                           "of each layer's passes at the start",
                           measured));
  options.choice("shard", shard, train::shard_level_names(),
                 "State that data-parallel processes divide instead of having it all: none; optimizer: moments; gradients: "
                 "these too; parameters: all three");
  options.count("shard-ranks", shard_ranks, 0, most_ranks,
                "Number of data-parallel processes, neighbours, that divide what --shard names; others have copies, and sum "
                "gradients with them once a step; 0: all");
  options.count("log-events", log_events, 0, 1000000,
                "Number of first steps whose events, by process, go to events.jsonl, for `bitloom report`");
  const std::array<Options::Need, 4> needs{{{"pipeline-schedule", "pipeline", {"!1"}},
                                            {"chunks", "pipeline", {"!1"}},
                                            {"partition", "pipeline", {"!1"}},
                                            {"shard-ranks", "shard", {"!none"}}}};
  options.needs(needs);
}

void LayoutSettings::declare_compression(Options& options) {
  options.count(
      "compress-rank", compress_rank, 0, any_count,
      "Rank of factors that data-parallel processes exchange instead of the gradients of matrices (PowerSGD); 0: none");
  declare_compress_format(options, compress_format);
  declare_compress_errors(options, compress_errors);
  declare_compress_start(options, compress_start);
  static const std::vector<Options::Need> needs{{"compress-format", "compress-rank", {}},
                                                {"compress-errors", "compress-rank", {}},
                                                {"compress-start", "compress-rank", {}, "fixed"}};
  options.needs(needs);
}

mpi::Grid LayoutSettings::make_grid(mpi::Comm& world) const {
  return {world, mpi::grid_shape(world.size(), static_cast<int>(pipeline), static_cast<int>(tensor)),
          static_cast<int>(shard_ranks)};
}

std::size_t LayoutSettings::parts_of_stage() const { return pipeline == 1 ? 1 : train::chunks_or_usual(schedule, chunks); }

train::Layout LayoutSettings::make_layout(mpi::Grid& grid, const nn::Sequence& net) const {
  train::Layout layout;
  layout.grid = &grid;
  layout.schedule = schedule;
  layout.chunks = parts_of_stage();
  layout.partition = parts(net);
  layout.measures_costs = is_measured();
  layout.shard = train::shard_level_named(shard);
  layout.events.first_steps = log_events;
  layout.compress_rank = compress_rank;
  layout.compression.messages = train::float_format_named(compress_format);
  layout.compression.error_buffers = train::float_format_named(compress_errors);
  layout.compression.warm_start = is_warm_start();
  return layout;
}

void LayoutSettings::add_to(plan::FloatOptions& options, const nn::Sequence& net) const {
  options.schedule = schedule;
  options.chunks = parts_of_stage();
  options.partition = parts(net);
  options.shard = train::shard_level_named(shard);
  options.shard_ranks = shard_ranks;
  options.compress_rank = compress_rank;
  options.compress_format = train::float_format_named(compress_format);
  options.compress_errors = train::float_format_named(compress_errors);
  options.compress_warm = is_warm_start();
}

train::Partition LayoutSettings::parts(const nn::Sequence& net) const {
  if (pipeline == 1 || partition == "auto" || is_measured()) return {};
  return train::parse_partition(partition, net.size(), parts_of_stage() * pipeline);
}

std::string LayoutSettings::described(const mpi::Grid& grid) const {
  const mpi::GridShape& shape = grid.shape();
  if (shape.ranks() == 1) return "";
  std::string text = fmt::format("{} processes: {} data-parallel", shape.ranks(), shape.data);
  if (shape.pipeline > 1) text += fmt::format(" x {} stages ({})", shape.pipeline, schedule);
  if (shape.tensor > 1) text += fmt::format(" x {} tensor-parallel", shape.tensor);
  if (shard != "none") text += fmt::format(", {} sharded", shard);
  if (shard_ranks != 0) text += fmt::format(" by {}", shard_ranks);
  return text;
}

void LayoutSettings::refuse_samples(const Options& options, const std::string& every,
                                    std::initializer_list<const char*> names) const {
  if (is_whole() || every == "0") return;
  for (const char* name : names) {
    if (!options.is_chosen(name)) continue;
    fail(ErrorKind::usage, "--{}: {} has no effect where processes have parts of the net (--tensor, --pipeline, --shard)", name,
         options.raw(name));
  }
}

bool LayoutSettings::is_warm_start() const { return cli::is_warm_start(compress_start, shard, shard_ranks); }

void LayoutSettings::settle_compression(const Options& options, bool resumes) {
  if (compress_rank == 0) return;
  const bool can_be_warm = train::can_start_warm(train::shard_level_named(shard), shard_ranks);
  if (resumes && compress_start == "warm" && !can_be_warm && options.source("compress-start") == Options::Source::run) {
    fail(ErrorKind::usage,
         "--shard: {}; this run's factors begin with the last step's; expected none, or a run that began with --compress-start "
         "fixed",
         shard);
  }
  if (compress_start != "auto") return;
  const bool is_older = resumes && options.source("compress-start") == Options::Source::none;
  compress_start = can_be_warm && !is_older ? "warm" : "fixed";
}

void LayoutSettings::add_compression(nlohmann::json& identity) const {
  if (compress_rank != 0) identity["compress_rank"] = compress_rank;
  if (compress_format != LayoutSettings().compress_format) identity["compress_format"] = compress_format;
  if (compress_errors != LayoutSettings().compress_errors) identity["compress_errors"] = compress_errors;
  // Runs of before have no such field.
  if (compress_rank != 0 && is_warm_start()) identity["compress_start"] = "warm";
}

void LayoutSettings::announce_compression(Terminal& terminal, mpi::Grid& grid, const plan::FloatModel& model,
                                          const char* model_command) const {
  if (compress_rank == 0 || grid.shape().data == 1) return;
  const auto shards = static_cast<std::size_t>(shard == "none" ? 1 : grid.shards().size());
  const std::uint64_t sent =
      plan::compression_of(model, compress_rank, train::float_format_named(compress_format), shards).sent.sum();
  const std::uint64_t whole = model.parameters() * sizeof(float) / shards;
  const double share = static_cast<double>(sent) / static_cast<double>(whole);
  terminal.print("gradients go by factors of rank {}: {} of {} a step and process ({:.0f}%)", compress_rank, format_bytes(sent),
                 format_bytes(whole), 100 * share);
  // Whether fewer bytes are worth the time of factors is measured (train/run_record.h).
  if (share > least_share_without_use) {
    terminal.note(
        fmt::format("--compress-rank: {}; factors of this rank save less than {:.0f}% of the bytes: `bitloom {} --ranks N "
                    "--link RATE/LATENCY` tells which ranks pay",
                    compress_rank, 100 * (1 - least_share_without_use), model_command));
  }
}

}  // namespace bitloom::cli
