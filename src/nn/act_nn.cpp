#include "nn/act_nn.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/random.h"

namespace bitloom::nn {
namespace {

struct Range {
  float low, high;
};

Range range_of(std::span<const float> group) {
  Range range{group[0], group[0]};
  for (const float x : group) {
    if (!std::isfinite(x)) return {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::quiet_NaN()};
    range = {std::min(range.low, x), std::max(range.high, x)};
  }
  return range;
}

}  // namespace

ActNNStash act_nn_quantise(std::span<const float> x_n, unsigned bits, std::uint64_t seed, std::uint64_t use) {
  if (bits < 1 || bits > 8) fail(ErrorKind::usage, "bits: {}, expected 1 to 8", bits);
  ActNNStash stash;
  stash.bits = bits;
  stash.size = x_n.size();
  stash.packed.resize(packed_bytes(x_n.size(), bits));
  BitPacker packer(stash.packed.data(), bits);
  const double steps = (1U << bits) - 1;
  for (std::size_t begin = 0; begin < x_n.size(); begin += act_nn_group) {
    const std::span<const float> group = x_n.subspan(begin, std::min(act_nn_group, x_n.size() - begin));
    const Range range = range_of(group);
    stash.lowest.push_back(range.low);
    stash.highest.push_back(range.high);
    Random random(seed, Stream::activation_rounding, use, begin / act_nn_group);
    // In double: the difference of two floats may overflow theirs.
    const double width = static_cast<double>(range.high) - range.low;
    for (const float x : group) {
      const double u = width > 0 ? steps * ((static_cast<double>(x) - range.low) / width) : 0;
      const double down = std::floor(u);
      packer.put(static_cast<std::uint32_t>(random.uniform() < u - down ? down + 1 : down));
    }
  }
  packer.finish();
  return stash;
}

void act_nn_restore(const ActNNStash& stash, std::span<float> x_n) {
  const std::size_t groups = (stash.size + act_nn_group - 1) / act_nn_group;
  if (x_n.size() != stash.size || stash.packed.size() != packed_bytes(stash.size, stash.bits) ||
      stash.lowest.size() != groups || stash.highest.size() != groups) {
    fail(ErrorKind::usage, "x: {} elements, but the stash has {} in {} bytes and {} groups", x_n.size(), stash.size,
         stash.packed.size(), stash.lowest.size());
  }
  BitUnpacker numbers(stash.packed.data(), stash.bits);
  const double steps = (1U << stash.bits) - 1;
  for (std::size_t i = 0; i < x_n.size(); ++i) {
    const double low = stash.lowest[i / act_nn_group];
    const double width = stash.highest[i / act_nn_group] - low;
    x_n[i] = static_cast<float>(low + width * (numbers.get() / steps));
  }
}

}  // namespace bitloom::nn
