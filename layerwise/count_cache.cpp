#include "layerwise/count_cache.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <limits>

namespace bitloom::layerwise {
namespace {

constexpr std::int32_t largest_count = std::numeric_limits<std::int16_t>::max();

std::int16_t narrowed(std::int32_t threshold) { return static_cast<std::int16_t>(std::clamp(threshold, -1, largest_count)); }

// 64 bytes of 0 or 1 to the bits of a word. A multiplication brings the lowest bits of eight bytes together: byte i times
// 2^(56 - 7i) lands on bit 56 + i, and no other two products meet.
std::uint64_t packed(const std::uint8_t* flags) {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8; ++i) {
    std::uint64_t eight;
    std::memcpy(&eight, flags + 8 * i, sizeof eight);
    word |= (eight * 0x0102040810204080ULL >> 56U) << (8 * i);
  }
  return word;
}

}  // namespace

CountCache::CountCache(const BinaryLayer& layer, std::size_t images)
    : layer_(layer),
      images_(images),
      pixels_(layer.geometry().output.height * layer.geometry().output.width),
      sum_(layer.padded_channels()),
      squares_(layer.padded_channels()) {}

// One below the largest: a window may begin after the last count.
bool CountCache::can_hold(const BinaryLayer& layer) { return layer.patch_bits() < static_cast<std::size_t>(largest_count); }

CountMode CountCache::begin_step(bool same, bool again, double limit) {
  const std::size_t words = layer_.patch_words();
  const bool ternary = layer_.spec().ternary;
  const auto& rows = layer_.rows();
  const auto& nonzero_rows = layer_.nonzero_rows();
  changed_.clear();
  for (std::size_t o = 0; o < layer_.channels(); ++o) {
    const auto row = static_cast<std::ptrdiff_t>(o * words);
    const auto end = row + static_cast<std::ptrdiff_t>(words);
    const bool equal = known_ && std::equal(rows.begin() + row, rows.begin() + end, sign_.begin() + row) &&
                       (!ternary || std::equal(nonzero_rows.begin() + row, nonzero_rows.begin() + end, nonzero_.begin() + row));
    if (!equal) changed_.push_back(static_cast<std::uint32_t>(o));
  }
  sign_.assign(rows.begin(), rows.end());
  if (ternary) nonzero_.assign(nonzero_rows.begin(), nonzero_rows.end());
  known_ = true;

  // Rows that serve several thresholds are kept, and counted, for each of them; the convolution counts them once.
  const bool pays = changed_share() * static_cast<double>(layer_.conv_shape().planes) <= limit;
  if (pays && same && mode_ != CountMode::none) {
    mode_ = CountMode::part;
  } else {
    mode_ = pays && again ? CountMode::all : CountMode::none;
  }
  if (mode_ == CountMode::all) {
    counts_.resize(images_ * pixels_ * layer_.padded_channels());
  } else if (mode_ == CountMode::part) {
    chosen_.resize(changed_.size() * words);
    const auto pack = [&](const Buffer<std::uint64_t>& source, Buffer<std::uint32_t>& target) {
      for (std::size_t i = 0; i < changed_.size(); ++i) {
        std::copy_n(source.data() + changed_[i] * words, words, chosen_.data() + i * words);
      }
      const std::size_t size = simd::packed_conv_weights_size(changed_.size(), words);
      if (size == 0) return;
      if (target.size() < size) target = Buffer<std::uint32_t>(size);
      simd::pack_conv_weights(chosen_.data(), changed_.size(), words, target.data());
    };
    pack(rows, packed_);
    if (ternary) pack(nonzero_rows, packed_nonzero_);
  }
  return mode_;
}

double CountCache::changed_share() const {
  return static_cast<double>(changed_.size()) / static_cast<double>(layer_.channels());
}

// Counts of all or of the changed channels of one image, with their statistics.
void CountCache::convolve(const simd::Kernels& kernels, const std::uint64_t* input, std::int16_t* counts, LayerSums& sums,
                          Scratch& scratch) const {
  const bool part = mode_ == CountMode::part;
  simd::ConvShape shape = layer_.conv_shape();
  simd::ConvWeights weights = layer_.conv_weights();
  if (part) {
    shape.out_channels = changed_.size();
    shape.planes = 1;
    weights = {packed_.data(), layer_.spec().ternary ? packed_nonzero_.data() : nullptr};
  }
  if (shape.out_channels == 0) return;
  const std::size_t pitch = (shape.out_channels + simd::weight_lanes - 1) / simd::weight_lanes * simd::weight_lanes;
  const std::size_t channels = layer_.padded_channels();
  if (scratch.counts.size() < pixels_ * pitch) scratch.counts = Buffer<std::int32_t>(pixels_ * pitch);
  scratch.sum.resize(channels);
  scratch.squares.resize(channels);
  kernels.conv_counts(shape, input, weights, scratch.counts.data());
  // Sums in 32 bits, as long as those hold the squares: compilers make vectors of them.
  const auto half = static_cast<std::int32_t>(layer_.patch_bits() / 2);
  const auto block = std::numeric_limits<std::uint32_t>::max() / static_cast<std::size_t>(half * half);
  for (std::size_t begin = 0; begin < pixels_; begin += block) {
    std::fill(scratch.sum.begin(), scratch.sum.end(), 0);
    std::fill(scratch.squares.begin(), scratch.squares.end(), 0U);
    for (std::size_t p = begin; p < std::min(pixels_, begin + block); ++p) {
      const std::int32_t* from = scratch.counts.data() + p * pitch;
      std::int16_t* to = counts + p * channels;
      std::int32_t* sum = scratch.sum.data();
      std::uint32_t* squares = scratch.squares.data();
      for (std::size_t i = 0; i < shape.out_channels; ++i) {
        const auto e = static_cast<std::int16_t>(from[i] - half);
        sum[i] += e;
        squares[i] += static_cast<std::uint32_t>(std::int32_t{e} * e);
      }
      if (part) {
        for (std::size_t i = 0; i < shape.out_channels; ++i) to[changed_[i]] = static_cast<std::int16_t>(from[i]);
      } else {
        for (std::size_t i = 0; i < shape.out_channels; ++i) to[i] = static_cast<std::int16_t>(from[i]);
      }
    }
    for (std::size_t i = 0; i < shape.out_channels; ++i) {
      const std::size_t o = part ? changed_[i] : i;
      sums.count()[o] += scratch.sum[i];
      sums.count_squared()[o] += scratch.squares[i];
    }
  }
}

void CountCache::forward(const simd::Kernels& kernels, std::size_t image, const std::uint64_t* input,
                         const simd::ConvThresholds& thresholds, std::uint64_t* bits, std::uint64_t* window, LayerSums& sums,
                         Scratch& scratch) {
  assert(mode_ != CountMode::none);
  const std::size_t channels = layer_.padded_channels();
  std::int16_t* counts = counts_.data() + image * pixels_ * channels;
  convolve(kernels, input, counts, sums, scratch);
  const std::size_t words = channels / word_bits;
  for (std::size_t w = 0; w < words; ++w) {
    std::int16_t threshold[word_bits];
    std::int16_t low[word_bits];
    std::int16_t high[word_bits];
    for (std::size_t c = 0; c < word_bits; ++c) {
      threshold[c] = narrowed(thresholds.threshold[w * word_bits + c]);
      low[c] = narrowed(thresholds.low[w * word_bits + c]);
      high[c] = narrowed(thresholds.high[w * word_bits + c]);
    }
    for (std::size_t p = 0; p < pixels_; ++p) {
      const std::int16_t* d = counts + p * channels + w * word_bits;
      std::uint8_t flags[word_bits];
      for (std::size_t c = 0; c < word_bits; ++c) flags[c] = d[c] <= threshold[c] ? 1 : 0;
      bits[p * words + w] = packed(flags);
      if (window == nullptr) continue;
      for (std::size_t c = 0; c < word_bits; ++c) flags[c] = (d[c] >= low[c]) & (d[c] <= high[c]) ? 1 : 0;
      window[p * words + w] = packed(flags);
    }
  }
}

void CountCache::complete(LayerSums& sums) {
  convolved_.assign(sum_.size(), mode_ != CountMode::part);
  for (const std::uint32_t o : changed_) convolved_[o] = true;
  for (std::size_t o = 0; o < sum_.size(); ++o) {
    if (!convolved_[o]) {
      sums.count()[o] = sum_[o];
      sums.count_squared()[o] = squares_[o];
    }
    sum_[o] = sums.count()[o];
    squares_[o] = sums.count_squared()[o];
  }
}

}  // namespace bitloom::layerwise
