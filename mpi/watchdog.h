// Ends a process that hangs inside MPI: a thread with a clock of its own, because nobody else gets to look at one while a
// call does not return. It knows nothing of MPI, and is private to mpi/.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "core/clock.h"
#include "core/patience.h"
#include "mpi/comm.h"

namespace bitloom::mpi {

// For how long the same call has been seen again and again. Calls are numbered: 2n + 1 during the n-th, 2n before it.
class CallTimer {
 public:
  explicit CallTimer(Clock::duration longest_step) : longest_step_(longest_step), patience_({}, longest_step) {}
  // Seconds; 0 outside of calls.
  double look(std::uint64_t number, Clock::time_point now) {
    if (number % 2 == 0 || number != seen_) {
      seen_ = number;
      patience_ = Patience(now, longest_step_);
    }
    return number % 2 == 0 ? 0 : patience_.waited(now);
  }

 private:
  Clock::duration longest_step_;
  std::uint64_t seen_ = 0;
  Patience patience_;
};

class Watchdog {
 public:
  // who: of this process, in the message. There is one at a time, current(). Throws Error(io) if there can be no thread.
  Watchdog(double seconds, std::string who, Hang hang);
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;
  ~Watchdog();
  static Watchdog* current() noexcept;

  // From now on a call may last this long; 0: for ever.
  void allow(double seconds);
  // The process ends with this code after these seconds, whatever it does.
  void end_after(double seconds, int code);

  // While it lives, the thread that made it is inside a call of MPI: one thread at a time, one call at a time. Three stores.
  class Inside {
   public:
    Inside(Watchdog* watchdog, const char* operation) noexcept : watchdog_(watchdog) {
      if (watchdog_ == nullptr) return;
      watchdog_->operation_.store(operation, std::memory_order_relaxed);
      watchdog_->step();
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
    ~Inside() {
      if (watchdog_ != nullptr) watchdog_->step();
    }

   private:
    Watchdog* watchdog_;
  };

 private:
  void step() noexcept { number_.store(number_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }
  void run();

  std::atomic<std::uint64_t> number_{0};  // number of the call, as CallTimer counts
  std::atomic<const char*> operation_{""};
  std::string who_;
  Hang hang_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  double seconds_;
  bool stop_ = false;
  double end_seconds_ = 0;  // 0: nobody has asked for an end
  int end_code_ = 0;
  std::thread thread_;
};

}  // namespace bitloom::mpi
