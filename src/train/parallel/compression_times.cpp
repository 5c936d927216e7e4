#include "train/parallel/compression_times.h"

#include <array>
#include <span>

#include "mpi/float_collectives.h"

namespace bitloom::train {

void CompressionTimes::add(const CompressionTimes& other) {
  steps += other.steps;
  computing_seconds += other.computing_seconds;
  waiting_seconds += other.waiting_seconds;
  sent_bytes += other.sent_bytes;
  whole_bytes += other.whole_bytes;
}

CompressionTimes mean_over(mpi::Comm& comm, CompressionTimes times) {
  std::array<double, 2> sums = {times.computing_seconds, times.waiting_seconds};
  mpi::sum_in_order(comm, std::span<double>(sums));
  times.computing_seconds = sums[0] / comm.size();
  times.waiting_seconds = sums[1] / comm.size();
  return times;
}

double saved_seconds(const CompressionTimes& times) {
  if (times.sent_bytes == 0 || times.whole_bytes <= times.sent_bytes) return 0;
  return times.waiting_seconds * static_cast<double>(times.whole_bytes - times.sent_bytes) /
         static_cast<double>(times.sent_bytes);
}

bool costs_more_than_it_saves(const CompressionTimes& times) {
  return times.sent_bytes > 0 && times.whole_bytes > times.sent_bytes && times.computing_seconds > saved_seconds(times);
}

}  // namespace bitloom::train
