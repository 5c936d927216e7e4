// Where the time of a step goes.
#pragma once

#include <chrono>

#include "core/clock.h"

namespace bitloom::layerwise {

// Wall-clock seconds of one or more steps, by phase; per-image phases are averaged over threads.
struct PhaseTimes {
  double data = 0, encode = 0, prefix = 0, forward = 0, head = 0, gradient = 0, reduce = 0, update = 0;
  PhaseTimes& operator+=(const PhaseTimes& other) {
    data += other.data;
    encode += other.encode;
    prefix += other.prefix;
    forward += other.forward;
    head += other.head;
    gradient += other.gradient;
    reduce += other.reduce;
    update += other.update;
    return *this;
  }
  // Time on this rank's own images.
  double computing() const { return data + encode + prefix + forward + head + gradient; }
  double total() const { return computing() + reduce + update; }
};

// Adds the seconds since `start` to `total` and restarts.
inline void lap(Clock::time_point& start, double& total) {
  const Clock::time_point now = Clock::now();
  total += std::chrono::duration<double>(now - start).count();
  start = now;
}

}  // namespace bitloom::layerwise
