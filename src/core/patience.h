// Waiting that a suspended process does not do.
#pragma once

#include <algorithm>
#include <chrono>

#include "core/clock.h"

namespace bitloom {

// Time that passes for somebody who looks again and again. What passes between two looks counts as `longest` at most: a process
// that was suspended (SIGSTOP, a machine that slept), and perhaps its peers with it, has not waited meanwhile.
class Patience {
 public:
  explicit Patience(Clock::time_point start, Clock::duration longest = std::chrono::seconds(1))
      : last_(start), longest_(longest) {}
  // Seconds that have counted so far.
  double waited(Clock::time_point now) {
    waited_ += std::min(now - last_, longest_);
    last_ = now;
    return std::chrono::duration<double>(waited_).count();
  }

 private:
  Clock::time_point last_;
  Clock::duration longest_, waited_{0};
};

}  // namespace bitloom
