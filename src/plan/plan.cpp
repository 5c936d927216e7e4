#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "mpi/tree.h"

namespace bitloom::plan {
namespace {

constexpr double slowest_link = 1e3, fastest_link = 1e12;  // bits per second that are looked at
constexpr double link_step = 4;

// Between which rates of links sparse messages are faster than dense sums.
std::vector<std::pair<double, double>> faster_between(Cluster cluster, const PlanOptions& options, const UpdateCosts& sparse,
                                                      double dense_compute, double dense_bytes) {
  const auto sparse_wins = [&](double rate) {
    cluster.link.bits_per_second = rate;
    return run_timeline(cluster, options.workers, options.fan_in, options.staleness, sparse, options.seed).update <
           dense_update_seconds(cluster, dense_compute, dense_bytes, options.seed);
  };
  std::vector<std::pair<double, double>> ranges;
  bool before = sparse_wins(slowest_link);
  if (before) ranges.emplace_back(0, std::numeric_limits<double>::infinity());
  for (double rate = slowest_link; rate < fastest_link; rate *= link_step) {
    const bool now = sparse_wins(rate * link_step);
    if (now == before) continue;
    double low = rate;
    double high = rate * link_step;
    for (int i = 0; i < 6; ++i) {
      const double middle = std::sqrt(low * high);
      (sparse_wins(middle) == before ? low : high) = middle;
    }
    if (now) {
      ranges.emplace_back(high, std::numeric_limits<double>::infinity());
    } else {
      ranges.back().second = high;
    }
    before = now;
  }
  return ranges;
}

}  // namespace

double merged_bytes(const std::vector<MergedMessage>& measured, std::size_t workers) {
  if (measured.empty()) fail(ErrorKind::usage, "merged_bytes: nothing was measured");
  const auto wanted = static_cast<double>(workers);
  const auto from = [&](const MergedMessage& a, const MergedMessage& b) {
    const double slope =
        std::log(b.bytes / a.bytes) / std::log(static_cast<double>(b.workers) / static_cast<double>(a.workers));
    return a.bytes * std::pow(wanted / static_cast<double>(a.workers), slope);
  };
  const auto above = std::lower_bound(measured.begin(), measured.end(), workers,
                                      [](const MergedMessage& message, std::size_t w) { return message.workers < w; });
  if (above != measured.end() && above->workers == workers) return above->bytes;
  if (measured.size() == 1) return measured.front().bytes * wanted / static_cast<double>(measured.front().workers);
  if (above == measured.begin()) return from(measured[0], measured[1]);
  if (above == measured.end()) return from(measured[measured.size() - 2], measured.back());
  return from(*(above - 1), *above);
}

UpdateCosts costs_of(const VirtualResult& run, std::size_t workers, std::size_t hosts) {
  UpdateCosts costs;
  costs.compute = (run.compute + run.encode) * static_cast<double>(workers) / static_cast<double>(hosts);
  costs.choose = run.choose;
  costs.apply = run.apply;
  costs.merge_per_byte = run.merge_per_byte;
  costs.message_bytes = [measured = run.merging](std::size_t count) { return merged_bytes(measured, count); };
  costs.reply_bytes = run.down.expected;
  return costs;
}

Plan make_plan(const VirtualResult& run, const Cluster& cluster, const PlanOptions& options) {
  check(cluster);
  const UpdateCosts costs = costs_of(run, options.workers, cluster.hosts);
  Plan plan;
  plan.timeline = run_timeline(cluster, options.workers, options.fan_in, options.staleness, costs, options.seed);
  const auto hosts = static_cast<int>(cluster.hosts);
  for (int fan_in = 2; cluster.hosts > 2; fan_in *= 2) {
    const bool last = fan_in >= hosts - 1;
    const mpi::Tree tree(0, hosts, last ? hosts - 1 : fan_in);
    TreeChoice choice;
    choice.fan_in = last ? hosts - 1 : fan_in;
    choice.levels = tree.whole_height();
    for (const int child : tree.children()) {
      std::size_t workers = 0;
      for (const int rank : mpi::Tree(child, hosts, choice.fan_in).subtree()) {
        const auto r = static_cast<std::size_t>(rank);
        workers += (r + 1) * options.workers / cluster.hosts - r * options.workers / cluster.hosts;
      }
      choice.root_bytes += costs.message_bytes(workers);
    }
    choice.timeline = run_timeline(cluster, options.workers, choice.fan_in, options.staleness, costs, options.seed);
    plan.trees.push_back(choice);
    if (last) break;
  }
  // Dense sums need neither filter nor codec.
  const double dense_compute = run.compute * static_cast<double>(options.workers) / static_cast<double>(cluster.hosts);
  plan.dense_seconds = dense_update_seconds(cluster, dense_compute + run.apply, run.dense_bytes, options.seed);
  if (cluster.hosts > 1) {
    plan.sparse_ranges = faster_between(cluster, options, costs, dense_compute + run.apply, run.dense_bytes);
  }
  // Less what is here of all hosts.
  const std::size_t images_here = std::max(options.images, run.images);
  const std::uint64_t elsewhere = run.error_feedback_bytes * options.workers + run.message_bytes +
                                  options.data_bytes / std::max<std::size_t>(options.images, 1) *
                                      (images_here > options.images ? images_here + options.images : images_here);
  const std::uint64_t rest = run.peak_memory > elsewhere ? run.peak_memory - elsewhere : 0;
  const std::size_t most = (options.workers + cluster.hosts - 1) / cluster.hosts;
  plan.host_memory = options.data_bytes + rest + run.error_feedback_bytes * most;
  const std::size_t half = (cluster.hosts + 1) / 2;
  plan.survivor_memory = plan.host_memory + run.error_feedback_bytes * ((options.workers + half - 1) / half - most);
  plan.later = run_timeline(cluster, options.workers, options.fan_in, options.staleness + 1, costs, options.seed);
  plan.bill = estimate_bill(cluster, options.updates, plan.timeline.update);
  return plan;
}

}  // namespace bitloom::plan
