// bitloom plan and bitloom simulate: options in, a few updates here, what they mean for a cluster out.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/command.h"
#include "cli/model_source.h"
#include "cli/options.h"
#include "cli/system.h"
#include "cli/train_options.h"
#include "core/error.h"
#include "core/file.h"
#include "core/memory.h"
#include "plan/plan.h"
#include "simd/kernels.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

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

// A stage: the updates made here, and what follows from them.
struct Outcome {
  std::string stage;
  plan::VirtualResult run;
  plan::Plan plan;
};

struct Outcomes {
  std::vector<Outcome> stages;
  plan::PlanOptions options;
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

Outcomes compute(Session& session, const Options& options, PlanSettings& settings, bool all_stages) {
  if (session.comm.size() > 1) fail(ErrorKind::usage, "{} processes; run it without mpirun", session.comm.size());
  settings.train.resolve(options, std::max<std::size_t>(settings.hosts, 1));
  layerwise::TrainOptions& train = settings.train.run.train;
  if (train.exchange.tree.quorum < 1) {
    fail(ErrorKind::usage, "--quorum: {}; expected 1: the model waits for all workers", train.exchange.tree.quorum);
  }
  if (!train.sparse) fail(ErrorKind::usage, "--exchange: dense; expected sparse, which is compared with dense sums");
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
  virtual_options.train = train;
  virtual_options.ranks = settings.cluster.hosts;
  virtual_options.updates = settings.updates;
  virtual_options.memory_limit = settings.memory_limit != 0 ? settings.memory_limit : available_memory() / 4 * 3;
  const data::DataSplits data = load_data(settings.train.data);
  std::optional<layerwise::Model> lower;
  if (!settings.lower.empty()) lower = layerwise::Model::load(find_model(settings.lower));
  choose_threads(session.comm);

  Outcomes outcomes;
  plan::PlanOptions& plan_options = outcomes.options;
  plan_options.data_bytes = data.train.pixel_memory();
  plan_options.images = data.train.size();
  plan_options.workers = train.workers;
  plan_options.fan_in = train.exchange.tree.fan_in;
  plan_options.staleness = train.exchange.staleness;
  plan_options.seed = train.seed;
  for (const layerwise::StageSpec& stage : stages_of(virtual_options.net, settings.stage, all_stages)) {
    Outcome outcome;
    outcome.stage = virtual_options.stage = stage.name;
    outcome.run = plan::run_virtual(simd::kernels(), virtual_options, data.train, lower ? &*lower : nullptr, session.terminal);
    plan_options.updates = outcome.run.total_updates;
    outcome.plan = plan::make_plan(outcome.run, settings.cluster, plan_options);
    outcomes.stages.push_back(std::move(outcome));
  }
  return outcomes;
}

std::string seconds(double value) { return value < 1 ? fmt::format("{:.1f} ms", 1e3 * value) : fmt::format("{:.2f} s", value); }

std::string bytes(double value) { return format_bytes(static_cast<std::uint64_t>(value)); }

std::size_t total(const std::map<std::string, std::size_t>& weights) {
  std::size_t sum = 0;
  for (const auto& [layer, count] : weights) sum += count;
  return sum;
}

// All stages, beside training end to end as the essay "Distributed training" has it ("Sparse gradients").
struct Whole {
  std::size_t weights = 0;  // each once, however often it learns
  double up = 0, down = 0;  // the longest messages of any stage
  double dense_bytes() const { return 4 * static_cast<double>(weights); }
};

Whole whole_net(const Outcomes& outcomes) {
  std::map<std::string, std::size_t> weights;
  Whole whole;
  for (const Outcome& outcome : outcomes.stages) {
    weights.insert(outcome.run.weights.begin(), outcome.run.weights.end());
    whole.up = std::max(whole.up, outcome.run.up.expected);
    whole.down = std::max(whole.down, outcome.run.down.expected);
  }
  whole.weights = total(weights);
  return whole;
}

Json to_json(const plan::Timeline& timeline) {
  return {{"update_seconds", timeline.update},
          {"latency_seconds", timeline.latency},
          {"slowest_tenth_seconds", timeline.slowest_tenth},
          {"computing_share", timeline.computing_share},
          {"root_link_share", timeline.root_link_share}};
}

// Bytes that `train binary --plan` compares with: messages under a budget meet it; the rest changes as nets learn.
Json expected_bytes(const plan::VirtualResult& run) {
  // Thresholds have ends, and replies hold changes of weights, which follow the budget by way of the gradients that arrive.
  const auto expected = [](const plan::MessageLength& length) {
    return Json{{"bytes", length.expected},
                {"tolerance", length.follows_budget ? 0.15 : 0.5},
                {"follows_budget", length.follows_budget}};
  };
  return {{"up", expected(run.up)}, {"down", expected(run.down)}, {"dense", run.dense_bytes}};
}

Json to_json(const Outcome& outcome, const PlanSettings& settings) {
  const plan::VirtualResult& run = outcome.run;
  const plan::Plan& plan = outcome.plan;
  Json updates = Json::array();
  for (const plan::VirtualUpdate& update : run.updates) {
    updates.push_back({{"worker_bytes", update.worker_bytes},
                       {"answer_bytes", update.reply_bytes},
                       {"level_bytes", update.level_bytes},
                       {"statistics", update.statistics},
                       {"flips", update.flips},
                       {"loss", update.loss},
                       {"accuracy", update.accuracy},
                       {"seconds", update.seconds}});
  }
  Json levels = Json::array();
  for (const plan::LevelTraffic& level : run.levels) {
    levels.push_back({{"hosts", level.ranks},
                      {"bytes_up_per_update", static_cast<double>(level.bytes) / static_cast<double>(run.counted)},
                      {"largest_message", level.largest}});
  }
  Json trees = Json::array();
  for (const plan::TreeChoice& tree : plan.trees) {
    trees.push_back({{"fan_in", tree.fan_in}, {"levels", tree.levels}, {"root_bytes", tree.root_bytes}});
    trees.back().update(to_json(tree.timeline));
  }
  Json ranges = Json::array();
  for (const auto& [from, to] : plan.sparse_ranges) ranges.push_back({from, std::isfinite(to) ? Json(to) : Json()});
  const bool ends = plan.bill.lost_share < 1;
  return {{"stage", outcome.stage},
          {"expected_bytes", expected_bytes(run)},
          {"measured",
           {{"updates", updates},
            {"levels", levels},
            {"worker_bytes", run.up.measured},
            {"answer_bytes", run.down.measured},
            {"bytes_by_part", run.by_part},
            {"dense_f32_bytes", run.dense_f32_bytes},
            {"dense_bytes", run.dense_bytes},
            {"weights", total(run.weights)},
            {"images_per_update", run.images},
            {"compute_seconds_per_worker", run.compute},
            {"encode_seconds_per_worker", run.encode},
            {"choose_seconds", run.choose},
            {"apply_seconds", run.apply},
            {"merge_seconds_per_byte", run.merge_per_byte},
            {"residual_bytes_per_worker", run.error_feedback_bytes},
            {"peak_memory_bytes", run.peak_memory},
            {"message_memory_bytes", run.message_bytes}}},
          {"modelled",
           {{"hosts", settings.cluster.hosts},
            {"link", plan::to_string(settings.cluster.link)},
            {"sparse", to_json(plan.timeline)},
            {"trees", trees},
            {"dense_update_seconds", plan.dense_seconds},
            {"sparse_is_faster_between_bits_per_second", ranges},
            {"host_memory_bytes", plan.host_memory},
            {"survivor_memory_bytes", plan.survivor_memory},
            {"updates", run.total_updates},
            {"hours", ends ? Json(plan.bill.hours) : Json()},
            {"lost_share", plan.bill.lost_share},
            {"deaths", ends ? Json(plan.bill.deaths) : Json()},
            {"price", ends ? Json(plan.bill.price) : Json()}}}};
}

void print_measured(Terminal& terminal, const Outcome& outcome, const PlanSettings& settings) {
  const plan::VirtualResult& run = outcome.run;
  terminal.print("stage {}, measured here in {} updates of {} images, {} one-bit weights learning:", outcome.stage,
                 run.updates.size(), run.images, format_count(total(run.weights)));
  double all = 0;
  for (const auto& [name, part] : run.by_part) all += part;
  std::string parts;
  for (const auto& [name, part] : run.by_part) {
    parts += fmt::format("{}{} {:.0f}%", parts.empty() ? "" : ", ", name, 100 * part / std::max(all, 1.0));
  }
  const bool settles = run.budget > 0;
  terminal.print("  a worker sends      {:.0f} bytes per update{}, and gets {:.0f}{}", run.up.expected,
                 settles ? "" : fmt::format(" ({})", parts), run.down.expected,
                 settles ? fmt::format(", of {:.0f} asked for, once thresholds have settled", run.budget) : "");
  terminal.print("                      its gradients as f32: {}, {:.0f} times as much", bytes(run.dense_f32_bytes),
                 run.dense_f32_bytes / run.up.expected);
  if (settles) {
    terminal.print("                      in these first updates: {:.0f} ({}), and {:.0f}", run.up.measured, parts,
                   run.down.measured);
    if (!run.up.follows_budget || !run.down.follows_budget) {
      terminal.print("                      no threshold makes them shorter: statistics take more than was asked for");
    }
  }
  for (std::size_t level = 1; level < run.levels.size(); ++level) {
    terminal.print("  level {:<2}            {} hosts send up {} per update, at most {} one", level, run.levels[level].ranks,
                   bytes(static_cast<double>(run.levels[level].bytes) / static_cast<double>(run.counted)),
                   format_bytes(run.levels[level].largest));
  }
  terminal.print("  time of a worker    {} computing, {} filtering and encoding; choosing flips {}, applying {}",
                 seconds(run.compute), seconds(run.encode), seconds(run.choose), seconds(run.apply));
  if (run.error_feedback_bytes > 0) terminal.print("  a worker keeps      {}", format_bytes(run.error_feedback_bytes));
  terminal.print("  memory              {} in this process for all {} workers", format_bytes(run.peak_memory),
                 settings.train.run.train.workers);
}

// "links below 12 Mbit/s".
std::string describe(const std::vector<std::pair<double, double>>& ranges) {
  if (ranges.empty()) return "no link";
  std::string text;
  for (const auto& [from, to] : ranges) {
    const bool open = !std::isfinite(to);
    text += text.empty() ? "" : ", and on ";
    text += from == 0 && open ? "any link"
            : from == 0       ? fmt::format("links below {:.3g} Mbit/s", to / 1e6)
            : open            ? fmt::format("links above {:.3g} Mbit/s", from / 1e6)
                              : fmt::format("links of {:.3g} to {:.3g} Mbit/s", from / 1e6, to / 1e6);
  }
  return text;
}

void print_modelled(Terminal& terminal, const Outcome& outcome, const PlanSettings& settings) {
  const plan::Plan& plan = outcome.plan;
  terminal.print("modelled, for {} hosts with links of {}, staleness {}:", settings.cluster.hosts,
                 plan::to_string(settings.cluster.link), settings.train.run.train.exchange.staleness);
  terminal.print("  sparse messages     {} per update (one in ten {} or more); the server reply comes after {}",
                 seconds(plan.timeline.update), seconds(plan.timeline.slowest_tenth), seconds(plan.timeline.latency));
  terminal.print("                      hosts compute {:.0f}% of the time, the link to the root is busy {:.0f}% of it",
                 100 * plan.timeline.computing_share, 100 * plan.timeline.root_link_share);
  terminal.print("  dense sums          {} per update, {} from each host", seconds(plan.dense_seconds),
                 bytes(outcome.run.dense_bytes));
  if (settings.cluster.hosts > 1)
    terminal.print("  break-even          sparse messages are faster on {}", describe(plan.sparse_ranges));
  for (const plan::TreeChoice& tree : plan.trees) {
    terminal.print("  --tree {:<12} {} per update, {} level{}, the root receives {}", tree.fan_in,
                   seconds(tree.timeline.update), tree.levels, tree.levels == 1 ? "" : "s", bytes(tree.root_bytes));
  }
  terminal.print("  memory of a host    about {}{}", format_bytes(plan.host_memory),
                 plan.survivor_memory == plan.host_memory
                     ? ""
                     : fmt::format("; {} when half of the hosts are gone and the others carry their workers",
                                   format_bytes(plan.survivor_memory)));
  const plan::Bill& bill = plan.bill;
  if (bill.lost_share >= 1) {
    terminal.print("  to its end          never: a host dies every {}, and each time costs {}",
                   seconds(3600 / (settings.cluster.deaths_per_hour * static_cast<double>(settings.cluster.hosts))),
                   seconds(settings.cluster.recovery_seconds + 0.5 * settings.cluster.checkpoint_seconds));
    return;
  }
  terminal.print(
      "  to its end          {} updates in {}{}{}", static_cast<std::size_t>(outcome.run.total_updates),
      format_duration(3600 * bill.hours),
      bill.deaths > 0 ? fmt::format(", {:.1f} deaths, {:.1f}% of the time lost", bill.deaths, 100 * bill.lost_share) : "",
      settings.cluster.price_per_hour > 0 ? fmt::format(", price {:.2f}", bill.price) : "");
}

// Prints advice, from the stage in which updates take longest.
void print_advice(Terminal& terminal, const Outcomes& outcomes) {
  const Outcome& longest = *std::max_element(outcomes.stages.begin(), outcomes.stages.end(), [](const auto& a, const auto& b) {
    return a.plan.timeline.update < b.plan.timeline.update;
  });
  const plan::Plan& plan = longest.plan;
  const bool sparse = plan.timeline.update < plan.dense_seconds;
  terminal.print("\nadvice: {}", sparse ? "sparse messages" : "--exchange dense");
  const auto best = std::min_element(plan.trees.begin(), plan.trees.end(),
                                     [](const auto& a, const auto& b) { return a.timeline.update < b.timeline.update; });
  if (sparse && best != plan.trees.end() && best->timeline.update < 0.98 * plan.timeline.update) {
    terminal.print("        --tree {}: {:.0f}% faster", best->fan_in, 100 * (plan.timeline.update / best->timeline.update - 1));
  }
  if (sparse && plan.later.update < 0.98 * plan.timeline.update) {
    terminal.print("        --staleness {}: {:.0f}% faster", outcomes.options.staleness + 1,
                   100 * (plan.timeline.update / plan.later.update - 1));
  }
  if (outcomes.stages.size() < 2) return;
  const Whole whole = whole_net(outcomes);
  const auto workers = static_cast<double>(outcomes.options.workers);
  terminal.print(
      "all stages: gradients of all {} weights at once, as f32, {:.0f} bytes per worker and update, {} of {} workers",
      whole.weights, whole.dense_bytes(), bytes(whole.dense_bytes() * workers), outcomes.options.workers);
  terminal.print(
      "            one stage after the other, sparse, at most {:.0f} bytes ({:.0f} times fewer), {}; server replies of {:.0f}",
      whole.up, whole.dense_bytes() / whole.up, bytes(whole.up * workers), whole.down);
  double hours = 0;
  double price = 0;
  for (const Outcome& outcome : outcomes.stages) {
    if (outcome.plan.bill.lost_share >= 1) return;
    hours += outcome.plan.bill.hours;
    price += outcome.plan.bill.price;
  }
  terminal.print("            to their end {}{}", format_duration(3600 * hours),
                 price > 0 ? fmt::format(", price {:.2f}", price) : "");
}

void print_updates(Terminal& terminal, const Outcome& outcome, std::size_t workers) {
  terminal.print("update     loss  accuracy    flips  bytes/worker     reply      to root      time");
  for (std::size_t n = 0; n < outcome.run.updates.size(); ++n) {
    const plan::VirtualUpdate& update = outcome.run.updates[n];
    const std::uint64_t to_root = update.level_bytes.size() > 1 ? update.level_bytes[1] : 0;
    terminal.print("{:>6}  {:>7.3f}  {:>7.1f}%  {:>7}  {:>12.0f}  {:>8}  {:>11}  {:>8}{}", n + 1, update.loss,
                   100 * update.accuracy, update.flips, static_cast<double>(update.worker_bytes) / static_cast<double>(workers),
                   update.reply_bytes, to_root, seconds(update.seconds), update.statistics ? "  with statistics" : "");
  }
  terminal.line("");
}

int run_plan(Session& session, std::span<const std::string> args, Options& options, bool simulates) {
  PlanSettings settings;
  settings.declare(options);
  if (!parse_or_show_help(session, args, options)) return exit_done;
  const Outcomes outcomes = compute(session, options, settings, !simulates);
  Json stages = Json::array();
  for (const Outcome& outcome : outcomes.stages) {
    if (simulates) print_updates(session.terminal, outcome, outcomes.options.workers);
    print_measured(session.terminal, outcome, settings);
    print_modelled(session.terminal, outcome, settings);
    if (&outcome != &outcomes.stages.back()) session.terminal.line("");
    stages.push_back(to_json(outcome, settings));
  }
  print_advice(session.terminal, outcomes);
  if (!settings.json.empty()) {
    Json json = {{"stages", stages}};
    if (outcomes.stages.size() > 1) {
      const Whole whole = whole_net(outcomes);
      json["all_stages"] = {{"weights", whole.weights},
                            {"dense_f32_bytes", whole.dense_bytes()},
                            {"worker_bytes", whole.up},
                            {"answer_bytes", whole.down}};
    }
    write_atomically(settings.json, json.dump(2) + "\n");
  }
  return exit_done;
}

}  // namespace

int plan(Session& session, std::span<const std::string> args) {
  Options options(
      "bitloom plan --data SPEC [--net NAME|FILE] --hosts N --link RATE/LATENCY [options]",
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
