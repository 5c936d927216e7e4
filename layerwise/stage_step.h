// A step of a stage: what a rank asks for, what comes of it, and the step under way.
#pragma once

#include <cstddef>
#include <vector>

#include "layerwise/count_cache.h"
#include "layerwise/phase_times.h"
#include "mpi/sparse_exchange.h"

namespace bitloom::layerwise {

// A rank's requests for a step. Those that others must know travel with the step's sums, so that no message is spent on them.
struct StepRequest {
  bool stop = false;        // the run is to end after this step
  bool checkpoint = false;  // it is time for one
  // Shortest time that this rank's computing takes, in seconds, as on a slower machine.
  double pace_seconds = 0;
};

// With sparse messages and staleness, of an update some steps ago: of none in a stage's first steps, of several in its last.
struct StepResult {
  std::size_t images = 0;            // number of images in these sums
  std::vector<double> loss;          // per head, summed over images, in nats
  std::vector<std::size_t> correct;  // per head
  std::vector<std::size_t> flips;    // per trained layer
  std::vector<double> active_share;  // per trained layer, when it was last summed
  std::vector<double> lower_share;   // per trained layer: share of flips that lower the loss (exact signal, dense sums)
  std::vector<CountMode> modes;      // per trained layer: how it was computed
  PhaseTimes times;                  // of this rank
  mpi::ExchangeCounts exchange;      // counts of this rank, with sparse messages
  // Whether any rank asked for it in its StepRequest.
  bool stop = false, checkpoint = false;

  // Keeps the memory.
  void clear(std::size_t heads, std::size_t layers);
};

// The step under way, or the next one.
struct StageStep {
  std::size_t number = 0;
  StepRequest request;
  StepResult result;

  // Waits until this share of the requested time has passed since `start`.
  void keep_pace(Clock::time_point start, double share);
};

}  // namespace bitloom::layerwise
