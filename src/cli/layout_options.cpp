#include "cli/layout_options.h"

#include <array>

#include "core/error.h"
#include "core/field.h"

namespace bitloom::cli {
namespace {

constexpr std::size_t most_ranks = 1000000;
// Of an interleaved schedule, where no number is given.
constexpr std::size_t usual_chunks = 2;

}  // namespace

void LayoutSettings::declare(Options& options) {
  options.group("Processes");
  options.count("tensor", tensor, 1, most_ranks,
                "Processes that divide each layer between them; those that --tensor and --pipeline leave are data-parallel");
  options.count("pipeline", pipeline, 1, most_ranks, "Stages of neighbouring layers, each of a process or a tensor group");
  options.choice("schedule", schedule, train::schedule_names(),
                 fmt::format("Order of the pipeline's passes: {}", fmt::join(train::schedule_names(), ", ")));
  options.count("chunks", chunks, 0, 1000,
                "Parts of the net that each stage has, of an interleaved schedule; 0: 2 there, else 1");
  options.text("partition", partition, "N,N,...", "Number of layers of each part; auto: parts of costs that vary least");
  options.choice("shard", shard, train::shard_level_names(),
                 "What data-parallel processes divide between them: none, optimizer, gradients (and the former), parameters "
                 "(and both)");
  options.count("log-events", log_events, 0, 1000000,
                "First steps of which events.jsonl gets what each process did when, for `bitloom report`");
  static const std::array<Options::Need, 3> needs{
      {{"schedule", "pipeline", {"!1"}}, {"chunks", "pipeline", {"!1"}}, {"partition", "pipeline", {"!1"}}}};
  options.needs(needs);
}

mpi::Grid LayoutSettings::make_grid(mpi::Comm& world) const {
  return {world, mpi::grid_shape(world.size(), static_cast<int>(pipeline), static_cast<int>(tensor))};
}

std::size_t LayoutSettings::parts_of_stage() const {
  if (pipeline == 1) return 1;
  if (chunks != 0) return chunks;
  return train::find_schedule(schedule).takes_chunks ? usual_chunks : 1;
}

train::Layout LayoutSettings::make_layout(mpi::Grid& grid, const nn::Sequence& net) const {
  train::Layout layout;
  layout.grid = &grid;
  layout.schedule = schedule;
  layout.chunks = parts_of_stage();
  layout.partition = parts(net);
  layout.shard = train::shard_level_named(shard);
  layout.events.first_steps = log_events;
  return layout;
}

train::Partition LayoutSettings::parts(const nn::Sequence& net) const {
  if (pipeline == 1 || partition == "auto") return {};
  return train::parse_partition(partition, net.size(), parts_of_stage() * pipeline);
}

std::string LayoutSettings::described(const mpi::Grid& grid) const {
  const mpi::GridShape& shape = grid.shape();
  if (shape.ranks() == 1) return "";
  std::string text = fmt::format("{} processes: {} data-parallel", shape.ranks(), shape.data);
  if (shape.pipeline > 1) text += fmt::format(" x {} stages ({})", shape.pipeline, schedule);
  if (shape.tensor > 1) text += fmt::format(" x {} tensor-parallel", shape.tensor);
  if (shard != "none") text += fmt::format(", {} sharded", shard);
  return text;
}

}  // namespace bitloom::cli
