#include "layerwise/rounded_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "core/bits.h"
#include "core/error.h"

namespace bitloom::layerwise {
namespace {

constexpr int largest_weight = std::numeric_limits<std::int16_t>::max();

int multiple_of(int weight, int step, int limit) {
  const int q = std::min(limit, (2 * std::abs(weight) + step) / (2 * step));  // halves away from 0
  return weight < 0 ? -q : q;
}

int best_step(std::span<const std::int16_t> row, int limit) {
  int largest = 0;
  for (const int w : row) largest = std::max(largest, std::abs(w));
  const int widest = std::clamp((largest + limit - 1) / limit, 1, largest_weight / limit);
  const int apart = 1 + widest / 256;  // enough of them
  int best = widest;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int step = widest; step >= std::max(1, widest / 3); step -= apart) {
    std::int64_t error = 0;
    for (const int w : row) {
      const std::int64_t difference = w - multiple_of(w, step, limit) * step;
      error += difference * difference;
    }
    if (error < least) {
      least = error;
      best = step;
    }
  }
  return best;
}

}  // namespace

void round_rows(std::span<std::int16_t> weights, std::size_t rows, std::size_t bits) {
  const int limit = (1 << (bits - 1)) - 1;
  const std::size_t columns = weights.size() / rows;
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = weights.subspan(r * columns, columns);
    const int step = best_step(row, limit);
    for (std::int16_t& w : row) w = static_cast<std::int16_t>(multiple_of(w, step, limit) * step);
  }
}

std::int16_t step_of(std::span<const std::int16_t> row) {
  int step = 0;
  for (const int w : row) step = std::gcd(step, w);
  return static_cast<std::int16_t>(step == 0 || step > largest_weight ? 1 : step);
}

BitPlanes bit_planes(std::span<const std::int16_t> weights, std::size_t rows, std::size_t bits) {
  const std::size_t columns = weights.size() / rows;
  const std::size_t words = words_for(columns);
  BitPlanes result{bits, words, std::vector<std::uint64_t>(rows * bits * words, 0), std::vector<std::int16_t>(rows)};
  for (std::size_t r = 0; r < rows; ++r) {
    const auto row = weights.subspan(r * columns, columns);
    result.steps[r] = step_of(row);
    for (std::size_t k = 0; k < columns; ++k) {
      const auto code = static_cast<unsigned>(row[k] / result.steps[r] + (1 << (bits - 1)));
      for (std::size_t b = 0; b < bits; ++b) set_bit(result.planes.data() + (r * bits + b) * words, k, ((code >> b) & 1U) != 0);
    }
  }
  return result;
}

void put_rounded(TensorFile& file, const std::string& name, std::span<const std::int16_t> weights, std::size_t rows,
                 std::size_t bits) {
  const BitPlanes stored = bit_planes(weights, rows, bits);
  file.put(name, {rows, bits, stored.words}, stored.planes);
  file.put(name + "_step", {rows}, stored.steps);
}

std::size_t stored_bits(const TensorFile& file, const std::string& name) {
  if (!file.contains(name)) return 16;
  const Tensor& stored = file.get(name);
  if (stored.dtype != DType::u64) return 16;
  const std::size_t bits = stored.shape.size() == 3 ? stored.shape[1] : 0;
  if (bits < 2 || bits > 15) {
    fail(ErrorKind::data, "{}: the shape is [{}]; expected rows, 2 to 15 planes and words", name,
         fmt::join(stored.shape, ", "));
  }
  return bits;
}

std::vector<std::int16_t> get_rounded(const TensorFile& file, const std::string& name, std::size_t rows, std::size_t columns,
                                      std::size_t bits) {
  const int limit = (1 << (bits - 1)) - 1;
  const std::size_t words = words_for(columns);
  const auto planes = file.get(name, DType::u64, {rows, bits, words}).as<std::uint64_t>();
  const auto steps = file.get(name + "_step", DType::i16, {rows}).as<std::int16_t>();
  std::vector<std::int16_t> weights(rows * columns);
  for (std::size_t r = 0; r < rows; ++r) {
    if (steps[r] < 1) fail(ErrorKind::data, "{}_step: the step of row {} is {}; expected at least 1", name, r, steps[r]);
    for (std::size_t k = 0; k < columns; ++k) {
      unsigned code = 0;
      for (std::size_t b = 0; b < bits; ++b) code |= unsigned{get_bit(planes.data() + (r * bits + b) * words, k)} << b;
      const int weight = (static_cast<int>(code) - (1 << (bits - 1))) * steps[r];
      if (std::abs(weight) > std::min(largest_weight, limit * steps[r])) {
        fail(ErrorKind::data, "{}: a weight of row {} is {}; expected at most {} steps of {}, and {}", name, r, weight, limit,
             steps[r], largest_weight);
      }
      weights[r * columns + k] = static_cast<std::int16_t>(weight);
    }
  }
  return weights;
}

}  // namespace bitloom::layerwise
