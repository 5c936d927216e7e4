// bitloom plan and bitloom simulate: options in, a few updates here, what they mean for a cluster out.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/plan_report.h"
#include "cli/system.h"
#include "cli/train_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

// Settings of both commands.
struct PlanSettings {
  TrainSettings train;
  plan::Cluster cluster;
  std::size_t hosts = 0;  // 0: one per worker
  std::string link = "100Mbit/20ms";
  std::string stage, lower, json;
  std::size_t updates = 20;
  std::uint64_t memory_limit = 0;

  void declare(Options& options) {
    static const std::vector<Options::Need> needs{{"straggler-factor", "stragglers", {}},
                                                  {"recovery-seconds", "deaths-per-hour", {}}};
    options.needs(needs);
    options.everyday({"hosts",
                      "link",
                      "compute-scale",
                      "stragglers",
                      "deaths-per-hour",
                      "price-per-hour",
                      "stage",
                      "lower",
                      "updates",
                      "json",
                      "net",
                      "set",
                      "data",
                      "max-train",
                      "batch",
                      "seed",
                      "workers",
                      "bytes-per-update",
                      "compression",
                      "statistics-every",
                      "residuals",
                      "staleness",
                      "tree"});
    options.group("Cluster");
    options.count("hosts", hosts, 0, 10000000,
                  "Number of hosts that share the workers, one process each; 0: as many as workers");
    options.text("link", link, "RATE/LATENCY",
                 "Link of every host: kbit, Mbit or Gbit per second each way, and us, ms or s to another");
    options.number("compute-scale", cluster.compute_scale, 0, 1e6,
                   "Seconds that a host takes to compute what takes this machine one", true);
    options.number("jitter", cluster.jitter, 0, 10,
                   "Standard deviation of the logarithm of a host's time for an update; 0: none");
    options.number("stragglers", cluster.straggler_share, 0, 1, "Share of the hosts that are slow in an update; 0: none");
    options.number("straggler-factor", cluster.straggler_factor, 1, 1e6, "Factor by which slow hosts take longer");
    options.number("deaths-per-hour", cluster.deaths_per_hour, 0, 1e6, "Deaths of one host per hour; 0: none");
    options.number("recovery-seconds", cluster.recovery_seconds, 0, 1e6, "Seconds from a death until training goes on");
    options.number("checkpoint-seconds", cluster.checkpoint_seconds, 0, 1e9, "Seconds between checkpoints", true);
    options.number("price-per-hour", cluster.price_per_hour, 0, 1e6,
                   "Price of a host for an hour, in any currency; 0: none is printed");
    options.group("Measurement");
    options.text("stage", stage, "NAME", "Stage of the net; without it plan looks at all, simulate at the first");
    options.text("lower", lower, "MODEL|RUN", "Model that has the layers below the stage; without it their weights are random");
    options.count("updates", updates, 2, 1000000, "Number of updates of a stage that are made here, to measure");
    options.bytes("memory-limit", memory_limit,
                  "Largest memory for the error feedback of workers; 0: three quarters of the memory that is free");
    options.text("json", json, "FILE", "JSON file for all figures");
    train.declare_for_plan(options);
    options.group("For tests");
    options.number("pace", cluster.pace_seconds, 0, 1e6,
                   "Smallest time in seconds that a host takes to compute an update; 0 disables it");
  }
};

// The stages to look at.
std::vector<layerwise::StageSpec> stages_of(const layerwise::NetSpec& net, const std::string& wanted, bool all) {
  if (wanted.empty()) return all ? net.stages : std::vector{net.stages.front()};
  layerwise::StageSpec only;
  only.name = wanted;  // run_virtual() says if it is not there
  for (const layerwise::StageSpec& stage : net.stages) {
    if (stage.name == wanted) only = stage;
  }
  return {only};
}

PlannedNet compute(Session& session, const Options& options, PlanSettings& settings, bool all_stages) {
  if (session.comm.size() > 1) fail(ErrorKind::usage, "{} processes; run it without mpirun", session.comm.size());
  settings.train.resolve(options, std::max<std::size_t>(settings.hosts, 1));
  layerwise::TrainOptions& train = settings.train.run.train;
  if (settings.train.workers != 0) train.workers = settings.train.workers;
  if (train.batch < train.workers && options.source("batch") == Options::Source::none) {
    train.batch = train.workers;
    session.terminal.print("--batch: {}, an image for every worker", train.batch);
  }
  settings.cluster.hosts = settings.hosts == 0 ? train.workers : settings.hosts;
  settings.cluster.link = plan::parse_link("--link", settings.link);
  plan::check(settings.cluster);
  plan::VirtualOptions virtual_options;
  virtual_options.net = settings.train.make_net();
  settings.train.run.net = virtual_options.net;
  settings.train.refuse_overruled(options);
  // Messages do not depend on what heads learn.
  for (layerwise::StageSpec& stage : virtual_options.net.stages) stage.options.erase("teacher_share");
  virtual_options.train = train;
  virtual_options.ranks = settings.cluster.hosts;
  virtual_options.updates = settings.updates;
  virtual_options.memory_limit = settings.memory_limit != 0 ? settings.memory_limit : available_memory() / 4 * 3;
  const data::DataSplits data = load_data(settings.train.data);
  std::optional<layerwise::Model> lower;
  if (!settings.lower.empty()) {
    const std::filesystem::path path = find_model(settings.lower);
    if (const std::string kind = kind_of_model(path); kind != "binary") {
      fail(ErrorKind::usage, "--lower: {} is a model of kind {}; expected a binary net", path.string(), kind);
    }
    lower = layerwise::Model::load(path);
  }
  choose_threads(session.comm);

  PlannedNet found;
  found.cluster = settings.cluster;
  plan::PlanOptions& plan_options = found.options;
  plan_options.data_bytes = data.train.pixel_memory();
  plan_options.images = data.train.size();
  plan_options.workers = train.workers;
  plan_options.fan_in = train.exchange.tree.fan_in;
  plan_options.staleness = train.exchange.staleness;
  plan_options.seed = train.seed;
  for (const layerwise::StageSpec& stage : stages_of(virtual_options.net, settings.stage, all_stages)) {
    PlannedStage outcome;
    outcome.name = virtual_options.stage = stage.name;
    outcome.run = plan::run_virtual(simd::kernels(), virtual_options, data.train, lower ? &*lower : nullptr, session.terminal);
    plan_options.updates = outcome.run.total_updates;
    outcome.plan = plan::make_plan(outcome.run, settings.cluster, plan_options);
    found.stages.push_back(std::move(outcome));
  }
  return found;
}

int run_plan(Session& session, std::span<const std::string> args, Options& options, bool simulates) {
  PlanSettings settings;
  settings.declare(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  const PlannedNet net = compute(session, options, settings, !simulates);
  print_plan(session.terminal, net, simulates);
  if (!settings.json.empty()) write_atomically(settings.json, to_json(net).dump(2) + "\n");
  return exit_done;
}

}  // namespace

int plan(Session& session, std::span<const std::string> args) {
  Options options(
      "bitloom plan --data SPEC [--net NAME|FILE] [--hosts N] [--link RATE/LATENCY] [options]",
      "Makes a few updates as --hosts hosts would, with sparse messages, in this process; from their bytes and times it\n"
      "says what a whole run needs there: time, bytes, memory, money, and from which link on dense sums are faster.");
  return run_plan(session, args, options, false);
}

int simulate(Session& session, std::span<const std::string> args) {
  Options options(
      "bitloom simulate --data SPEC --workers N [--net NAME|FILE] [--hosts N] [options]",
      "Makes updates of a stage with all its logical workers in this process: each computes on images of its own, filters\n"
      "and encodes; messages are merged along the tree of hosts; flips are chosen and applied. What it counts is measured;\n"
      "what follows for time and money on the cluster is modelled, and said to be.");
  return run_plan(session, args, options, true);
}

}  // namespace bitloom::cli
