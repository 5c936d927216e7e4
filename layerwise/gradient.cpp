#include "layerwise/gradient.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>

#include "core/random.h"

namespace bitloom::layerwise {
namespace {

constexpr std::uint32_t offset_mask = (1U << component_offset_bits) - 1;
constexpr std::size_t quantised_count = quantised_values.size();

// Components whose rows of bits are `shift` words further on than they say.
struct Segment {
  std::span<const std::uint32_t> components;
  std::uint32_t shift = 0;
};

void count_codes(std::span<const std::uint32_t> components, CodeCounts& counts) {
  for (const std::uint32_t component : components) ++counts[component >> component_offset_bits];
}

// Appends the offsets of the components of segment(0) .. segment(count - 1), a list per code, which have these counts together.
template <typename F>
void append_lists(std::size_t count, F&& segment, const CodeCounts& counts, std::vector<std::uint32_t>& offsets,
                  std::vector<std::uint32_t>& begin) {
  CodeCounts position = counts;
  auto end = static_cast<std::uint32_t>(offsets.size());
  for (std::uint32_t& each : position) {
    const std::uint32_t start = end;
    end += each;
    each = start;
    begin.push_back(end);
  }
  offsets.resize(end);
  for (std::size_t i = 0; i < count; ++i) {
    const Segment placed = segment(i);
    for (const std::uint32_t component : placed.components) {
      offsets[position[component >> component_offset_bits]++] = (component & offset_mask) + placed.shift;
    }
  }
}

}  // namespace

std::int64_t collect_components(const std::uint64_t* window, std::size_t pixels, std::size_t words, std::size_t channels,
                                const Rounding* rounding, const std::uint32_t* region, const std::uint32_t* patch_offset,
                                std::uint32_t image_offset, std::uint64_t key, ImageComponents& out, std::int64_t* value_sum,
                                std::uint8_t* codes) {
  thread_local std::vector<std::uint32_t> lists;
  lists.resize(word_bits * pixels);
  out.components.clear();
  out.begin.assign(channels + 1, 0);
  std::int64_t magnitude = 0;
  for (std::size_t w = 0; w < words; ++w) {
    std::array<std::uint32_t, word_bits> length{};
    for (std::size_t p = 0; p < pixels; ++p) {
      std::uint64_t active = window[p * words + w];
      if (active == 0) continue;
      const Rounding* round = rounding + (region[p] * words + w) * word_bits;
      const std::uint64_t random = mix64(key + p * words + w);
      // Those that are not rounded to 0, as code << 8 | bit; the others are not counted, without a branch to mispredict.
      std::array<std::uint16_t, word_bits> kept;
      std::size_t count = 0;
      std::uint8_t* const code_of = codes == nullptr ? nullptr : codes + (p * words + w) * word_bits;
      for (; active != 0; active &= active - 1) {
        const auto bit = static_cast<std::size_t>(std::countr_zero(active));
        const Rounding between = round[bit];
        const auto u = static_cast<std::uint32_t>(((random ^ (bit * 0xd1342543de82ef95ULL)) * 0x9e3779b97f4a7c15ULL) >> 48U);
        const std::uint32_t level = (between & 15U) + (u < between >> 16U ? 1U : 0U);
        const std::uint32_t code = (level - 1) | ((between >> 5U) & 8U);  // quantised_zero where level is 0
        kept[count] = static_cast<std::uint16_t>(code << 8U | bit);
        count += level == 0 ? 0U : 1U;
        if (code_of != nullptr) code_of[bit] = static_cast<std::uint8_t>(code);
      }
      const std::uint32_t offset = patch_offset[p] + image_offset;
      for (std::size_t k = 0; k < count; ++k) {
        const std::size_t bit = kept[k] % 256;
        lists[bit * pixels + length[bit]++] = std::uint32_t{kept[k]} >> 8U << component_offset_bits | offset;
      }
    }
    for (std::size_t bit = 0; bit < word_bits && w * word_bits + bit < channels; ++bit) {
      const std::size_t o = w * word_bits + bit;
      const std::uint32_t* list = lists.data() + bit * pixels;
      out.components.insert(out.components.end(), list, list + length[bit]);
      out.begin[o + 1] = static_cast<std::uint32_t>(out.components.size());
      for (std::uint32_t k = 0; k < length[bit]; ++k) {
        const std::int32_t value = quantised_values[list[k] >> component_offset_bits];
        value_sum[o] += value;
        magnitude += std::abs(value);
      }
    }
  }
  return magnitude;
}

std::size_t images_per_part(const BinaryLayer& layer, std::size_t images) {
  constexpr std::size_t cache_bytes = 512 * 1024;
  constexpr std::size_t share_of_sums = 16;
  const std::size_t sums = layer.channels() * layer.patch_bits() * sizeof(std::int32_t);
  const std::size_t bytes = images * layer.geometry().input.size() * sizeof(std::uint64_t);
  const std::size_t parts = std::max<std::size_t>(1, bytes / std::max(cache_bytes, sums / share_of_sums));
  return std::max<std::size_t>(1, (images + parts - 1) / parts);
}

void accumulate_weight_gradient(const simd::Kernels& kernels, const BinaryLayer& layer, const std::uint64_t* inputs,
                                std::span<const ImageComponents> images, std::int32_t* sums) {
  const simd::ConvShape shape = layer.conv_shape();
  constexpr std::ptrdiff_t channels_per_call = 4;
  const std::size_t part = images_per_part(layer, images.size());
  const auto channels = static_cast<std::ptrdiff_t>(layer.channels());
#pragma omp parallel
  {
    thread_local std::vector<std::uint32_t> offsets;
    thread_local std::vector<std::uint32_t> begin;
    for (std::size_t first_image = 0; first_image < images.size(); first_image += part) {
      const std::span<const ImageComponents> some = images.subspan(first_image, std::min(part, images.size() - first_image));
#pragma omp for schedule(dynamic, 4)
      for (std::ptrdiff_t first = 0; first < channels; first += channels_per_call) {
        const std::ptrdiff_t last = std::min(first + channels_per_call, channels);
        std::int32_t* const row_sums = sums + static_cast<std::size_t>(first) * layer.patch_bits();
        if (first_image == 0) std::fill_n(row_sums, static_cast<std::size_t>(last - first) * layer.patch_bits(), 0);
        offsets.clear();
        begin.assign(1, 0);
        for (auto o = static_cast<std::size_t>(first); o < static_cast<std::size_t>(last); ++o) {
          const auto of_image = [&](std::size_t i) {
            const std::vector<std::uint32_t>& from = some[i].begin;
            return Segment{std::span(some[i].components).subspan(from[o], from[o + 1] - from[o])};
          };
          CodeCounts counts{};
          for (std::size_t i = 0; i < some.size(); ++i) count_codes(of_image(i).components, counts);
          append_lists(some.size(), of_image, counts, offsets, begin);
        }
        simd::RowLists rows;
        rows.base = inputs;
        rows.offsets = offsets.data();
        rows.begin = begin.data();
        rows.lists = static_cast<std::size_t>(last - first);
        rows.scales = quantised_count;
        rows.scale = quantised_values.data();
        rows.runs = shape.patch_rows;
        rows.run_words = shape.run_words;
        rows.pitch = shape.pitch;
        kernels.accumulate_rows(rows, row_sums);
      }
    }
  }
}

BackwardWeights::BackwardWeights(const BinaryLayer& layer)
    : layer_(layer), copied_(pixel_words() < layer.geometry().input.words()) {
  for (std::size_t o = 0; o < layer.channels(); ++o)
    row_offset_.push_back(static_cast<std::uint32_t>(o % rows() * row_words()));
  refresh();
}

void BackwardWeights::refresh() {
  if (!copied_) return;
  const std::size_t pixels = rows() * layer_.spec().kernel * layer_.spec().kernel;
  const Ties::PixelWords& words = layer_.ties().pixel_words();
  const auto copy = [&](const Buffer<std::uint64_t>& from, std::vector<std::uint64_t>& to) {
    to.clear();
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      for (const std::size_t w : words.stored) to.push_back(from[pixel * words.place.size() + w]);
    }
  };
  copy(layer_.rows(), sign_);
  if (layer_.spec().ternary) copy(layer_.nonzero_rows(), nonzero_);
}

namespace {

// The components of all pixels of outputs.
void list_pixels(const std::uint64_t* window, const std::uint8_t* codes, const MapShape& output, const BackwardWeights& weights,
                 BackwardScratch& scratch) {
  const std::size_t words = output.words();
  const std::size_t pixels = output.height * output.width;
  std::uint32_t count = 0;
  scratch.pixel_begin.assign(1, 0);
  scratch.pixel_counts.assign(pixels, {});
  for (std::size_t p = 0; p < pixels; ++p, window += words, codes += words * word_bits) {
    scratch.components.resize(std::max(scratch.components.size(), count + words * word_bits));
    std::uint32_t* const components = scratch.components.data();
    for (std::size_t w = 0; w < words; ++w) {
      for (std::uint64_t active = window[w]; active != 0; active &= active - 1) {
        const std::size_t o = w * word_bits + static_cast<std::size_t>(std::countr_zero(active));
        components[count] = std::uint32_t{codes[o]} << component_offset_bits | weights.row_offset(o);
        count += codes[o] != quantised_zero ? 1 : 0;  // no branch to mispredict
      }
    }
    count_codes({components + scratch.pixel_begin.back(), components + count}, scratch.pixel_counts[p]);
    scratch.pixel_begin.push_back(count);
  }
}

}  // namespace

// For an input bit a (value 1 - 2a) and a weight w in {+1, -1, 0}, d counts a where w = +1 and 1 - a where w = -1, so
// dd/da = w, and dL/da = sum over components of (-value) * w. With n(k) the value-weighted count of set sign bits (w = -1) and
// z(k) that of nonzero bits (all of them for binary weights), sum of value * w = z - 2n.
void input_gradient(const simd::Kernels& kernels, const BackwardWeights& weights, const std::uint64_t* window,
                    const std::uint8_t* codes, float unit, BackwardScratch& scratch, float* gradient) {
  const BinaryLayer& layer = weights.layer();
  const LayerSpec& spec = layer.spec();
  const MapShape& output = layer.geometry().output;
  const MapShape& input = layer.geometry().input;
  const std::size_t pixel_bits = weights.pixel_words() * word_bits;
  // A row of a kernel meets neighbouring pixels, so its counts are added where they belong, border included.
  const std::size_t width = input.width + 2 * spec.padding;
  const std::size_t pixels = (input.height + 2 * spec.padding) * width;
  scratch.sums.assign(pixels * pixel_bits, 0);
  if (spec.ternary) {
    scratch.zero_sums.assign(pixels * pixel_bits, 0);
  } else {
    scratch.totals.assign(pixels, 0);
  }
  simd::RowLists rows;
  rows.lists = 1;
  rows.scales = quantised_count;
  rows.scale = quantised_values.data();
  rows.runs = 1;
  rows.run_words = spec.kernel * weights.pixel_words();
  rows.pitch = rows.run_words;
  list_pixels(window, codes, output, weights, scratch);
  // By rows of the input: the pixels of one column of outputs whose patches it is in, each by a row of its own of the kernel,
  // are counted together, since lists are short. Border rows are nobody's.
  for (std::size_t y = spec.padding; y < spec.padding + input.height; ++y) {
    // Outputs whose patches this row is in.
    const std::size_t first_row = y < spec.kernel ? 0 : (y - spec.kernel) / spec.stride + 1;
    const std::size_t count = std::min(output.height, y / spec.stride + 1) - first_row;
    for (std::size_t x = 0; x < output.width; ++x) {
      const auto of_row = [&](std::size_t i) {
        const std::size_t row = first_row + i;
        const std::uint32_t* from = &scratch.pixel_begin[row * output.width + x];
        return Segment{std::span(scratch.components).subspan(from[0], from[1] - from[0]),
                       static_cast<std::uint32_t>((y - row * spec.stride) * rows.run_words)};
      };
      CodeCounts counts{};
      for (std::size_t i = 0; i < count; ++i) {
        const CodeCounts& more = scratch.pixel_counts[(first_row + i) * output.width + x];
        for (std::size_t code = 0; code < quantised_count; ++code) counts[code] += more[code];
      }
      scratch.offsets.clear();
      scratch.begin.assign(1, 0);
      append_lists(count, of_row, counts, scratch.offsets, scratch.begin);
      if (scratch.offsets.empty()) continue;
      std::int32_t total = 0;
      for (std::size_t code = 0; code < quantised_count; ++code) {
        total += quantised_values[code] * static_cast<std::int32_t>(counts[code]);
      }
      rows.offsets = scratch.offsets.data();
      rows.begin = scratch.begin.data();
      const std::size_t first = y * width + x * spec.stride;
      rows.base = weights.sign();
      kernels.accumulate_rows(rows, scratch.sums.data() + first * pixel_bits);
      if (spec.ternary) {
        rows.base = weights.nonzero();
        kernels.accumulate_rows(rows, scratch.zero_sums.data() + first * pixel_bits);
      } else {
        for (std::size_t kx = 0; kx < spec.kernel; ++kx) scratch.totals[first + kx] += total;
      }
    }
  }
  for (std::size_t y = 0; y < input.height; ++y) {
    for (std::size_t x = 0; x < input.width; ++x) {
      const std::size_t pixel = (y + spec.padding) * width + x + spec.padding;
      for (const std::size_t place : layer.ties().pixel_words().place) {
        const std::size_t first = pixel * pixel_bits + place * word_bits;
        const std::int32_t* sums = scratch.sums.data() + first;
        if (spec.ternary) {
          const std::int32_t* zeros = scratch.zero_sums.data() + first;
          for (std::size_t c = 0; c < word_bits; ++c) gradient[c] = unit * static_cast<float>(2 * sums[c] - zeros[c]);
        } else {
          const std::int32_t total = scratch.totals[pixel];
          for (std::size_t c = 0; c < word_bits; ++c) gradient[c] = unit * static_cast<float>(2 * sums[c] - total);
        }
        gradient += word_bits;
      }
    }
  }
}

}  // namespace bitloom::layerwise
