// Records that some hosts have and others lack: outputs of frozen layers at the start of a stage, after hosts have come and
// gone. They travel where that is faster than computing them again.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "layerwise/record_file.h"
#include "mpi/comm.h"

namespace bitloom::layerwise {

// A rank's file and the records it needs.
struct RecordNeeds {
  RecordFile* file = nullptr;            // its host's file, of one key, records() and words() on all ranks; null: it has none
  std::span<const std::uint64_t> reads;  // the records that it will read
  // Seconds that it takes to compute one with all its threads; asked only where some are missing that others have. Throws
  // nothing.
  std::function<double()> compute_seconds;
  // Called now and then, between messages.
  std::function<void()> alive;
};

// Counts and times of the records that a host's file lacked.
struct RecordShare {
  int rank = 0;                 // the first of those that have the file open
  std::uint64_t missing = 0;    // records it lacks that its ranks will read
  std::uint64_t elsewhere = 0;  // number of these that others have
  std::uint64_t received = 0;   // number of these received; the rest is left to be computed
  double seconds = 0;           // time it took, and
  double bytes_per_second = 0;  // how fast that was
  double send_seconds = 0;      // for all of them as the first messages promised, and
  double compute_seconds = 0;   // for computing them instead
};

// Collective: files that lack records get them from others. Messages grow until they tell how fast a host's link is; then it
// goes on for as long as the rest would take longer to compute. A record that arrives damaged is left out. The result is the
// same on all ranks: one row for each file that lacked what another had.
std::vector<RecordShare> share_records(mpi::Comm& comm, const RecordNeeds& needs);

}  // namespace bitloom::layerwise
