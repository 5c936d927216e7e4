// Which updates by sparse messages carry statistics, as functions of their step's number. Private to a stage's exchange.
#pragma once

#include <cstddef>
#include <cstdint>

#include "layerwise/stage_setup.h"

namespace bitloom::layerwise {

// Updates between those that carry statistics, as the options say; where these leave it open, 8, or as many more as keep
// statistics to about a quarter of messages of `budget` bytes on average (0: any). statistics: number of them in an update.
std::size_t statistics_interval(const mpi::ExchangeOptions& options, double budget, std::uint64_t statistics);

class UpdateSchedule {
 public:
  // every: updates between those that carry statistics. `setup` outlives this.
  UpdateSchedule(const StageSetup& setup, std::size_t every) : setup_(setup), every_(every) {}

  std::size_t statistics_every() const { return every_; }

  // Whether a step's update carries statistics.
  bool statistics_due(std::size_t step) const;
  // Number of steps whose statistics these are, this one included, if workers sum them up.
  std::size_t steps_observed(std::size_t step) const;
  // Number of steps, of those whose statistics are sent together, that are computed before a step's change is there.
  std::size_t steps_unseen(std::size_t step) const;
  // Length of a step's messages, in mean lengths.
  double message_length(std::size_t step) const;

 private:
  const StageSetup& setup_;
  std::size_t every_;
};

}  // namespace bitloom::layerwise
