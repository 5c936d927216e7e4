#include "cli/grid_options.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "cli/field_names.h"
#include "cli/float_options.h"
#include "cli/float_plan_table.h"
#include "cli/layout_options.h"
#include "cli/system.h"
#include "core/error.h"
#include "core/progress.h"
#include "nn/measure.h"
#include "train/parallel/schedule.h"

namespace bitloom::cli {

void GridSettings::declare(Options& options, std::size_t fewest, bool has_tensor) {
  static const std::vector<Options::Need> needs{{"tensor", "ranks", {}},
                                                {"pipeline", "ranks", {}},
                                                {"pipeline-schedule", "ranks", {}},
                                                {"chunks", "pipeline-schedule", {"interleaved"}},
                                                {"shard", "ranks", {}},
                                                {"shard-ranks", "shard", {"!none"}},
                                                {"link", "ranks", {}},
                                                {"host-link", "ranks-per-host", {}},
                                                {"ranks-per-host", "ranks", {}},
                                                {"gflops", "ranks", {}}};
  options.needs(needs);
  options.former(former_layout_options);
  ranks = fewest;
  options.group("Cluster");
  options.count(
      "ranks", ranks, fewest, 1000000,
      fmt::format("Number of processes that share the training, of --memory each{}", fewest == 0 ? "; 0: one alone" : ""));
  if (has_tensor) {
    options.count("tensor", tensor, 0, 1000000, "Number of ranks that divide every layer; 0: every number that is possible");
  } else {
    tensor = 1;
  }
  options.count("pipeline", pipeline, 0, 1000000,
                "Number of stages that the layers are cut into; 0: every number that is possible");
  options.choice("pipeline-schedule", schedule, train::schedule_names(), "Order of the passes of a pipeline's micro-batches");
  options.count("chunks", chunks, 0, 1000,
                "Number of parts of the net that a stage has; 0: 2 of an interleaved schedule, else 1");
  options.choice("shard", shard, train::shard_level_names(),
                 "State that data-parallel ranks divide instead of having it all: none; optimizer: moments; gradients: "
                 "these too; parameters: all three");
  options.count("shard-ranks", shard_ranks, 0, 1000000,
                "Number of data-parallel ranks, neighbours, that divide what --shard names; others have copies; 0: all");
  options.text("link", link, "RATE/LATENCY",
               "Link of every host: kbit, Mbit or Gbit per second each way, and us, ms or s to another");
  options.text("host-link", host_link, "RATE/LATENCY", "Link of a rank to another on its host");
  options.count("ranks-per-host", ranks_per_host, 1, 1000000, "Number of ranks on a host");
  options.number("gflops", gflops, 0, 1e9,
                 "Speed of a rank in products of matrices, in GFLOP/s; 0: that of this machine, measured");
}

void GridSettings::declare_compression(Options& options, bool with_local_steps) {
  static const std::vector<Options::Need> needs{{"compress-rank", "ranks", {}},
                                                {"compress-format", "ranks", {}},
                                                {"compress-errors", "ranks", {}},
                                                {"compress-start", "ranks", {}, "fixed"}};
  options.needs(needs);
  has_compression = true;
  has_local_steps = with_local_steps;
  options.count("compress-rank", compress_rank, 0, any_count,
                "Rank of factors that data-parallel ranks exchange instead of the gradients of matrices (PowerSGD); 0: none, "
                "and a comparison of all");
  declare_compress_format(options, compress_format);
  declare_compress_errors(options, compress_errors);
  declare_compress_start(options, compress_start);
}

void GridSettings::check() const {
  if (pipeline == 1 && schedule != "1f1b") {
    fail(ErrorKind::usage, "--pipeline-schedule: {} has no effect with --pipeline 1", schedule);
  }
  if (shard != "none" && tensor != 0 && pipeline != 0 && tensor * pipeline == ranks) {
    fail(ErrorKind::usage, "--shard: {} has no effect: --pipeline {}{} leaves no rank to share data with", shard, pipeline,
         tensor == 1 ? "" : fmt::format(" times --tensor {}", tensor));
  }
  if (ranks_per_host > ranks) {
    fail(ErrorKind::usage, "--ranks-per-host: {}; expected at most the {} ranks", ranks_per_host, ranks);
  }
  if (ranks_per_host == ranks && link != GridSettings().link) {
    fail(ErrorKind::usage, "--link: {} has no effect where all {} ranks are on one host", link, ranks);
  }
}

void GridSettings::check_recompute(const std::string& recompute) const {
  if (recompute == "stage" && ranks == 0) fail(ErrorKind::usage, "--recompute: stage has no effect; it needs --ranks");
}

void GridSettings::measure(Session& session, DType values) {
  if (ranks == 0 || gflops != 0) return;
  choose_threads(session.comm);
  nn::Engine engine;
  gflops = 1e-9 * nn::measure_matmul(engine, values, 0.3);
}

plan::FloatCluster GridSettings::make_cluster(std::uint64_t memory) const {
  plan::FloatCluster cluster;
  cluster.link = plan::parse_link("--link", link);
  cluster.inside = plan::parse_link("--host-link", host_link);
  cluster.ranks_per_host = ranks_per_host;
  cluster.memory = memory;
  cluster.flops = 1e9 * gflops;
  return cluster;
}

namespace {

// The next batch that the ranks can divide.
std::size_t divided_batch(std::size_t batch, int ranks) {
  const auto shares = static_cast<std::size_t>(ranks);
  return (batch + shares - 1) / shares * shares;
}

plan::FloatPlan data_parallel_plan(const plan::FloatModel& model, int ranks, plan::FloatOptions options,
                                   const plan::FloatCluster& cluster) {
  options.batch = divided_batch(options.batch, ranks);
  const std::size_t share = options.batch / static_cast<std::size_t>(ranks);
  if (options.micro_batch != 0 && share % options.micro_batch != 0) options.micro_batch = 0;
  return plan::plan_grids(model, ranks, {1, 1}, options, cluster).front();
}

// Prints ways in which ranks that are all data-parallel may exchange what they learn, and which of them pays. best: of the
// grids that may be.
nlohmann::json compare_exchanges(Terminal& terminal, const plan::FloatModel& model, const GridSettings& settings,
                                 const plan::FloatOptions& options, const plan::FloatCluster& cluster,
                                 const plan::FloatPlan& best) {
  nlohmann::json json = {
      {"compressions", nlohmann::json::array()}, {"local_steps", nlohmann::json::array()}, {"advice", nullptr}};
  if (settings.compress_rank != 0 || options.shard != train::ShardLevel::none) return json;
  const auto ranks = static_cast<int>(settings.ranks);
  std::vector<plan::CompressionPlan> compared;
  std::vector<plan::LocalPlan> local;
  std::optional<plan::ExchangePlans> plans;
  if (settings.has_compression) compared = plan::plan_compressions(model, ranks, options, cluster);
  if (!compared.empty()) {
    print_compressions(terminal, model, compared, options.batch);
    for (const plan::CompressionPlan& each : compared) {
      json["compressions"].push_back(to_json(each.plan, model, options.batch));
      json["compressions"].back()["compress_rank"] = each.rank;
    }
    plans = {compared.front().plan, options.batch, compared, {}};
  }
  // Workers have f32 parameters, and no averages.
  const bool has_f32 = options.train.values != DType::bf16 || options.train.master_weights != nn::MasterWeights::none;
  if (settings.has_local_steps && ranks > 1 && has_f32) {
    plan::FloatOptions alone = options;
    alone.train.optimizer.average = 0;
    alone.train.optimizer.lookahead = 0;
    const plan::FloatPlan whole = data_parallel_plan(model, ranks, alone, cluster);
    const std::size_t batch = divided_batch(options.batch, ranks);
    local = plan::plan_local_steps(model.parameters(), whole, cluster);
    print_local_steps(terminal, model, local, batch);
    for (const plan::LocalPlan& each : local) json["local_steps"].push_back(to_json(each, model, batch));
    if (!plans) plans = {data_parallel_plan(model, ranks, options, cluster), batch, {}, {}};
    plans->local = local;
    plans->local_batch = batch;
  }
  const auto advice = plans ? plan::advise(model, *plans, options, cluster) : std::nullopt;
  if (!advice) return json;
  print_advice(terminal, model, *advice, cluster, best, options.batch);
  json["advice"] = to_json(*advice, model);
  return json;
}

}  // namespace

nlohmann::json plan_on_grids(Terminal& terminal, const plan::FloatModel& model, const GridSettings& settings,
                             const plan::FloatOptions& training, std::uint64_t memory) {
  settings.check();
  plan::FloatOptions options = training;
  options.schedule = settings.schedule;
  options.chunks = train::chunks_or_usual(settings.schedule, settings.chunks);
  options.shard = train::shard_level_named(settings.shard);
  options.shard_ranks = settings.shard_ranks;
  options.compress_rank = settings.compress_rank;
  options.compress_format = train::float_format_named(settings.compress_format);
  options.compress_errors = train::float_format_named(settings.compress_errors);
  options.compress_warm = is_warm_start(settings.compress_start, settings.shard, settings.shard_ranks);
  const plan::FloatCluster cluster = settings.make_cluster(memory);
  const auto ranks = static_cast<int>(settings.ranks);
  plan::GridWish wish;
  if (settings.tensor != 0) wish.tensor = static_cast<int>(settings.tensor);
  if (settings.pipeline != 0) wish.pipeline = static_cast<int>(settings.pipeline);
  const std::vector<plan::FloatPlan> plans = plan::plan_grids(model, ranks, wish, options, cluster);
  terminal.print("{} rank{} with {} and {:.3g} GFLOP/s each, {} on a host, links of {}; {}, shards: {}", ranks,
                 ranks == 1 ? "" : "s", format_bytes(memory), 1e-9 * cluster.flops, cluster.ranks_per_host,
                 plan::to_string(cluster.link), options.schedule,
                 settings.shard + (settings.shard_ranks == 0 ? "" : fmt::format(" by {} ranks", settings.shard_ranks)));
  if (plans.size() > 1) {
    terminal.print(
        "\ngrids (data x pipeline x tensor), best first: {}s at once, memory and bytes sent in a step of the ranks that have "
        "the most:",
        model.example);
    print_grids(terminal, model, plans, options.batch);
  }
  print_stages(terminal, model, plans.front(), options.batch);
  if (!plans.front().fits) {
    terminal.print("\nit does not fit: {}", with_options(plan::describe_misfit(model, plans.front(), options, cluster)));
  }
  nlohmann::json grids = nlohmann::json::array();
  for (const plan::FloatPlan& each : plans) grids.push_back(to_json(each, model, options.batch));
  nlohmann::json result = {{"ranks", ranks},
                           {"gflops", 1e-9 * cluster.flops},
                           {"link", plan::to_string(cluster.link)},
                           {"host_link", plan::to_string(cluster.inside)},
                           {"ranks_per_host", cluster.ranks_per_host},
                           {"memory_limit", memory},
                           {"grids", grids}};
  result.update(compare_exchanges(terminal, model, settings, options, cluster, plans.front()));
  return result;
}

}  // namespace bitloom::cli
