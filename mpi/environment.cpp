// The beginning and the end of MPI.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>

#include "mpi/comm_state.h"

namespace bitloom::mpi {
namespace {

// How long MPI_Abort may take: it asks the launcher, which may hang itself.
constexpr double abort_seconds = 10;

std::atomic<bool> environment_exists{false};

// Open MPI 4, PRRTE and Slurm with PMIx, MPICH and Slurm with PMI-2 tell a process its rank.
constexpr std::array<const char*, 3> rank_variables{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};

// This process, before MPI can be asked.
std::string this_rank() {
  for (const char* name : rank_variables) {
    if (const char* rank = std::getenv(name); rank != nullptr) return fmt::format("rank {} on host {}", rank, host_name());
  }
  return fmt::format("a rank on host {}", host_name());
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<std::string> host_names(Comm& comm) {
  const std::string name = host_name();
  std::vector<std::string> names;
  for (const std::vector<std::byte>& bytes : comm.gather_bytes(std::as_bytes(std::span(name)))) {
    names.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return names;
}

bool launched_by_mpi() noexcept {
  return std::any_of(rank_variables.begin(), rank_variables.end(),
                     [](const char* name) { return std::getenv(name) != nullptr; });
}

Environment::Environment(const Settings& settings, Hang hang) : launched_(launched_by_mpi()) {
  if (environment_exists.exchange(true)) fail(ErrorKind::internal, "a second mpi::Environment in one process");
  world_.configure(settings);
  if (!launched_) return;
  watchdog_ = std::make_unique<Watchdog>(settings.watchdog_seconds, this_rank(), std::move(hang));
  Comm::State& state = *world_.state_;
  Process& process = *state.process;
  process.watchdog = watchdog_.get();
  state.handle = MPI_COMM_WORLD;
  int provided = MPI_THREAD_SINGLE;
  state.call("MPI_Init_thread", [&] { return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided); });
  if (provided < MPI_THREAD_FUNNELED) state.lose("MPI_Init_thread: this MPI library does not support MPI_THREAD_FUNNELED");
  process.allows_threads = provided >= MPI_THREAD_SERIALIZED;
  state.call("MPI_Comm_set_errhandler", [] { return MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); });
  state.call("MPI_Comm_rank", [&] { return MPI_Comm_rank(MPI_COMM_WORLD, &state.rank); });
  state.call("MPI_Comm_size", [&] { return MPI_Comm_size(MPI_COMM_WORLD, &state.size); });
  process.rank = state.rank;
  process.size = state.size;
}

Environment::~Environment() {
  // MPI starts once per process, so a second Environment stays forbidden after a launched one.
  if (!launched_) {
    environment_exists = false;
    return;
  }
  Comm::State& state = *world_.state_;
  state.process->progress.reset();  // whoever started something has waited for it
  try {
    state.barrier("end of the run");
    state.call("MPI_Finalize", [] { return MPI_Finalize(); });
  } catch (const std::exception&) {
    // MPI_Finalize would wait for the lost peers for ever.
  }
  // Groups may live longer.
  state.process->ended = true;
  state.process->watchdog = nullptr;
}

void abort_all(int code) {
  if (Watchdog* watchdog = Watchdog::current(); watchdog != nullptr) watchdog->end_after(abort_seconds, code);
  int started = 0;
  int ended = 0;
  if (MPI_Initialized(&started) == MPI_SUCCESS && MPI_Finalized(&ended) == MPI_SUCCESS && started != 0 && ended == 0) {
    MPI_Abort(MPI_COMM_WORLD, code);
  }
  _exit(code);
}

}  // namespace bitloom::mpi
