#include "layerwise/stage_step.h"

#include <chrono>
#include <thread>

namespace bitloom::layerwise {

void StepResult::clear(std::size_t heads, std::size_t layers) {
  images = 0;
  loss.assign(heads, 0);
  correct.assign(heads, 0);
  flips.assign(layers, 0);
  active_share.assign(layers, 0);
  lower_share.clear();
  modes.clear();
  times = {};
  exchange = {};
  stop = checkpoint = false;
}

void StageStep::keep_pace(Clock::time_point start, double share) {
  if (request.pace_seconds <= 0) return;
  Clock::time_point clock = Clock::now();
  std::this_thread::sleep_until(
      start + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(share * request.pace_seconds)));
  lap(clock, result.times.forward);
}

}  // namespace bitloom::layerwise
