// Operations that all ranks take part in.
#include <algorithm>
#include <climits>

#include "mpi/comm_state.h"

namespace bitloom::mpi {
namespace {

// Largest piece of broadcast_bytes, on all ranks: memory is in use only for what has arrived, whatever was announced, and the
// watchdog and whoever waits for a sign of life have the time of one piece.
constexpr std::size_t piece_bytes = std::size_t{8} << 20U;

}  // namespace

// `lengths` are those of the ranks, and what the root can have after them.
void Comm::State::require_room(std::span<const std::int64_t> lengths, int root, const char* operation) const {
  const auto most = static_cast<std::uint64_t>(lengths.back());
  std::uint64_t total = 0;
  for (std::size_t r = 0; r + 1 < lengths.size(); ++r) {
    const auto length = static_cast<std::uint64_t>(lengths[r]);
    if (length <= most && (total += length) <= most) continue;
    fail_on_all(ErrorKind::data,
                fmt::format("{}: {} announces {} bytes, and those before it {}; {} takes at most {}", operation,
                            named(static_cast<int>(r)), length, total - (length <= most ? length : 0), named(root), most));
  }
}

std::size_t Comm::State::elements_per_message() const {
  const std::size_t limit = process->settings.elements_per_message;
  return limit == 0 ? static_cast<std::size_t>(INT_MAX) : limit;
}

template <typename T>
void Comm::State::reduce(std::span<T> values, MPI_Datatype type, MPI_Op operation, const char* name) {
  require_usable(name);
  if (size == 1) return;
  for_each_message(values.size(), [&](std::size_t offset, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    T* const begin = values.data() + offset;
    call(name, [&] { return MPI_Iallreduce(MPI_IN_PLACE, begin, count, type, operation, handle, &request); });
    wait(request, name, values.size_bytes());
  });
}

template void Comm::State::reduce(std::span<std::int64_t>, MPI_Datatype, MPI_Op, const char*);

void Comm::State::broadcast(std::span<std::byte> bytes, int root, const char* name) {
  require_usable(name);
  require_rank(name, root);
  if (size == 1) return;
  for_each_message(bytes.size(), [&](std::size_t offset, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    call(name, [&] { return MPI_Ibcast(bytes.data() + offset, count, MPI_BYTE, root, handle, &request); });
    wait(request, name, bytes.size());
  });
}

std::vector<std::byte> Comm::State::broadcast_bytes(std::vector<std::byte> bytes, int root, const char* name,
                                                    const std::function<void()>& alive) {
  std::uint64_t length = bytes.size();
  broadcast(std::as_writable_bytes(std::span(&length, 1)), root, name);
  if (rank != root) {
    require_length(name, root, length);
    bytes.clear();
    bytes.reserve(length);
  }
  for (std::uint64_t begin = 0; begin < length; begin += piece_bytes) {
    const std::uint64_t end = std::min(length, begin + piece_bytes);
    if (rank != root) bytes.resize(end);
    broadcast(std::span(bytes).subspan(begin, end - begin), root, name);
    if (alive) alive();
  }
  return bytes;
}

// Point-to-point messages, because MPI_Igatherv has int displacements, which limit the total of all ranks.
std::vector<std::vector<std::byte>> Comm::State::gather_bytes(std::span<const std::byte> bytes, int root, const char* name) {
  require_usable(name);
  require_rank(name, root);
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(size) + 1);
  lengths[static_cast<std::size_t>(rank)] = static_cast<std::int64_t>(bytes.size());
  if (rank == root) lengths.back() = static_cast<std::int64_t>(most_bytes());
  reduce(std::span(lengths), sum_type(std::int64_t{}), MPI_SUM, name);
  if (size > 1) require_room(lengths, root, name);
  // All buffers exist before the first message starts: running out of memory must not free one that MPI writes to.
  std::vector<std::vector<std::byte>> gathered;
  for (int source = 0; rank == root && source < size; ++source) {
    if (source == rank) {
      gathered.emplace_back(bytes.begin(), bytes.end());
    } else {
      gathered.emplace_back(static_cast<std::size_t>(lengths[static_cast<std::size_t>(source)]));
    }
  }
  std::vector<MPI_Request> requests;
  if (rank != root) {
    for_each_message(bytes.size(), [&](std::size_t offset, int count) {
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      const std::byte* const begin = bytes.data() + offset;
      call(name, [&] { return MPI_Isend(begin, count, MPI_BYTE, root, gather_tag, handle, &request); });
    });
  }
  for (int source = 0; rank == root && source < size; ++source) {
    if (source == rank) continue;
    std::vector<std::byte>& received = gathered[static_cast<std::size_t>(source)];
    for_each_message(received.size(), [&](std::size_t offset, int count) {
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      std::byte* const begin = received.data() + offset;
      call(name, [&] { return MPI_Irecv(begin, count, MPI_BYTE, source, gather_tag, handle, &request); });
    });
  }
  if (!requests.empty()) wait(requests, name, bytes.size());
  return gathered;
}

void Comm::State::barrier(const char* name) {
  require_usable(name);
  if (size == 1) return;
  MPI_Request request = MPI_REQUEST_NULL;
  call(name, [&] { return MPI_Ibarrier(handle, &request); });
  wait(request, name, 0);
}

std::int64_t Comm::State::largest(std::int64_t value, const char* name) {
  reduce(std::span(&value, 1), MPI_INT64_T, MPI_MAX, name);
  return value;
}

void Comm::sum(std::span<std::int32_t> values) {
  const Meter meter = state_->meter(Collective::sum, values.size_bytes());
  state_->reduce(values, sum_type(std::int32_t{}), MPI_SUM, "sum");
}

void Comm::sum(std::span<std::int64_t> values) {
  const Meter meter = state_->meter(Collective::sum, values.size_bytes());
  state_->reduce(values, sum_type(std::int64_t{}), MPI_SUM, "sum");
}

void Comm::max(std::span<std::int64_t> values) {
  const Meter meter = state_->meter(Collective::max, values.size_bytes());
  state_->reduce(values, MPI_INT64_T, MPI_MAX, "max");
}

void Comm::broadcast(std::span<std::byte> bytes, int root) {
  const Meter meter = state_->meter(Collective::broadcast, root == rank() ? bytes.size() : 0);
  state_->broadcast(bytes, root, "broadcast");
}

std::vector<std::byte> Comm::broadcast_bytes(std::vector<std::byte> bytes, int root, const std::function<void()>& alive) {
  const Meter meter = state_->meter(Collective::broadcast, root == rank() ? bytes.size() : 0);
  return state_->broadcast_bytes(std::move(bytes), root, "broadcast", alive);
}

std::string Comm::broadcast_text(const std::string& text, int root) {
  const auto bytes = std::as_bytes(std::span(text));
  const std::vector<std::byte> shared = broadcast_bytes({bytes.begin(), bytes.end()}, root);
  return {reinterpret_cast<const char*>(shared.data()), shared.size()};
}

std::vector<std::vector<std::byte>> Comm::gather_bytes(std::span<const std::byte> bytes, int root) {
  const Meter meter = state_->meter(Collective::gather, root == rank() ? 0 : bytes.size());
  return state_->gather_bytes(bytes, root, "gather");
}

void Comm::barrier() {
  const Meter meter = state_->meter(Collective::barrier, 0);
  state_->barrier("barrier");
}

bool Comm::flag_any(bool flag) {
  const Meter meter = state_->meter(Collective::max, sizeof(std::int64_t));
  return state_->largest(flag ? 1 : 0, "max of a flag") != 0;
}

void Comm::check(const std::string& local_error, ErrorKind kind) { share(local_error, kind, false); }

void Comm::share(const std::string& local_error, ErrorKind kind, bool names_rank) {
  constexpr std::int32_t named_bit = 1 << 16;
  State& state = *state_;
  const Meter meter = state.meter(Collective::check, local_error.size());
  // The lowest failing rank has the largest size - rank.
  const std::int64_t failed = state.largest(local_error.empty() ? 0 : size() - rank(), "check");
  if (failed == 0) return;
  const int root = size() - static_cast<int>(failed);
  std::int32_t code = static_cast<std::int32_t>(kind) | (names_rank ? named_bit : 0);
  state.broadcast(std::as_writable_bytes(std::span(&code, 1)), root, "check");
  const auto local = std::as_bytes(std::span(local_error));
  const std::vector<std::byte> shared = state.broadcast_bytes({local.begin(), local.end()}, root, "check");
  std::string message(reinterpret_cast<const char*>(shared.data()), shared.size());
  if ((code & named_bit) == 0 && state.process->size > 1) message = fmt::format("rank {}: {}", state.world_rank(root), message);
  state.fail_on_all(static_cast<ErrorKind>(code & ~named_bit), message);
}

}  // namespace bitloom::mpi
