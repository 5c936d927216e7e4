#include "mpi/top_filter.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <vector>

#include "core/error.h"
#include "mpi/sparse_filter.h"

namespace bitloom::mpi {
namespace {

// How many of `size` elements that end a vector are taken.
std::size_t count_of(std::size_t size, std::size_t chunk, std::size_t count) { return (size * count + chunk - 1) / chunk; }

// Places of the `count` largest of `magnitudes`, in their order.
void find_largest(std::span<const std::uint32_t> magnitudes, std::size_t count, std::vector<std::uint32_t>& sorted,
                  std::vector<std::uint32_t>& places) {
  places.clear();
  if (count == 0) return;
  sorted.assign(magnitudes.begin(), magnitudes.end());
  const auto nth = sorted.begin() + static_cast<std::ptrdiff_t>(std::min(count, sorted.size()) - 1);
  std::ranges::nth_element(sorted, nth, std::greater<>());
  const std::uint32_t least = *nth;
  // Number of elements to take that equal the least; there may be more of them.
  auto equal = static_cast<std::size_t>(std::count(sorted.begin(), nth + 1, least));
  for (std::size_t i = 0; i < magnitudes.size(); ++i) {
    if (magnitudes[i] < least || magnitudes[i] == 0) continue;
    if (magnitudes[i] == least) {
      if (equal == 0) continue;
      --equal;
    }
    places.push_back(static_cast<std::uint32_t>(i));
  }
}

// The power of two that is nearest by ratio.
std::uint64_t nearest_power(double value) {
  if (!(value > 1)) return 1;
  const auto floor = std::bit_floor(static_cast<std::uint64_t>(value));
  return value * value > 2.0 * static_cast<double>(floor) * static_cast<double>(floor) ? 2 * floor : floor;
}

struct Chosen {
  std::vector<std::uint32_t> index;
  std::uint64_t sum = 0;  // of their magnitudes
};

// The largest elements of one chunk, after fresh ones were added.
Chosen choose(std::span<const std::int32_t> fresh, std::span<std::int32_t> pending, std::size_t first, std::size_t count) {
  std::vector<std::uint32_t> magnitudes(pending.size()), sorted;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    pending[i] = kept_sum(pending[i], fresh[i]);
    magnitudes[i] = static_cast<std::uint32_t>(magnitude(pending[i]));
  }
  Chosen chosen;
  find_largest(magnitudes, count, sorted, chosen.index);
  for (std::uint32_t& place : chosen.index) {
    chosen.sum += magnitudes[place];
    place += static_cast<std::uint32_t>(first);
  }
  return chosen;
}

}  // namespace

void check(const TopFilter& filter) {
  if (filter.chunk == 0) fail(ErrorKind::usage, "chunk: 0; expected at least 1");
  if (filter.count == 0 || filter.count > filter.chunk) {
    fail(ErrorKind::usage, "count: {}; expected 1 to the chunk, {}", filter.count, filter.chunk);
  }
  levels_of(filter.value_bits);
}

SparseVector add_and_take_largest(std::span<const std::int32_t> fresh, std::span<std::int32_t> pending,
                                  const TopFilter& filter) {
  check(filter);
  if (fresh.size() != pending.size()) {
    fail(ErrorKind::usage, "add_and_take_largest: {} fresh elements; expected {}", fresh.size(), pending.size());
  }
  const std::size_t chunks = (pending.size() + filter.chunk - 1) / filter.chunk;
  std::vector<Chosen> chosen(chunks);
#pragma omp parallel for schedule(static) if (chunks > 4)
  for (std::ptrdiff_t c = 0; c < static_cast<std::ptrdiff_t>(chunks); ++c) {
    const std::size_t first = static_cast<std::size_t>(c) * filter.chunk;
    const std::size_t size = std::min(filter.chunk, pending.size() - first);
    chosen[static_cast<std::size_t>(c)] =
        choose(fresh.subspan(first, size), pending.subspan(first, size), first, count_of(size, filter.chunk, filter.count));
  }
  SparseVector sent;
  sent.size = pending.size();
  std::uint64_t sum = 0, number = 0;
  for (const Chosen& each : chosen) {
    sum += each.sum;
    number += each.index.size();
  }
  if (number == 0) return sent;
  const std::uint64_t levels = levels_of(filter.value_bits);
  const double mean = static_cast<double>(sum) / static_cast<double>(number);
  const std::uint64_t step = levels == 0 ? 1 : nearest_power(2 * mean / static_cast<double>(levels + 1));
  sent.index.reserve(number);
  sent.value.reserve(number);
  for (const Chosen& each : chosen) {
    for (const std::uint32_t i : each.index) {
      const std::uint64_t rounded = (magnitude(pending[i]) + step / 2) / step;
      if (rounded == 0) continue;
      const auto size = static_cast<std::int64_t>(step * (levels == 0 ? rounded : std::min(rounded, levels)));
      const std::int64_t value = pending[i] < 0 ? -size : size;
      sent.index.push_back(i);
      sent.value.push_back(value);
      pending[i] = static_cast<std::int32_t>(pending[i] - value);
    }
  }
  return sent;
}

SparseVector largest_of(const SparseVector& vector, std::size_t chunk, std::size_t count) {
  SparseVector largest;
  largest.size = vector.size;
  std::vector<std::uint32_t> magnitudes, sorted, places;
  for (std::size_t begin = 0; begin < vector.index.size();) {
    const std::uint64_t end_of_chunk = (vector.index[begin] / chunk + 1) * chunk;
    std::size_t end = begin;
    magnitudes.clear();
    for (; end < vector.index.size() && vector.index[end] < end_of_chunk; ++end) {
      magnitudes.push_back(static_cast<std::uint32_t>(
          std::min<std::uint64_t>(magnitude(vector.value[end]), std::numeric_limits<std::uint32_t>::max())));
    }
    const std::size_t size = std::min<std::uint64_t>(end_of_chunk, vector.size) - (end_of_chunk - chunk);
    find_largest(magnitudes, count_of(size, chunk, count), sorted, places);
    for (const std::uint32_t place : places) {
      largest.index.push_back(vector.index[begin + place]);
      largest.value.push_back(vector.value[begin + place]);
    }
    begin = end;
  }
  return largest;
}

}  // namespace bitloom::mpi
