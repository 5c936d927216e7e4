// Seconds that a scope takes, added to a total.
#pragma once

#include "core/clock.h"

namespace bitloom {

// Adds the seconds of its life to a total.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total) {}
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;
  ~Stopwatch() { total_ += seconds_since(start_); }

 private:
  double& total_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace bitloom
