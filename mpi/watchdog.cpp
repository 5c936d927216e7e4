#include "mpi/watchdog.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <system_error>
#include <utility>

namespace bitloom::mpi {
namespace {

// Number of looks of the thread in the time it allows; it looks at least every second.
constexpr double looks = 10;
constexpr double least_step = 1e-3, longest_step = 1;  // seconds

std::atomic<Watchdog*> the_watchdog{nullptr};

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Clock::duration step_of(double seconds) { return duration_of(std::clamp(seconds / looks, least_step, longest_step)); }

}  // namespace

Watchdog* Watchdog::current() noexcept { return the_watchdog.load(); }

Watchdog::Watchdog(double seconds, std::string who, Hang hang)
    : who_(std::move(who)), hang_(std::move(hang)), seconds_(seconds) {
  // Signals are for the threads that were there before.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    fail(ErrorKind::io, "the watchdog's thread cannot start: {}", error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  the_watchdog = this;
}

Watchdog::~Watchdog() {
  the_watchdog = nullptr;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::allow(double seconds) {
  {
    const std::lock_guard lock(mutex_);
    seconds_ = seconds;
  }
  changed_.notify_all();
}

void Watchdog::end_after(double seconds, int code) {
  {
    const std::lock_guard lock(mutex_);
    end_seconds_ = seconds;
    end_code_ = code;
  }
  changed_.notify_all();
}

void Watchdog::run() {
  std::unique_lock lock(mutex_);
  double allowed = -1;
  CallTimer timer(Clock::duration{0});
  std::optional<Patience> end;
  while (!stop_) {
    if (end_seconds_ > 0) {
      if (!end) end.emplace(Clock::now(), 2 * step_of(end_seconds_));
      if (end->waited(Clock::now()) > end_seconds_) _exit(end_code_);
      changed_.wait_for(lock, step_of(end_seconds_));
      continue;
    }
    if (seconds_ != allowed) {
      allowed = seconds_;
      timer = CallTimer(2 * step_of(allowed));
    }
    if (allowed == 0) {
      changed_.wait(lock);
      continue;
    }
    const double lasted = timer.look(number_.load(std::memory_order_acquire), Clock::now());
    if (lasted > allowed) {
      const char* const operation = operation_.load(std::memory_order_relaxed);
      lock.unlock();
      if (hang_.tell) {
        hang_.tell(
            fmt::format("{}: {} has been inside this call of MPI for {:.1f} s, the watchdog allows {:g} s; a peer or the "
                        "launcher has died, hangs or is much slower",
                        operation, who_, lasted, allowed));
      }
      _exit(hang_.exit_code);
    }
    changed_.wait_for(lock, step_of(allowed));
  }
}

}  // namespace bitloom::mpi
