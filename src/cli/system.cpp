#include "cli/system.h"

#include <omp.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "core/text.h"

namespace bitloom::cli {
namespace {

// One rank's host and cores, as it tells the others.
struct Place {
  std::array<char, 64> host{};
  cpu_set_t cores{};
  std::int32_t wanted = 0;  // threads the user asked for, 0 if none
};

Place own_place(int wanted) {
  Place place;
  CPU_ZERO(&place.cores);
  const std::string host = mpi::host_name();
  std::copy_n(host.begin(), std::min(host.size(), place.host.size() - 1), place.host.begin());
  if (sched_getaffinity(0, sizeof place.cores, &place.cores) != 0) CPU_SET(0, &place.cores);
  place.wanted = wanted;
  return place;
}

std::vector<Place> all_places(mpi::Comm& comm, const Place& own) {
  const auto gathered = comm.gather_bytes(std::as_bytes(std::span(&own, 1)));
  std::vector<Place> places(static_cast<std::size_t>(comm.size()));
  for (std::size_t i = 0; i < gathered.size(); ++i) std::memcpy(&places[i], gathered[i].data(), sizeof(Place));
  comm.broadcast(std::span(places));
  return places;
}

}  // namespace

Threads choose_threads(mpi::Comm& comm) {
  Threads threads;
  const char* variable = std::getenv("OMP_NUM_THREADS");
  threads.from_user = variable != nullptr && *variable != '\0';
  const Place own = own_place(threads.from_user ? omp_get_max_threads() : 0);
  std::vector<Place> here = all_places(comm, own);
  std::erase_if(here, [&](const Place& place) { return place.host != own.host; });

  std::array<int, CPU_SETSIZE> users{};  // ranks of this host that may run on each core
  threads.cores_of_host = 0;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    for (const Place& place : here) users[static_cast<std::size_t>(core)] += CPU_ISSET(core, &place.cores) ? 1 : 0;
    threads.cores_of_host += users[static_cast<std::size_t>(core)] > 0 ? 1 : 0;
  }
  const auto share = [&](const Place& place) {
    if (place.wanted > 0) return static_cast<int>(place.wanted);
    double cores = 0;
    for (int core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &place.cores)) cores += 1.0 / users[static_cast<std::size_t>(core)];
    }
    return std::max(1, static_cast<int>(cores + 1e-6));
  };
  threads.per_rank = share(own);
  threads.on_host = 0;
  for (const Place& place : here) threads.on_host += share(place);
  omp_set_num_threads(threads.per_rank);
  return threads;
}

std::string oversubscription(const Threads& threads) {
  if (threads.on_host <= threads.cores_of_host) return "";
  return fmt::format(
      "{} threads share {} cores on this host, which costs more than it gives; start fewer ranks or lower "
      "OMP_NUM_THREADS",
      threads.on_host, threads.cores_of_host);
}

int local_rank() {
  // Open MPI, MPICH and Intel MPI, MVAPICH, Slurm. The launcher that started the process itself comes before the one around it.
  constexpr std::array variables = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK",
                                    "SLURM_LOCALID"};
  for (const char* variable : variables) {
    const char* text = std::getenv(variable);
    const auto number = text == nullptr ? std::nullopt : parse_int(text);
    if (number && *number >= 0 && *number <= std::numeric_limits<int>::max()) return static_cast<int>(*number);
  }
  return 0;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    const std::size_t colon = line.find(':');
    if (line.starts_with("model name") && colon != std::string::npos) return std::string(trim(line.substr(colon + 1)));
  }
  return "unknown";
}

}  // namespace bitloom::cli
