// Time that gradients take by factors (power_sgd.h), as measured, and whether the bytes that these save are worth it.
#pragma once

#include <cstdint>

#include "mpi/comm.h"

namespace bitloom::train {

// Sums over steps.
struct CompressionTimes {
  std::uint64_t steps = 0;
  double computing_seconds = 0;   // of factors, of gradients from them, and of error buffers
  double waiting_seconds = 0;     // for sums of factors and of gradients that go as they are
  std::uint64_t sent_bytes = 0;   // to these sums by a process; 0 in a process alone
  std::uint64_t whole_bytes = 0;  // of the same gradients, all as they are

  void add(const CompressionTimes& other);
};

// Collective: the means over processes, whose steps and bytes are the same.
CompressionTimes mean_over(mpi::Comm& comm, CompressionTimes times);

// Seconds that the bytes which factors save would have taken, at the pace of those that were waited for: 0 where the passes hid
// all sums, which a few more bytes would not change.
double saved_seconds(const CompressionTimes& times);

// Whether whole gradients would have been faster: factors were computed for longer than that. Never of a process alone, nor
// where no bytes are saved, which is known without measuring.
bool costs_more_than_it_saves(const CompressionTimes& times);

}  // namespace bitloom::train
