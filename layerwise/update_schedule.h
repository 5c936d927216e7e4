// Which updates by sparse messages carry statistics, as functions of their step's number. Private to a stage's exchange.
#pragma once

#include <cstddef>

#include "layerwise/stage_setup.h"

namespace bitloom::layerwise {

class UpdateSchedule {
 public:
  // `setup` outlives this.
  explicit UpdateSchedule(const StageSetup& setup) : setup_(setup) {}

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
};

}  // namespace bitloom::layerwise
