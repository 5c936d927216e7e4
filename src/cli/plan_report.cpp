#include "cli/plan_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/progress.h"

namespace bitloom::cli {
namespace {

using Json = nlohmann::json;

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

Whole whole_net(const PlannedNet& net) {
  std::map<std::string, std::size_t> weights;
  Whole whole;
  for (const PlannedStage& stage : net.stages) {
    weights.insert(stage.run.weights.begin(), stage.run.weights.end());
    whole.up = std::max(whole.up, stage.run.up.expected);
    whole.down = std::max(whole.down, stage.run.down.expected);
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

Json to_json(const PlannedStage& stage, const PlannedNet& net) {
  const plan::VirtualResult& run = stage.run;
  const plan::Plan& plan = stage.plan;
  Json updates = Json::array();
  for (const plan::VirtualUpdate& update : run.updates) {
    updates.push_back({{"worker_bytes", update.worker_bytes},
                       {"reply_bytes", update.reply_bytes},
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
  return {{"stage", stage.name},
          {"expected_bytes", expected_bytes(run)},
          {"measured",
           {{"updates", updates},
            {"levels", levels},
            {"worker_bytes", run.up.measured},
            {"reply_bytes", run.down.measured},
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
           {{"hosts", net.cluster.hosts},
            {"link", plan::to_string(net.cluster.link)},
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

void print_measured(Terminal& terminal, const PlannedStage& stage, const PlannedNet& net) {
  const plan::VirtualResult& run = stage.run;
  terminal.print("stage {}, measured here in {} updates of {} images, {} one-bit weights learning:", stage.name,
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
                 net.options.workers);
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

void print_modelled(Terminal& terminal, const PlannedStage& stage, const PlannedNet& net) {
  const plan::Plan& plan = stage.plan;
  terminal.print("modelled, for {} hosts with links of {}, staleness {}:", net.cluster.hosts, plan::to_string(net.cluster.link),
                 net.options.staleness);
  terminal.print("  sparse messages     {} per update (one in ten {} or more); the server reply comes after {}",
                 seconds(plan.timeline.update), seconds(plan.timeline.slowest_tenth), seconds(plan.timeline.latency));
  terminal.print("                      hosts compute {:.0f}% of the time, the link to the root is busy {:.0f}% of it",
                 100 * plan.timeline.computing_share, 100 * plan.timeline.root_link_share);
  terminal.print("  dense sums          {} per update, {} from each host", seconds(plan.dense_seconds),
                 bytes(stage.run.dense_bytes));
  if (net.cluster.hosts > 1)
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
                   seconds(3600 / (net.cluster.deaths_per_hour * static_cast<double>(net.cluster.hosts))),
                   seconds(net.cluster.recovery_seconds + 0.5 * net.cluster.checkpoint_seconds));
    return;
  }
  terminal.print(
      "  to its end          {} updates in {}{}{}", static_cast<std::size_t>(stage.run.total_updates),
      format_duration(3600 * bill.hours),
      bill.deaths > 0 ? fmt::format(", {:.1f} deaths, {:.1f}% of the time lost", bill.deaths, 100 * bill.lost_share) : "",
      net.cluster.price_per_hour > 0 ? fmt::format(", price {:.2f}", bill.price) : "");
}

// Prints advice, from the stage in which updates take longest.
void print_advice(Terminal& terminal, const PlannedNet& net) {
  const PlannedStage& longest = *std::max_element(net.stages.begin(), net.stages.end(), [](const auto& a, const auto& b) {
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
    terminal.print("        --staleness {}: {:.0f}% faster", net.options.staleness + 1,
                   100 * (plan.timeline.update / plan.later.update - 1));
  }
  if (net.stages.size() < 2) return;
  const Whole whole = whole_net(net);
  const auto workers = static_cast<double>(net.options.workers);
  terminal.print(
      "all stages: gradients of all {} weights at once, as f32, {:.0f} bytes per worker and update, {} of {} workers",
      whole.weights, whole.dense_bytes(), bytes(whole.dense_bytes() * workers), net.options.workers);
  terminal.print(
      "            one stage after the other, sparse, at most {:.0f} bytes ({:.0f} times fewer), {}; server replies of {:.0f}",
      whole.up, whole.dense_bytes() / whole.up, bytes(whole.up * workers), whole.down);
  double hours = 0;
  double price = 0;
  for (const PlannedStage& stage : net.stages) {
    if (stage.plan.bill.lost_share >= 1) return;
    hours += stage.plan.bill.hours;
    price += stage.plan.bill.price;
  }
  terminal.print("            to their end {}{}", format_duration(3600 * hours),
                 price > 0 ? fmt::format(", price {:.2f}", price) : "");
}

void print_updates(Terminal& terminal, const PlannedStage& stage, std::size_t workers) {
  terminal.print("update     loss  accuracy    flips  bytes/worker     reply      to root      time");
  for (std::size_t n = 0; n < stage.run.updates.size(); ++n) {
    const plan::VirtualUpdate& update = stage.run.updates[n];
    const std::uint64_t to_root = update.level_bytes.size() > 1 ? update.level_bytes[1] : 0;
    terminal.print("{:>6}  {:>7.3f}  {:>7.1f}%  {:>7}  {:>12.0f}  {:>8}  {:>11}  {:>8}{}", n + 1, update.loss,
                   100 * update.accuracy, update.flips, static_cast<double>(update.worker_bytes) / static_cast<double>(workers),
                   update.reply_bytes, to_root, seconds(update.seconds), update.statistics ? "  with statistics" : "");
  }
  terminal.line("");
}

}  // namespace

void print_plan(Terminal& terminal, const PlannedNet& net, bool with_updates) {
  for (const PlannedStage& stage : net.stages) {
    if (with_updates) print_updates(terminal, stage, net.options.workers);
    print_measured(terminal, stage, net);
    print_modelled(terminal, stage, net);
    if (&stage != &net.stages.back()) terminal.line("");
  }
  print_advice(terminal, net);
}

Json to_json(const PlannedNet& net) {
  Json stages = Json::array();
  for (const PlannedStage& stage : net.stages) stages.push_back(to_json(stage, net));
  Json json = {{"stages", stages}};
  if (net.stages.size() > 1) {
    const Whole whole = whole_net(net);
    json["all_stages"] = {{"weights", whole.weights},
                          {"dense_f32_bytes", whole.dense_bytes()},
                          {"worker_bytes", whole.up},
                          {"reply_bytes", whole.down}};
  }
  return json;
}

}  // namespace bitloom::cli
