// A program of its own, because it leaves MPI broken. Its argument says in what way, and how many ranks there are; it prints
// "watchdog: passed" when the watchdog did what it should. Nobody here waits for a time to pass but the watchdog itself: ranks
// that are to be late stay away until they are killed.
//   peer   of 3 ranks the last one never reaches a reduction. The others get an error that names the operation, and abort_all()
//          ends all three
//   group  the same of 3 ranks of which the last two are a group
//   start  of 2 ranks the last one stops before it calls MPI_Init: the other one never returns from that, and is ended
//   late   of 2 ranks the last one never starts a sum that the first one has started
//   error  of 2 ranks the last one never starts a sum that the first one has started, which has an error of its own and ends
//   thread of 2 ranks the first one's thread never returns from MPI_Testall, and the process is ended
//   length of 2 ranks each starts a sum of another length. Both learn of it when they wait
//   call   of 2 ranks the first one never returns from MPI_Improbe, and is ended
//   abort  of 2 ranks the first one freezes mpirun and calls abort_all(), which asks mpirun to end all. It is ended, and its
//          helper lets mpirun go on
//   work   1 rank computes for longer than the watchdog allows, which is no concern of it
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "mpi/comm.h"
#include "mpi/float_collectives.h"

static std::atomic<bool> is_thread_to_hang{false};

// MPI's profiling interface lets a program put functions of its own before MPI's.
extern "C" int MPI_Improbe(int, int, void*, int*, void*, void*);
extern "C" int MPI_Improbe(int, int, void*, int*, void*, void*) {
  for (;;) pause();
}

extern "C" int PMPI_Testall(int, void*, int*, void*);
extern "C" int MPI_Testall(int, void*, int*, void*);
extern "C" int MPI_Testall(int count, void* requests, int* done, void* statuses) {
  while (is_thread_to_hang && gettid() != getpid()) pause();
  return PMPI_Testall(count, requests, done, statuses);
}

namespace bitloom::mpi {
namespace {

constexpr int expected_exit_code = 23;
constexpr double allowed_seconds = 2;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

[[noreturn]] void stay_away() {
  for (;;) pause();
}

void pass() {
  std::printf("watchdog: passed\n");
  std::fflush(stdout);
}

// Passes if the message begins so.
Hang expect(const std::string& beginning) {
  return {expected_exit_code, [beginning](const std::string& message) {
            if (message.starts_with(beginning) && contains(message, "the watchdog allows 2 s")) {
              pass();
            } else {
              std::fprintf(stderr, "watchdog: failed: '%s'\n", message.c_str());
            }
          }};
}

// The message of the PeerLost that f throws.
template <typename F>
std::string message_of_loss(F&& f) {
  try {
    f();
  } catch (const PeerLost& error) {
    return error.what();
  }
  return {};
}

int peer() {
  Environment environment;
  Comm& comm = environment.world();
  if (comm.size() != 3) return 1;
  comm.barrier();
  if (comm.rank() == 2) stay_away();
  comm.configure({.watchdog_seconds = allowed_seconds});
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::int32_t> values(1000);
  // An error on the way out of a lost collective must not try to tell the peers.
  const std::string first = message_of_loss([&] { comm.together([&] { comm.sum(std::span(values)); }); });
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string second = message_of_loss([&] { comm.barrier(); });
  const bool good = contains(first, "sum of 4000 bytes") && contains(first, fmt::format("rank {} of 3", comm.rank())) &&
                    waited >= allowed_seconds && contains(second, "barrier") && comm.broken();
  if (!good) {
    std::fprintf(stderr, "watchdog: failed on rank %d after %.2f s: '%s', '%s'\n", comm.rank(), waited, first.c_str(),
                 second.c_str());
    return 1;
  }
  if (comm.rank() == 1) stay_away();
  pass();
  abort_all(expected_exit_code);
}

int group() {
  Environment environment;
  Comm& comm = environment.world();
  if (comm.size() != 3) return 1;
  Comm tensor = comm.split(comm.rank() == 0 ? 0 : 1, 0, "tensor");
  if (comm.rank() != 1) stay_away();
  tensor.configure({.watchdog_seconds = allowed_seconds});
  std::vector<std::int32_t> values(1000);
  const std::string first = message_of_loss([&] { tensor.sum(std::span(values)); });
  const std::string second = message_of_loss([&] { comm.barrier(); });
  if (!contains(first, "sum of 4000 bytes: rank 0 of 2 of the tensor group (rank 1 of 3) waited") ||
      !contains(second, "barrier: rank 1 of 3 lost its peers earlier: " + first)) {
    std::fprintf(stderr, "watchdog: failed: '%s', '%s'\n", first.c_str(), second.c_str());
    return 1;
  }
  pass();
  abort_all(expected_exit_code);
}

int start() {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) return 1;
  if (*rank == '1') raise(SIGSTOP);
  const Environment environment({.watchdog_seconds = allowed_seconds}, expect("MPI_Init_thread: rank 0 on host "));
  std::fprintf(stderr, "watchdog: failed: MPI_Init returned\n");
  return 1;
}

int late() {
  Environment environment;
  Comm& comm = environment.world();
  if (comm.size() != 2) return 1;
  comm.barrier();
  if (comm.rank() == 1) stay_away();
  comm.configure({.watchdog_seconds = allowed_seconds});
  std::vector<float> values(1000);
  Pending pending = start_sum(comm, std::span(values));
  const std::string first = message_of_loss([&] { pending.wait(); });
  const std::string second = message_of_loss([&] { sum_in_order(comm, std::span(values)); });
  if (!contains(first, "sum of floats of 4000 bytes: rank 0 of 2 waited") ||
      !contains(second, "lost its peers earlier: " + first)) {
    std::fprintf(stderr, "watchdog: failed: '%s', '%s'\n", first.c_str(), second.c_str());
    return 1;
  }
  pass();
  abort_all(expected_exit_code);
}

int error() {
  Environment environment;
  Comm& comm = environment.world();
  if (comm.size() != 2) return 1;
  comm.barrier();
  if (comm.rank() == 1) stay_away();
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    std::vector<float> values(1000);
    const Pending pending = start_sum(comm, std::span(values));
    throw Error(ErrorKind::data, "an error of this rank");
  } catch (const Error& caught) {
    message = caught.what();
  }
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  // The usual watchdog allows five minutes.
  if (message != "an error of this rank" || !comm.broken() || waited > 60) {
    std::fprintf(stderr, "watchdog: failed after %.2f s: '%s'\n", waited, message.c_str());
    return 1;
  }
  pass();
  abort_all(expected_exit_code);
}

int thread() {
  Environment environment({}, expect("sum of floats: rank 0 on host "));
  Comm& comm = environment.world();
  if (comm.size() != 2) return 1;
  comm.barrier();
  if (comm.rank() == 1) stay_away();
  comm.configure({.watchdog_seconds = allowed_seconds});
  is_thread_to_hang = true;
  std::vector<float> values(1000);
  const Pending pending = start_sum(comm, std::span(values));
  stay_away();
}

int length() {
  Environment environment;
  Comm& comm = environment.world();
  if (comm.size() != 2) return 1;
  comm.barrier();
  std::vector<float> values(comm.is_root() ? 1000 : 500);
  Pending pending = start_sum(comm, std::span(values));
  while (!pending.done()) std::this_thread::yield();
  std::string message;
  try {
    pending.wait();
  } catch (const Error& error) {
    message = error.what();
  }
  const std::string expected = comm.is_root() ? "sum of floats: rank 0 of 2 got 2000 bytes from rank 1, expected 4000"
                                              : "sum of floats: MPI reported on rank 1 of 2: MPI_ERR_TRUNCATE";
  if (!contains(message, expected) || !comm.broken()) {
    std::fprintf(stderr, "watchdog: failed on rank %d: '%s'\n", comm.rank(), message.c_str());
    return 1;
  }
  if (comm.rank() == 1) stay_away();
  pass();
  abort_all(expected_exit_code);
}

int call() {
  Environment environment({}, expect("receive: rank 0 on host "));
  Comm& comm = environment.world();
  if (comm.size() != 2) return 1;
  comm.barrier();
  if (comm.rank() == 1) stay_away();
  comm.configure({.watchdog_seconds = allowed_seconds});
  (void)comm.receive(1);
  return 1;
}

int abort() {
  const pid_t launcher = getppid();
  std::array<int, 2> pipes{};
  if (pipe(pipes.data()) != 0) return 1;
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank != nullptr && *rank == '0' && fork() == 0) {
    // The other end closes when the rank ends, however it does.
    close(pipes[1]);
    pollfd end{pipes[0], POLLIN, 0};
    if (poll(&end, 1, 60'000) == 1) pass();
    kill(launcher, SIGCONT);
    _exit(0);
  }
  Environment environment;
  Comm& comm = environment.world();
  if (comm.size() != 2) return 1;
  comm.barrier();
  if (comm.rank() == 1) stay_away();
  kill(launcher, SIGSTOP);
  abort_all(expected_exit_code);
}

int work() {
  Environment environment;
  Comm& comm = environment.world();
  comm.configure({.watchdog_seconds = allowed_seconds});
  std::this_thread::sleep_for(std::chrono::duration<double>(2 * allowed_seconds));
  comm.configure({});
  pass();
  return 0;
}

int run(const std::string& what) {
  if (what == "peer") return peer();
  if (what == "group") return group();
  if (what == "start") return start();
  if (what == "late") return late();
  if (what == "error") return error();
  if (what == "thread") return thread();
  if (what == "length") return length();
  if (what == "call") return call();
  if (what == "abort") return abort();
  return what == "work" ? work() : 1;
}

}  // namespace
}  // namespace bitloom::mpi

int main(int argc, char** argv) { return bitloom::mpi::run(argc > 1 ? argv[1] : ""); }
