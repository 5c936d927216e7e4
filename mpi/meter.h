// Counting and timing of collectives. Private to mpi/.
#pragma once

#include "core/clock.h"
#include "mpi/comm.h"

namespace bitloom::mpi {

// Adds a call, its payload and its duration to a Traffic, whether or not the call succeeds.
class Meter {
 public:
  // A piece of a call that was counted before.
  explicit Meter(Traffic& traffic) : traffic_(traffic) {}
  Meter(Traffic& traffic, std::size_t bytes) : traffic_(traffic) {
    traffic_.bytes_sent += bytes;
    ++traffic_.calls;
  }
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  ~Meter() { traffic_.seconds += seconds_since(start_); }

 private:
  Traffic& traffic_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace bitloom::mpi
