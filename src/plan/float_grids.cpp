#include "plan/float_grids.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "core/progress.h"
#include "plan/float_compression.h"

namespace bitloom::plan {
namespace {

// Micro-batches to look at, larger ones first: of equally good ones these send fewer messages.
std::vector<std::size_t> candidates(const FloatOptions& options, std::size_t data) {
  if (options.micro_batch != 0) return {options.micro_batch};
  const std::size_t share = std::max<std::size_t>(1, options.batch / data);
  std::vector<std::size_t> divisors;
  for (std::size_t n = share; n >= 1; --n) {
    if (share % n == 0) divisors.push_back(n);
  }
  return divisors;
}

// A plan that fits is better than one that does not; then the faster one is, or the one that lacks less memory.
bool is_better(const FloatPlan& a, const FloatPlan& b) {
  if (a.fits != b.fits) return a.fits;
  if (!a.fits) return a.memory().total() < b.memory().total();
  return a.seconds < b.seconds;
}

}  // namespace

std::vector<FloatPlan> plan_grids(const FloatModel& model, int ranks, const GridWish& wish, const FloatOptions& options,
                                  const FloatCluster& cluster) {
  const mpi::GridShape wanted{1, wish.pipeline.value_or(1), wish.tensor.value_or(1)};
  std::vector<FloatPlan> plans;
  std::string reason;
  for (const mpi::GridShape& grid : mpi::shapes_of(ranks, wanted)) {
    if (wish.pipeline.value_or(grid.pipeline) != grid.pipeline || wish.tensor.value_or(grid.tensor) != grid.tensor) continue;
    std::optional<FloatPlan> best;
    for (const std::size_t micro_batch : candidates(options, static_cast<std::size_t>(grid.data))) {
      FloatOptions with = options;
      with.micro_batch = micro_batch;
      const std::string against = reason_against(model, grid, with);
      if (reason.empty()) reason = against;
      if (!against.empty()) continue;
      FloatPlan plan = plan_grid(model, grid, with, cluster);
      if (!best || is_better(plan, *best)) best = std::move(plan);
    }
    if (best) plans.push_back(std::move(*best));
  }
  if (plans.empty()) {
    if (reason.empty() && wanted.tensor == 1) {
      reason = fmt::format("{}: {}; expected a divisor of {} ranks", marked_field("pipeline"), wanted.pipeline, ranks);
    }
    if (reason.empty()) {
      reason = fmt::format("{}: {}; with {} {} expected to divide {} ranks", marked_field("tensor"), wanted.tensor,
                           marked_field("pipeline"), wanted.pipeline, ranks);
    }
    fail(ErrorKind::usage, "{}; {}", reason, possible_grids(model, ranks, wanted, options));
  }
  std::ranges::stable_sort(plans, is_better);
  return plans;
}

std::vector<CompressionPlan> plan_compressions(const FloatModel& model, int ranks, const FloatOptions& options,
                                               const FloatCluster& cluster) {
  std::vector<CompressionPlan> plans;
  FloatOptions with = options;
  with.shard = train::ShardLevel::none;
  with.compress_rank = 0;
  if (ranks == 1 || !reason_against(model, {ranks, 1, 1}, with).empty()) return plans;
  const auto plan = [&] { return plan_grids(model, ranks, {1, 1}, with, cluster).front(); };
  const auto bytes = [](const FloatPlan& each) { return static_cast<double>(each.stages.front().data.total()); };
  plans.push_back({0, plan()});
  for (with.compress_rank = 1;; with.compress_rank *= 2) {
    CompressionPlan next{with.compress_rank, plan()};
    if (bytes(next.plan) > largest_share * bytes(plans.front().plan)) return plans;
    plans.push_back(std::move(next));
  }
}

std::size_t choose_micro_batch(const FloatModel& model, const mpi::GridShape& grid, const FloatOptions& options,
                               const FloatCluster& cluster, std::size_t enough, const std::string& savers) {
  const std::size_t share = options.batch / static_cast<std::size_t>(grid.data);
  const auto stages = static_cast<std::size_t>(grid.pipeline);
  require_grid(model, grid, options);
  std::size_t chosen = 0;
  for (std::size_t examples = std::max<std::size_t>(1, options.micro_batch); examples <= share; ++examples) {
    if (share % examples != 0) continue;
    FloatOptions with = options;
    with.micro_batch = examples;
    if (const std::string reason = reason_against(model, grid, with); !reason.empty()) {
      if (chosen == 0) fail(ErrorKind::usage, "{}", reason);
      continue;
    }
    const FloatPlan plan = plan_grid(model, grid, with, cluster);
    const bool is_given = options.micro_batch != 0;
    if (!plan.fits && chosen == 0 && grid.ranks() > 1) {
      fail(ErrorKind::usage, "{}", describe_misfit(model, plan, with, cluster));
    }
    if (!plan.fits && chosen == 0 && !is_given) {
      fail_field(ErrorKind::usage, "micro_batch", "one {} takes {}, more than the {} there are; {}", model.example,
                 format_bytes(plan.memory().total()), format_bytes(cluster.memory), savers);
    }
    if (is_given) return examples;
    const bool idles = stages > 1 && share / examples < 4 * stages;
    if (!plan.fits || (idles && chosen != 0)) break;
    chosen = examples;
    if (examples * model.tokens >= enough) break;
  }
  return chosen;
}

std::size_t most_examples(const std::function<std::uint64_t(std::size_t)>& bytes, std::uint64_t limit) {
  const auto fits = [&](std::size_t examples) { return bytes(examples) <= limit; };
  if (!fits(1)) return 0;
  std::size_t low = 1;
  while (fits(2 * low)) low *= 2;
  for (std::size_t high = 2 * low; high - low > 1;) {
    const std::size_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

std::string describe_misfit(const FloatModel& model, const FloatPlan& plan, const FloatOptions& options,
                            const FloatCluster& cluster) {
  FloatOptions any = options;
  any.micro_batch = 0;
  any.partition = {};  // of as many parts as this grid has
  const std::vector<FloatPlan> plans = plan_grids(model, plan.grid.ranks(), {}, any, cluster);
  const FloatPlan& best = plans.front();
  const std::string with = fmt::format("data x pipeline x tensor {} with {} {}", mpi::described(best.grid),
                                       marked_field("micro_batch"), best.micro_batch);
  return fmt::format("stage {} takes {} on each rank, more than the {} there are; {}", plan.largest,
                     format_bytes(plan.memory().total()), format_bytes(cluster.memory),
                     best.fits ? fmt::format("{} would fit, with {}", with, format_bytes(best.memory().total()))
                               : fmt::format("no grid of {} ranks would fit: {} takes least, {}", plan.grid.ranks(), with,
                                             format_bytes(best.memory().total())));
}

}  // namespace bitloom::plan
