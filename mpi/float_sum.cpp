#include "mpi/float_sum.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace bitloom::mpi {
namespace {

// Messages of a segment are in memory at once.
constexpr std::size_t segment_bytes = std::size_t{16} << 20U;

template <typename T>
std::vector<std::byte> to_bytes(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

// The next message of a rank. Its length is that of all ranks' calls, which the caller answers for.
template <typename T>
void receive_into(Comm& comm, int from, std::span<T> values) {
  const std::vector<std::byte> bytes = comm.receive(from, values.size_bytes());
  if (bytes.size() != values.size_bytes()) {
    fail(ErrorKind::internal, "a sum of floats: rank {} sent {} bytes, expected {}", from, bytes.size(), values.size_bytes());
  }
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

// The part of n values that a rank sums.
template <typename T>
std::span<T> part_of(std::span<T> values, int rank, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  const auto r = static_cast<std::size_t>(rank);
  const std::size_t begin = values.size() * r / n;
  return values.subspan(begin, values.size() * (r + 1) / n - begin);
}

template <typename T>
void sum_segment(Comm& comm, std::span<T> values) {
  const int ranks = comm.size();
  const int own = comm.rank();
  for (int r = 0; r < ranks; ++r) {
    if (r != own) comm.send(r, to_bytes(std::span<const T>(part_of(values, r, ranks))));
  }
  const std::span<T> mine = part_of(values, own, ranks);
  std::vector<double> sums(mine.size(), 0.0);
  std::vector<T> theirs(mine.size());
  for (int r = 0; r < ranks; ++r) {
    if (r != own) receive_into(comm, r, std::span<T>(theirs));
    const std::span<const T> terms = r == own ? std::span<const T>(mine) : std::span<const T>(theirs);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += static_cast<double>(terms[i]);
  }
  std::ranges::transform(sums, mine.begin(), [](double sum) { return static_cast<T>(sum); });
  for (int r = 0; r < ranks; ++r) {
    if (r != own) comm.send(r, to_bytes(std::span<const T>(mine)));
  }
  for (int r = 0; r < ranks; ++r) {
    if (r != own) receive_into(comm, r, part_of(values, r, ranks));
  }
}

template <typename T>
void sum_segments(Comm& comm, std::span<T> values) {
  if (comm.size() == 1) return;
  constexpr std::size_t most = segment_bytes / sizeof(T);
  for (std::size_t begin = 0; begin < values.size(); begin += most) {
    sum_segment(comm, values.subspan(begin, std::min(most, values.size() - begin)));
  }
  comm.wait_until([&] { return comm.sends_finished(); }, "a sum of floats");
}

}  // namespace

void sum_in_order(Comm& comm, std::span<float> values) { sum_segments(comm, values); }

void sum_in_order(Comm& comm, std::span<double> values) { sum_segments(comm, values); }

}  // namespace bitloom::mpi
