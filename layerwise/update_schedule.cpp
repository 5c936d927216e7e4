#include "layerwise/update_schedule.h"

#include <algorithm>
#include <cmath>

#include "optim/schedule.h"

namespace bitloom::layerwise {
namespace {

constexpr std::size_t first_updates = 4;  // with statistics, when heads and when weights begin to learn

constexpr std::size_t usual_interval = 8;
constexpr std::size_t longest_interval = 256;  // thresholds follow statistics
constexpr double share_of_statistics = 0.25;
constexpr double bytes_of_statistic = 1.7;  // as they are encoded, in nets of tens to hundreds of channels

}  // namespace

std::size_t statistics_interval(const mpi::ExchangeOptions& options, double budget, std::uint64_t statistics) {
  if (options.statistics_every != 0) return options.statistics_every;
  if (budget == 0) return usual_interval;
  const double bytes = bytes_of_statistic * static_cast<double>(statistics);
  const auto wanted = static_cast<std::size_t>(std::min(std::ceil(bytes / (share_of_statistics * budget)), 1e6));
  return std::clamp(wanted, usual_interval, longest_interval);
}

bool UpdateSchedule::statistics_due(std::size_t step) const {
  const mpi::ExchangeOptions& options = setup_.options.exchange;
  // Heads have gradients once they have seen statistics, and weights once heads have learned from replies to theirs: with
  // staleness all of that comes late.
  const std::size_t first = first_updates + 4 * options.staleness;
  const bool just_begun = step < first || (setup_.learns(step) && !setup_.learns(step - first));
  return options.exact() || just_begun || (step + 1) % every_ == 0;
}

std::size_t UpdateSchedule::steps_observed(std::size_t step) const {
  std::size_t steps = 1;
  while (steps <= step && !statistics_due(step - steps)) ++steps;
  return steps;
}

// With a staleness of 2 or more some after the next statistics miss it too; these draw the means back, by a few percent of the
// change.
std::size_t UpdateSchedule::steps_unseen(std::size_t step) const {
  const mpi::ExchangeOptions& options = setup_.options.exchange;
  if (!options.keeps()) return 0;
  const std::size_t before = statistics_due(step) ? 0 : steps_observed(step);
  std::size_t after = 1;
  while (!statistics_due(step + after)) ++after;
  return std::min(before + options.staleness, before + after);
}

// Messages are as long as learning is fast: most weights flip at the start of a stage.
double UpdateSchedule::message_length(std::size_t step) const {
  const double last = setup_.options.exchange.last_messages;
  return last + 2 * (1 - last) * cosine_decay(setup_.progress(step), 0);
}

}  // namespace bitloom::layerwise
