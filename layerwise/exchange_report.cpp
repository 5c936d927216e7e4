#include "layerwise/exchange_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <vector>

#include "core/field.h"
#include "mpi/tree.h"

namespace bitloom::layerwise {

using Json = nlohmann::json;

namespace {

// Counts and times of each rank in the sparse exchange of an epoch.
class RankTable {
 public:
  enum Column { sent_up, sent_down, missed, at_limit, compute_us, encode_us, update_us, wait_us, columns };

  // Collective: `epoch` is this rank's.
  RankTable(mpi::Comm& comm, const StepResult& epoch)
      : ranks_(static_cast<std::size_t>(comm.size())), values_(ranks_ * columns) {
    const auto mine = std::span(values_).subspan(static_cast<std::size_t>(comm.rank()) * columns, columns);
    const auto microseconds = [](double seconds) { return static_cast<std::int64_t>(1e6 * seconds); };
    const mpi::TreeCounts& tree = epoch.exchange.tree;
    mine[sent_up] = static_cast<std::int64_t>(tree.sent_up);
    mine[sent_down] = static_cast<std::int64_t>(tree.sent_down);
    mine[missed] = static_cast<std::int64_t>(tree.missed);
    mine[at_limit] = static_cast<std::int64_t>(epoch.exchange.at_limit);
    mine[compute_us] = microseconds(epoch.times.computing());
    const double encode = epoch.exchange.encode + tree.merge;
    mine[encode_us] = microseconds(encode);
    mine[update_us] = microseconds(std::max(0.0, epoch.times.reduce + epoch.times.update - encode - tree.wait));
    mine[wait_us] = microseconds(tree.wait);
    comm.sum(std::span(values_));
  }

  std::size_t ranks() const { return ranks_; }
  std::vector<std::int64_t> column(Column c) const {
    std::vector<std::int64_t> values;
    for (std::size_t rank = 0; rank < ranks_; ++rank) values.push_back(values_[rank * columns + c]);
    return values;
  }
  // Seconds per update: of rank 0, the mean over ranks, and of the rank that waits least, for which the others wait.
  Json seconds_per_update(std::uint64_t updates) const {
    const std::vector<std::int64_t> waits = column(wait_us);
    const auto busiest = static_cast<std::size_t>(std::min_element(waits.begin(), waits.end()) - waits.begin());
    const auto split = [&](std::size_t first, std::size_t count) {
      const auto part = [&](Column c) {
        const std::vector<std::int64_t> all = column(c);
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
        const double sum = std::accumulate(begin, begin + static_cast<std::ptrdiff_t>(count), 0.0);
        return 1e-6 * sum / static_cast<double>(count * std::max<std::uint64_t>(updates, 1));
      };
      return Json{
          {"compute", part(compute_us)}, {"encode", part(encode_us)}, {"update", part(update_us)}, {"wait", part(wait_us)}};
    };
    Json seconds = {{"root", split(0, 1)}, {"mean", split(0, ranks_)}, {"busiest", split(busiest, 1)}};
    seconds["busiest"]["rank"] = busiest;
    return seconds;
  }
  // Figures of each level of the tree, the root's first.
  Json levels(int fan_in) const {
    Json levels = Json::array();
    for (std::size_t rank = 0; rank < ranks_ && ranks_ > 1; ++rank) {
      const mpi::Tree tree(static_cast<int>(rank), static_cast<int>(ranks_), fan_in);
      if (levels.size() <= static_cast<std::size_t>(tree.level()))
        levels.push_back({{"ranks", 0}, {"sent_up", 0}, {"sent_down", 0}});
      Json& level = levels.back();
      level["ranks"] = level["ranks"].get<std::size_t>() + 1;
      level["sent_up"] = level["sent_up"].get<std::int64_t>() + values_[rank * columns + sent_up];
      level["sent_down"] = level["sent_down"].get<std::int64_t>() + values_[rank * columns + sent_down];
    }
    return levels;
  }
  Json to_json() const {
    return {{"sent_up", column(sent_up)},
            {"sent_down", column(sent_down)},
            {"missed", column(missed)},
            {"compute_microseconds", column(compute_us)},
            {"encode_microseconds", column(encode_us)},
            {"update_microseconds", column(update_us)},
            {"wait_microseconds", column(wait_us)}};
  }

 private:
  std::size_t ranks_;
  std::vector<std::int64_t> values_;  // (ranks, columns)
};

}  // namespace

Json ExchangeReport::sum_up(const StepResult& epoch, std::string& text) const {
  const mpi::ExchangeCounts& counts = epoch.exchange;
  const RankTable table(comm_, epoch);
  if (const std::vector<std::int64_t> late = table.column(RankTable::missed);
      std::any_of(late.begin(), late.end(), [](auto n) { return n > 0; })) {
    const std::vector<std::string> names = mpi::host_names(comm_);
    for (std::size_t rank = 0; rank < names.size(); ++rank) {
      if (late[rank] == 0) continue;
      progress_.line(fmt::format("{}: rank {} on host {} was late in {} of {} updates", stage_.spec().name, rank, names[rank],
                                 late[rank], counts.updates));
    }
  }
  const std::vector<std::int64_t> full = table.column(RankTable::at_limit);
  const auto at_limit = std::accumulate(full.begin(), full.end(), std::int64_t{0});
  if (at_limit > 0) {
    progress_.line(fmt::format("{}: what workers keep of gradients was at its limit {} times, and lost what went beyond",
                               stage_.spec().name, at_limit));
  }
  if (!comm_.is_root()) return {};
  const double up = static_cast<double>(counts.worker_bytes) / std::max(1.0, static_cast<double>(counts.workers));
  const double down = static_cast<double>(counts.reply_bytes) / std::max(1.0, static_cast<double>(counts.replies));
  const auto elements = static_cast<double>(counts.elements);
  const double each = elements / static_cast<double>(counts.worker_updates);
  text += fmt::format(", {:.0f} bytes up and {:.0f} down per worker and update", up, down);
  return {{"workers", train_.workers},
          {"updates", counts.updates},
          {"bytes_per_worker_update", up},
          {"bytes_per_reply", down},
          {"bytes_up_by_part", stage_.bytes_by_part(counts)},
          {"dense_f32_bytes", 4 * each},
          {"bytes_wanted", counts.wanted_bytes / std::max(1.0, static_cast<double>(counts.replies))},
          {"bytes_wanted_mean", stage_.exchange()->budget(static_cast<std::uint64_t>(each))},
          {"sent_share", static_cast<double>(counts.sent_elements) / std::max(elements, 1.0)},
          {"values_at_limit", at_limit},
          {"seconds_per_update", table.seconds_per_update(counts.updates)},
          {"levels", table.levels(train_.exchange.tree.fan_in)},
          {"ranks", table.to_json()}};
}

void ExchangeReport::check_budget(const Json& exchange) const {
  if (!comm_.is_root() || exchange.empty()) return;
  const double wanted = exchange["bytes_wanted"];
  const double up = exchange["bytes_per_worker_update"];
  const double down = exchange["bytes_per_reply"];
  if (wanted == 0 || std::max(up, down) < 1.1 * wanted) return;
  progress_.line(fmt::format(
      "{}: messages have {:.0f} bytes up and {:.0f} down where {:.0f} were asked for; statistics take {:.0f} up, "
      "fewer with a larger `statistics_every` (now {})",
      stage_.spec().name, up, down, wanted, exchange["bytes_up_by_part"].value("statistics", 0.0), stage_.statistics_every()));
}

void ExchangeReport::check_plan(const Json& exchange, const PlannedBytes& planned, std::uint64_t dense_sent) const {
  const auto compare = [&](const char* what, double sent, double wanted, double off) {
    if (std::abs(sent - wanted) <= off) return;
    fail_field(ErrorKind::data, "plan", "stage '{}': {} {:.0f} bytes; the plan said {:.0f}{}", stage_.spec().name, what, sent,
               wanted, off > 0 ? fmt::format(", {:.0f} more or less", off) : "");
  };
  comm_.together([&] {
    if (train_.sparse) {
      if (!comm_.is_root()) return;
      const auto compare_way = [&](const char* what, double sent, const PlannedBytes::Sparse& way) {
        // Plans have the mean over a run, of which this epoch wants its share. In runs of few updates thresholds lag behind.
        const double mean = exchange["bytes_wanted_mean"];
        const double share = way.follows_budget ? exchange["bytes_wanted"].get<double>() / mean : 1;
        const bool changes = std::abs(share - 1) > 1e-6;
        compare(what, sent, share * way.bytes, (changes ? 2 : 1) * way.tolerance * way.bytes);
      };
      compare_way("a worker sent per update", exchange["bytes_per_worker_update"], planned.up);
      compare_way("a server reply had", exchange["bytes_per_reply"], planned.down);
    } else if (comm_.size() > 1 && dense_sent > 0) {
      compare("a process puts into the sums of an update", static_cast<double>(dense_sent), static_cast<double>(planned.dense),
              0);
    }
  });
}

}  // namespace bitloom::layerwise
