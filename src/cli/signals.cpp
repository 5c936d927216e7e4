#include "cli/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "cli/command.h"
#include "launch/supervisor.h"

namespace bitloom::cli {
namespace {

// One press of Ctrl-C under mpirun may arrive as several signals: from the terminal and from mpirun. Within this time they
// count as one.
constexpr std::int64_t same_request_ms = 250;

std::atomic<std::int64_t> requested_at{0};  // milliseconds of the monotonic clock; 0: not yet
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "used in a signal handler");

std::int64_t now_ms() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::int64_t>(now.tv_sec) * 1000 + now.tv_nsec / 1000000 + 1;
}

// Calls only what POSIX allows in a handler.
void handle(int signal) {
  std::int64_t first = 0;
  const std::int64_t now = now_ms();
  if (requested_at.compare_exchange_strong(first, now) || now - first < same_request_ms || signal == SIGUSR1) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

// mpirun sends SIGCONT to the survivors at once when a process has died, and SIGTERM later. Where the run will be started
// again, there is nothing to wait for.
void end_at_once(int) { _exit(exit_peer_lost); }

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) sigaction(signal, &action, nullptr);
  if (std::getenv(launch::supervised_variable) == nullptr) return;
  action.sa_handler = end_at_once;
  sigaction(SIGCONT, &action, nullptr);
}

void request_stop() noexcept {
  std::int64_t first = 0;
  requested_at.compare_exchange_strong(first, now_ms());
}

bool stop_requested() noexcept { return requested_at.load() != 0; }

}  // namespace bitloom::cli
