// Operations that all ranks take part in.
#include <algorithm>
#include <climits>

#include "mpi/comm_state.h"

namespace bitloom::mpi {
namespace {

// Tag of gather_bytes; other collectives have a context of their own and need no tag.
constexpr int gather_tag = 1;

// Largest piece of broadcast_bytes: memory is in use only for what has arrived, whatever was announced.
constexpr std::size_t piece_bytes = std::size_t{64} << 20U;

// Throws SharedError unless the root can have what the ranks announce; `lengths` are theirs, and what the root can have behind
// them.
void require_room(std::span<const std::int64_t> lengths, int root, const char* name) {
  const auto most = static_cast<std::uint64_t>(lengths.back());
  std::uint64_t total = 0;
  for (std::size_t rank = 0; rank + 1 < lengths.size(); ++rank) {
    const auto length = static_cast<std::uint64_t>(lengths[rank]);
    if (length <= most && (total += length) <= most) continue;
    throw SharedError(ErrorKind::data,
                      fmt::format("{}: rank {} announces {} bytes, and those before it {}; rank {} takes at most {}", name,
                                  rank, length, total - (length <= most ? length : 0), root, most));
  }
}

}  // namespace

std::size_t Comm::State::elements_per_message() const {
  return settings.elements_per_message == 0 ? static_cast<std::size_t>(INT_MAX) : settings.elements_per_message;
}

template <typename T>
void Comm::State::reduce(std::span<T> values, MPI_Datatype type, MPI_Op operation, const char* name) {
  require_usable(name);
  if (size == 1) return;
  for_each_message(values.size(), [&](std::size_t offset, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    T* const begin = values.data() + offset;
    call(name, [&] { return MPI_Iallreduce(MPI_IN_PLACE, begin, count, type, operation, MPI_COMM_WORLD, &request); });
    wait(request, name, values.size_bytes());
  });
}

void Comm::State::broadcast(std::span<std::byte> bytes, int root, const char* name) {
  require_usable(name);
  require_rank(name, root);
  if (size == 1) return;
  for_each_message(bytes.size(), [&](std::size_t offset, int count) {
    MPI_Request request = MPI_REQUEST_NULL;
    call(name, [&] { return MPI_Ibcast(bytes.data() + offset, count, MPI_BYTE, root, MPI_COMM_WORLD, &request); });
    wait(request, name, bytes.size());
  });
}

std::vector<std::byte> Comm::State::broadcast_bytes(std::vector<std::byte> bytes, int root, const char* name) {
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
      call(name, [&] { return MPI_Isend(begin, count, MPI_BYTE, root, gather_tag, MPI_COMM_WORLD, &request); });
    });
  }
  for (int source = 0; rank == root && source < size; ++source) {
    if (source == rank) continue;
    std::vector<std::byte>& received = gathered[static_cast<std::size_t>(source)];
    for_each_message(received.size(), [&](std::size_t offset, int count) {
      MPI_Request& request = requests.emplace_back(MPI_REQUEST_NULL);
      std::byte* const begin = received.data() + offset;
      call(name, [&] { return MPI_Irecv(begin, count, MPI_BYTE, source, gather_tag, MPI_COMM_WORLD, &request); });
    });
  }
  if (!requests.empty()) wait(requests, name, bytes.size());
  return gathered;
}

void Comm::State::barrier(const char* name) {
  require_usable(name);
  if (size == 1) return;
  MPI_Request request = MPI_REQUEST_NULL;
  call(name, [&] { return MPI_Ibarrier(MPI_COMM_WORLD, &request); });
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

std::vector<std::byte> Comm::broadcast_bytes(std::vector<std::byte> bytes, int root) {
  const Meter meter = state_->meter(Collective::broadcast, root == rank() ? bytes.size() : 0);
  return state_->broadcast_bytes(std::move(bytes), root, "broadcast");
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

void Comm::check(const std::string& local_error, ErrorKind kind) {
  const Meter meter = state_->meter(Collective::check, local_error.size());
  // The lowest failing rank has the largest size - rank.
  const std::int64_t failed = state_->largest(local_error.empty() ? 0 : size() - rank(), "check");
  if (failed == 0) return;
  const int root = size() - static_cast<int>(failed);
  auto code = static_cast<std::int32_t>(kind);
  state_->broadcast(std::as_writable_bytes(std::span(&code, 1)), root, "check");
  const auto local = std::as_bytes(std::span(local_error));
  const std::vector<std::byte> shared = state_->broadcast_bytes({local.begin(), local.end()}, root, "check");
  const std::string message(reinterpret_cast<const char*>(shared.data()), shared.size());
  throw SharedError(static_cast<ErrorKind>(code), size() == 1 ? message : fmt::format("rank {}: {}", root, message));
}

}  // namespace bitloom::mpi
