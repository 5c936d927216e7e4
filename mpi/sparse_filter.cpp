#include "mpi/sparse_filter.h"

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "core/error.h"

namespace bitloom::mpi {
namespace {

constexpr std::size_t block = 64;     // elements that are looked at only if one of them passes
constexpr std::size_t piece = 16384;  // elements of a task

// The part of an element that is sent must fit its type.
template <typename T>
constexpr std::uint64_t largest_step = std::uint64_t{1} << (8 * sizeof(T) - 2);

// A filter that was checked, with what follows from it.
struct Sieve {
  std::uint64_t threshold, step, levels;

  template <typename T>
  static Sieve of(const SparseFilter& filter) {
    if (filter.step == 0 || filter.step > largest_step<T>) {
      fail(ErrorKind::usage, "step: {}; expected 1 to {}", filter.step, largest_step<T>);
    }
    constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    return {filter.threshold, filter.step, std::min(most / filter.step, filter.levels == 0 ? most : filter.levels)};
  }

  // Takes what passes of elements that begin with number `first` of the vector.
  template <typename T>
  void take(std::span<T> pending, std::size_t first, SparseVector& sent) const {
    for (std::size_t i = 0; i < pending.size(); ++i) {
      const std::uint64_t m = magnitude(pending[i]);
      if (m <= threshold) continue;
      // m + step / 2 stays below 2^64.
      const std::uint64_t steps = std::clamp<std::uint64_t>((m + step / 2) / step, 1, levels);
      const auto size = static_cast<std::int64_t>(steps * step);
      const std::int64_t value = pending[i] < 0 ? -size : size;
      sent.index.push_back(static_cast<std::uint32_t>(first + i));
      sent.value.push_back(value);
      pending[i] = static_cast<T>(pending[i] - value);
    }
  }
};

}  // namespace

std::uint64_t levels_of(unsigned value_bits) {
  constexpr std::array<unsigned, 6> possible = {0, 1, 2, 4, 8, 16};
  if (std::ranges::find(possible, value_bits) == possible.end()) {
    fail(ErrorKind::usage, "value bits: {}; expected 1, 2, 4, 8 or 16, or 0 for exact values", value_bits);
  }
  return value_bits == 0 ? 0 : std::uint64_t{1} << (value_bits - 1);
}

template <typename T>
SparseVector take(std::span<T> pending, const SparseFilter& filter) {
  SparseVector sent;
  sent.size = pending.size();
  Sieve::of<T>(filter).take(pending, 0, sent);
  return sent;
}

template <typename T>
SparseVector add_and_take(std::span<const T> fresh, std::span<T> pending, const SparseFilter& filter, std::uint64_t* at_limit) {
  if (fresh.size() != pending.size()) {
    fail(ErrorKind::usage, "add_and_take: {} fresh elements; expected {}", fresh.size(), pending.size());
  }
  const Sieve sieve = Sieve::of<T>(filter);
  constexpr T limit = largest_kept<T>;
  const auto threshold = static_cast<T>(std::min<std::uint64_t>(filter.threshold, std::numeric_limits<T>::max()));
  const std::size_t tasks = (fresh.size() + piece - 1) / piece;
  std::vector<SparseVector> parts(tasks);
  std::uint64_t full = 0;
#pragma omp parallel for schedule(static) reduction(+ : full) if (tasks > 2)
  for (std::ptrdiff_t task = 0; task < static_cast<std::ptrdiff_t>(tasks); ++task) {
    const std::size_t end = std::min((static_cast<std::size_t>(task) + 1) * piece, fresh.size());
    for (std::size_t begin = static_cast<std::size_t>(task) * piece; begin < end; begin += block) {
      const std::size_t n = std::min(block, end - begin);
      const T* const add = fresh.data() + begin;
      T* const to = pending.data() + begin;
      T largest = 0;
      for (std::size_t i = 0; i < n; ++i) {
        to[i] = kept_sum(to[i], add[i]);
        largest = std::max<T>(largest, to[i] < 0 ? static_cast<T>(-to[i]) : to[i]);
      }
      if (largest == limit) {
        full += static_cast<std::uint64_t>(std::count_if(to, to + n, [](T x) { return x == limit || x == -limit; }));
      }
      if (largest > threshold) sieve.take(std::span(to, n), begin, parts[static_cast<std::size_t>(task)]);
    }
  }
  if (at_limit != nullptr) *at_limit += full;
  SparseVector sent;
  sent.size = fresh.size();
  for (const SparseVector& part : parts) {
    sent.index.insert(sent.index.end(), part.index.begin(), part.index.end());
    sent.value.insert(sent.value.end(), part.value.begin(), part.value.end());
  }
  return sent;
}

template <typename T>
T share_of_kept(std::int64_t sum, std::uint64_t worker) {
  constexpr auto limit = static_cast<std::uint64_t>(largest_kept<T>);
  const std::uint64_t size = magnitude(sum);
  const std::uint64_t before = worker > size / limit ? size : worker * limit;
  const auto share = static_cast<T>(std::min(size - before, limit));
  return sum < 0 ? static_cast<T>(-share) : share;
}

template SparseVector take(std::span<std::int32_t>, const SparseFilter&);
template SparseVector take(std::span<std::int64_t>, const SparseFilter&);
template SparseVector add_and_take(std::span<const std::int32_t>, std::span<std::int32_t>, const SparseFilter&, std::uint64_t*);
template SparseVector add_and_take(std::span<const std::int64_t>, std::span<std::int64_t>, const SparseFilter&, std::uint64_t*);
template std::int32_t share_of_kept(std::int64_t, std::uint64_t);
template std::int64_t share_of_kept(std::int64_t, std::uint64_t);

}  // namespace bitloom::mpi
