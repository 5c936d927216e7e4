#include "train/parallel/partition.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

#include "core/error.h"
#include "core/field.h"
#include "core/text.h"

namespace bitloom::train {
namespace {

constexpr const char* partition_field = "partition";
constexpr int cost_bits = 31;  // squares of sums fit in 64

// sums[i]: that of the costs of layers 0 .. i - 1, as whole numbers.
std::vector<std::uint64_t> sums_of(std::span<const double> costs) {
  double total = 0;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    total += costs[i];
    if (!std::isfinite(total) || !(costs[i] >= 0)) {
      fail_field(ErrorKind::usage, partition_field, "layer {} costs {}; expected numbers of at least 0 with a finite sum", i,
                 costs[i]);
    }
  }
  int exponent = 0;
  std::frexp(total, &exponent);
  std::vector<std::uint64_t> sums(costs.size() + 1, 0);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    sums[i + 1] = sums[i] + static_cast<std::uint64_t>(std::llround(std::ldexp(costs[i], cost_bits - exponent)));
  }
  return sums;
}

}  // namespace

Partition partition(std::span<const double> costs, std::size_t parts) {
  const std::size_t layers = costs.size();
  if (parts == 0 || parts > layers) {
    fail_field(ErrorKind::usage, partition_field, "{} parts of {} layers; expected 1 to {}", parts, layers, layers);
  }
  const std::vector<std::uint64_t> sums = sums_of(costs);
  if (parts == 1) return {{0, layers}};  // at once, however many
  // best[i], for layers i and later in `p` parts: the least sum of squares; ends[p][i]: where the first of these parts ends.
  constexpr std::uint64_t none = std::numeric_limits<std::uint64_t>::max();
  std::vector<std::uint64_t> best(layers + 1, none);
  best[layers] = 0;
  std::vector<std::vector<std::size_t>> ends(parts + 1, std::vector<std::size_t>(layers, 0));
  for (std::size_t p = 1; p <= parts; ++p) {
    std::vector<std::uint64_t> longer(layers + 1, none);
    for (std::size_t i = 0; i < layers; ++i) {
      for (std::size_t end = i + 1; end <= layers; ++end) {
        if (best[end] == none) continue;
        const std::uint64_t cost = sums[end] - sums[i];
        if (const std::uint64_t squares = cost * cost + best[end]; squares < longer[i]) {
          longer[i] = squares;
          ends[p][i] = end;
        }
      }
    }
    best = std::move(longer);
  }
  Partition ranges;
  for (std::size_t begin = 0, p = parts; p > 0; --p) {
    ranges.push_back({begin, ends[p][begin]});
    begin = ranges.back().last;
  }
  return ranges;
}

Partition parse_partition(const std::string& text, std::size_t layers, std::size_t parts) {
  Partition ranges;
  std::size_t begin = 0;
  for (const std::string& part : split(text, ',')) {
    const std::optional<std::int64_t> size = parse_int(part);
    if (!size || *size < 1) {
      fail_field(ErrorKind::usage, partition_field,
                 "'{}' has '{}'; expected numbers of layers, at least 1 each, between commas", text, part);
    }
    if (static_cast<std::uint64_t>(*size) > layers - begin) {
      fail_field(ErrorKind::usage, partition_field, "'{}' has more layers than the net, {}", text, layers);
    }
    ranges.push_back({begin, begin + static_cast<std::size_t>(*size)});
    begin = ranges.back().last;
  }
  if (ranges.size() != parts) {
    fail_field(ErrorKind::usage, partition_field, "'{}' has {} parts; expected {}", text, ranges.size(), parts);
  }
  if (begin != layers)
    fail_field(ErrorKind::usage, partition_field, "'{}' has {} layers; expected the net's, {}", text, begin, layers);
  return ranges;
}

std::string to_text(const Partition& partition) {
  std::string text;
  for (const LayerRange& range : partition) text += fmt::format("{}{}", text.empty() ? "" : ",", range.size());
  return text;
}

}  // namespace bitloom::train
