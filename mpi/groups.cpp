// Communicators of some of the ranks.
#include <algorithm>
#include <exception>

#include "mpi/comm_state.h"

namespace bitloom::mpi {

Comm::State::~State() {
  outgoing.splice(outgoing.end(), refused);
  if (!outgoing.empty() || !incoming.empty()) {
    process->unsent.push_back(std::move(outgoing));
    process->unreceived.push_back(std::move(incoming));
  }
  // A rank that leaves because of an error is not where its peers are, and MPI may want all of them.
  if (!is_group() || handle == MPI_COMM_NULL || process->broken || process->ended || std::uncaught_exceptions() > 0) return;
  try {
    call("MPI_Comm_free", [&] { return MPI_Comm_free(&handle); });
  } catch (const PeerLost&) {
    // Whoever comes next is told that the communicators are broken.
  }
}

std::string Comm::State::self() const {
  if (!is_group()) return fmt::format("rank {} of {}", rank, size);
  return fmt::format("rank {} of {} of the {} group (rank {} of {})", rank, size, group_kind, process->rank, process->size);
}

std::string Comm::State::named(int r) const {
  return is_group() ? fmt::format("rank {} of the {} group (rank {})", r, group_kind, world_rank(r))
                    : fmt::format("rank {}", r);
}

std::unique_ptr<Comm::State> Comm::State::split(int colour, int key, const std::string& name) {
  // All ranks get to know the groups, and wait for each other here, where the watchdog sees who is late: MPI_Comm_split()
  // blocks.
  const auto ranks = static_cast<std::size_t>(size);
  std::vector<std::int64_t> choices(2 * ranks);  // colours, then keys
  choices[static_cast<std::size_t>(rank)] = colour;
  choices[ranks + static_cast<std::size_t>(rank)] = key;
  reduce(std::span(choices), sum_type(std::int64_t{}), MPI_SUM, "split");
  const auto colour_of = [&](int r) { return choices[static_cast<std::size_t>(r)]; };
  const auto key_of = [&](int r) { return choices[ranks + static_cast<std::size_t>(r)]; };
  for (int r = 0; r < size; ++r) {
    if (colour_of(r) >= 0) continue;
    fail_on_all(ErrorKind::usage, fmt::format("split: {} passes colour {}; expected 0 or more", named(r), colour_of(r)));
  }
  auto made = std::make_unique<State>(process);
  made->group_number = ++process->groups;
  made->group_kind = name;
  std::vector<int> members;
  for (int r = 0; r < size; ++r) {
    if (colour_of(r) == colour) members.push_back(r);
  }
  std::ranges::stable_sort(members, {}, key_of);
  made->size = static_cast<int>(members.size());
  made->rank = static_cast<int>(std::ranges::find(members, rank) - members.begin());
  for (const int r : members) made->world_ranks.push_back(world_rank(r));

  // Groups of one rank need none of MPI's.
  if (size == 1) return made;
  const bool is_alone = made->size == 1;
  call("split", [&] { return MPI_Comm_split(handle, is_alone ? MPI_UNDEFINED : colour, key, &made->handle); });
  if (is_alone) return made;
  call("split", [&] { return MPI_Comm_set_errhandler(made->handle, MPI_ERRORS_RETURN); });
  int mpi_rank = 0;
  call("split", [&] { return MPI_Comm_rank(made->handle, &mpi_rank); });
  if (mpi_rank != made->rank) fail(ErrorKind::internal, "split: {} is number {} to MPI", made->self(), mpi_rank);
  return made;
}

Comm Comm::split(int colour, int key, const std::string& name) { return Comm(state_->split(colour, key, name)); }

}  // namespace bitloom::mpi
