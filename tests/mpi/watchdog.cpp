// A program of its own, because it leaves MPI broken: under mpirun with 3 ranks the last one never reaches a reduction. The
// others must get an error that names the operation, and abort_all() must end all three. Prints "watchdog: passed" when they
// did; mpirun's exit code is the one given to abort_all().
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "mpi/comm.h"

namespace bitloom::mpi {
namespace {

constexpr int expected_exit_code = 23;
constexpr double allowed_seconds = 0.3;

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

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

int run() {
  Environment environment;
  Comm& comm = environment.world();
  if (comm.size() != 3) return 1;
  comm.configure({.watchdog_seconds = allowed_seconds});
  comm.barrier();
  if (comm.rank() == 2) {
    std::this_thread::sleep_for(std::chrono::seconds(20));
    return 1;  // abort_all() on rank 0 should have ended this process
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::int32_t> values(1000);
  // An error on the way out of a lost collective must not try to tell the peers.
  const std::string first = message_of_loss([&] { comm.together([&] { comm.sum(std::span(values)); }); });
  const double waited = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const std::string second = message_of_loss([&] { comm.barrier(); });
  const bool good = contains(first, "sum of 4000 bytes") && contains(first, fmt::format("rank {} of 3", comm.rank())) &&
                    waited >= allowed_seconds && waited < 10 && contains(second, "barrier") && comm.broken();
  if (!good) {
    std::fprintf(stderr, "watchdog: failed on rank %d after %.2f s: '%s', '%s'\n", comm.rank(), waited, first.c_str(),
                 second.c_str());
    return 1;
  }
  if (comm.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(20));
    return 1;
  }
  std::printf("watchdog: passed\n");
  std::fflush(stdout);
  abort_all(expected_exit_code);
}

}  // namespace
}  // namespace bitloom::mpi

int main() { return bitloom::mpi::run(); }
