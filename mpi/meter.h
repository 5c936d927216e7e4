// Counting and timing of collectives. Private to mpi/.
#pragma once

#include "core/stopwatch.h"
#include "mpi/comm.h"

namespace bitloom::mpi {

// Adds a call, its payload and its duration to a Traffic, whether or not the call succeeds.
class Meter {
 public:
  // A piece of a call that was counted before.
  explicit Meter(Traffic& traffic) : seconds_(traffic.seconds) {}
  Meter(Traffic& traffic, std::size_t bytes) : Meter(traffic) {
    traffic.bytes_sent += bytes;
    ++traffic.calls;
  }

 private:
  Stopwatch seconds_;
};

}  // namespace bitloom::mpi
