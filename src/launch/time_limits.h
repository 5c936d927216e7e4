// How long a supervisor waits for the processes of a start.
#pragma once

#include <optional>

namespace bitloom::launch {

// Seconds for which it has waited.
struct Waited {
  bool is_at_work = false;      // whether the processes have marked how far they are (run_mark.h)
  double silent = 0;            // since their last sign of life, or their start
  std::optional<double> asked;  // since they were asked to end
};

// Longest silence; after a longer one they count as hanging. deadline: SupervisorOptions::deadline_seconds.
double longest_silence(bool is_at_work, double deadline);

// Whether they are to be killed: they hang, or have had the time that processes get to end when they are asked to.
bool is_overdue(const Waited& waited, double deadline);

}  // namespace bitloom::launch
