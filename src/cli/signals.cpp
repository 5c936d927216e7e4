#include "cli/signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <system_error>
#include <thread>

#include "cli/command.h"
#include "launch/supervisor.h"

namespace bitloom::cli {
namespace {

// One press of Ctrl-C under mpirun may arrive as several signals: from the terminal and from mpirun. Within this time they
// count as one.
constexpr std::int64_t same_request_ms = 250;

std::atomic<std::int64_t> requested_at{0};  // milliseconds of the monotonic clock; 0: no request yet
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "used in a signal handler");
std::atomic<bool> noticed{false};  // by another way than a signal: the first of those is no second request then

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

// A handler interrupts a thread that computes nothing: oneDNN's kernels for AVX2 (2.6, sgemm) have other numbers than addresses
// of the stack in its pointer for a while, and what the system pushes there for a handler overwrites memory.
void catch_stop_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  struct sigaction action {};
  action.sa_flags = SA_RESTART;
  const auto handle_by = [&](int signal, void (*handler)(int)) {
    action.sa_handler = handler;
    sigaction(signal, &action, nullptr);
    sigaddset(&caught, signal);
  };
  for (const int signal : {SIGINT, SIGTERM, SIGUSR1}) handle_by(signal, handle);
  if (std::getenv(launch::supervised_variable) != nullptr) handle_by(SIGCONT, end_at_once);
  // Threads that are made later, such as OpenMP's, have this one's mask.
  pthread_sigmask(SIG_BLOCK, &caught, nullptr);
  try {
    std::thread([caught] {
      pthread_sigmask(SIG_UNBLOCK, &caught, nullptr);
      while (true) pause();
    }).detach();
  } catch (const std::system_error&) {
    pthread_sigmask(SIG_UNBLOCK, &caught, nullptr);  // better than none that hears them
  }
}

void ignore_closed_output() { std::signal(SIGPIPE, SIG_IGN); }

void request_stop() noexcept { noticed = true; }

bool stop_requested() noexcept { return noticed || requested_at.load() != 0; }

}  // namespace bitloom::cli
