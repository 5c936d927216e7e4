#include "mpi/sparse_filter.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace bitloom::mpi {
namespace {

constexpr std::uint64_t largest_step = std::uint64_t{1} << 30U;

// Buckets of magnitudes, in their order: one each up to 255, above that 128 per power of two.
constexpr unsigned exact_bits = 8;
constexpr std::size_t buckets = (64 - exact_bits) * 128 + 256;

std::size_t bucket_of(std::uint64_t m) {
  const auto width = static_cast<unsigned>(std::bit_width(m));
  const unsigned shift = width > exact_bits ? width - exact_bits : 0;
  return std::size_t{shift} * 128 + static_cast<std::size_t>(m >> shift);
}

// The entries of a message that fit, if gaps and values cost what they cost on average: about log2(size / entries) + 1.5 bits
// and the values' bits. Rounded down to what surely fits later.
std::size_t entries_in(std::size_t bytes, std::size_t size, unsigned value_bits) {
  constexpr std::size_t header = 12;
  if (bytes <= header || size == 0) return 0;
  const double bits = 8.0 * static_cast<double>(bytes - header);
  double entries = bits / (1.5 + value_bits);
  for (int round = 0; round < 8; ++round) {
    const double gap = std::max(std::log2(static_cast<double>(size) / std::max(entries, 1.0)), 0.0);
    entries = bits / (1.5 + gap + value_bits);
  }
  return static_cast<std::size_t>(std::min(entries, static_cast<double>(size)));
}

// What passes the filter.
template <typename T>
SparseVector select(std::span<const T> values, const SparseFilter& filter) {
  if (filter.step == 0 || filter.step > largest_step) {
    fail(ErrorKind::usage, "step: {}; expected 1 to {}", filter.step, largest_step);
  }
  constexpr auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::uint64_t levels = std::min(most / filter.step, filter.levels == 0 ? most : filter.levels);
  SparseVector sent;
  sent.size = values.size();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t m = magnitude(values[i]);
    if (m <= filter.threshold) continue;
    const std::uint64_t steps = std::clamp<std::uint64_t>((m + filter.step / 2) / filter.step, 1, levels);
    const auto value = static_cast<std::int64_t>(steps * filter.step);
    sent.index.push_back(static_cast<std::uint32_t>(i));
    sent.value.push_back(values[i] < 0 ? -value : value);
  }
  return sent;
}

template <typename T>
SparseFilter filter_above(std::span<const T> values, std::uint64_t threshold, std::uint64_t levels) {
  SparseFilter filter = {threshold, 1, levels};
  if (levels == 0) return filter;
  std::uint64_t largest = 0;
  double sum = 0;
  std::size_t count = 0;
  for (const T value : values) {
    const std::uint64_t m = magnitude(value);
    if (m <= threshold) continue;
    largest = std::max(largest, m);
    sum += static_cast<double>(m);
    ++count;
  }
  if (count == 0) return filter;
  const auto step =
      levels == 1 ? static_cast<std::uint64_t>(sum / static_cast<double>(count)) : (largest + levels - 1) / levels;
  filter.step = std::clamp<std::uint64_t>(step, 1, largest_step);
  return filter;
}

}  // namespace

std::uint64_t levels_of(unsigned value_bits) {
  if (value_bits != 0 && value_bits != 1 && value_bits != 4 && value_bits != 8 && value_bits != 16) {
    fail(ErrorKind::usage, "value bits: {}; expected 1, 4, 8 or 16, or 0 for exact values", value_bits);
  }
  return value_bits == 0 ? 0 : std::uint64_t{1} << (value_bits - 1);
}

template <typename T>
SparseVector take(std::span<T> pending, const SparseFilter& filter) {
  SparseVector sent = select(std::span<const T>(pending), filter);
  for (std::size_t i = 0; i < sent.index.size(); ++i) {
    T& left = pending[sent.index[i]];
    left = static_cast<T>(left - sent.value[i]);
  }
  return sent;
}

template <typename T>
std::uint64_t threshold_for(std::span<const T> values, std::size_t count) {
  std::array<std::size_t, buckets> histogram{};
  for (const T value : values) ++histogram[bucket_of(magnitude(value))];
  // The bucket in which the elements that may exceed the threshold end.
  std::size_t above = 0;
  std::size_t bucket = buckets;
  while (bucket > 0 && above + histogram[bucket - 1] <= count) above += histogram[--bucket];
  if (bucket == 0) return 0;
  --bucket;
  std::vector<std::uint64_t> inside;
  inside.reserve(histogram[bucket]);
  for (const T value : values) {
    const std::uint64_t m = magnitude(value);
    if (bucket_of(m) == bucket) inside.push_back(m);
  }
  const auto rank = static_cast<std::ptrdiff_t>(count - above);  // of the largest that does not
  std::nth_element(inside.begin(), inside.begin() + rank, inside.end(), std::greater<>());
  return inside[static_cast<std::size_t>(rank)];
}

template <typename T>
SparseFilter filter_for(std::span<const T> values, std::size_t bytes, unsigned value_bits) {
  const std::uint64_t levels = levels_of(value_bits);
  SparseFilter best = {std::numeric_limits<std::uint64_t>::max(), 1, levels};
  std::size_t fits = 0;                      // entries that do
  std::size_t too_many = values.size() + 1;  // and that do not
  std::size_t entries = entries_in(bytes, values.size(), value_bits == 0 ? 8 : value_bits);
  std::vector<std::byte> message;
  // Gaps and values are rarely as even as the estimate assumes; a few rounds bring the size within a few percent.
  for (int round = 0; round < 8 && entries > fits && entries < too_many; ++round) {
    const SparseFilter filter = filter_above(values, threshold_for(values, entries), levels);
    message.clear();
    const std::size_t size = encode(select(values, filter), message);
    if (size <= bytes) {
      best = filter;
      fits = entries;
      if (static_cast<double>(size) > 0.95 * static_cast<double>(bytes)) break;
    } else {
      too_many = entries;
    }
    const double scaled = 0.985 * static_cast<double>(entries) * static_cast<double>(bytes) / static_cast<double>(size);
    entries = static_cast<std::size_t>(std::clamp(scaled, static_cast<double>(fits + 1), static_cast<double>(too_many - 1)));
  }
  return best;
}

template SparseVector take(std::span<std::int32_t>, const SparseFilter&);
template SparseVector take(std::span<std::int64_t>, const SparseFilter&);
template std::uint64_t threshold_for(std::span<const std::int32_t>, std::size_t);
template std::uint64_t threshold_for(std::span<const std::int64_t>, std::size_t);
template SparseFilter filter_for(std::span<const std::int32_t>, std::size_t, unsigned);
template SparseFilter filter_for(std::span<const std::int64_t>, std::size_t, unsigned);

}  // namespace bitloom::mpi
