// How the processes of a trainer give up a step together, between two of its micro-batches.
#pragma once

#include <cstdint>
#include <functional>

#include "mpi/comm.h"

namespace bitloom::train {

// A question costs a message to all: about one every asking_seconds of a step, none in one that takes less than twice that.
class GivingUp {
 public:
  // own: micro-batches of a step that each process has, as many as others. comm outlives this.
  GivingUp(mpi::Comm& comm, std::uint64_t own, double asking_seconds)
      : comm_(comm), own_(own), asking_seconds_(asking_seconds) {}

  // For one step: to be asked by all processes after each of their micro-batches but the last. Whether is_given_up says so in
  // any; a process alone asks it every time. None: the step is made to its end, as without is_given_up.
  std::function<bool()> asked(const std::function<bool()>& is_given_up);
  // Collective, after a step: agrees on what the next ones ask, after the first one and ever less often.
  void agree(double step_seconds);

 private:
  mpi::Comm& comm_;
  std::uint64_t own_;
  double asking_seconds_;
  std::uint64_t every_ = 0;  // micro-batches between questions; 0: never
  std::uint64_t steps_to_agree_ = 1, gap_ = 1;
};

}  // namespace bitloom::train
