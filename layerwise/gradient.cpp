#include "layerwise/gradient.h"

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "core/random.h"

namespace bitloom::layerwise {
namespace {

constexpr std::uint32_t offset_mask = (1U << entry_offset_bits) - 1;
constexpr std::size_t code_count = code_values.size();

// Appends the offsets of one channel's entries, a list per code: two passes over the images, to count and to place.
void append_lists(std::span<const ImageEntries> images, std::size_t channel, std::vector<std::uint32_t>& offsets,
                  std::vector<std::uint32_t>& begin) {
  std::array<std::uint32_t, code_count> position{};
  for (const ImageEntries& image : images) {
    for (std::uint32_t k = image.begin[channel]; k < image.begin[channel + 1]; ++k)
      ++position[image.entries[k] >> entry_offset_bits];
  }
  auto end = static_cast<std::uint32_t>(offsets.size());
  for (std::uint32_t& count : position) {
    const std::uint32_t start = end;
    end += count;
    count = start;
    begin.push_back(end);
  }
  offsets.resize(end);
  for (const ImageEntries& image : images) {
    for (std::uint32_t k = image.begin[channel]; k < image.begin[channel + 1]; ++k) {
      offsets[position[image.entries[k] >> entry_offset_bits]++] = image.entries[k] & offset_mask;
    }
  }
}

}  // namespace

std::int64_t collect_entries(const std::uint64_t* window, std::size_t pixels, std::size_t words, std::size_t channels,
                             const Rounding* rounding, const std::uint32_t* region, const std::uint32_t* patch_offset,
                             std::uint32_t image_offset, std::uint64_t key, ImageEntries& out, std::int64_t* value_sum,
                             std::uint8_t* codes) {
  thread_local std::vector<std::uint32_t> lists;
  lists.resize(word_bits * pixels);
  out.entries.clear();
  out.begin.assign(channels + 1, 0);
  std::int64_t magnitude = 0;
  for (std::size_t w = 0; w < words; ++w) {
    std::array<std::uint32_t, word_bits> length{};
    for (std::size_t p = 0; p < pixels; ++p) {
      std::uint64_t active = window[p * words + w];
      if (active == 0) continue;
      const Rounding* round = rounding + (region[p] * words + w) * word_bits;
      const std::uint32_t offset = patch_offset[p] + image_offset;
      const std::uint64_t random = mix64(key + p * words + w);
      while (active != 0) {
        const auto bit = static_cast<std::size_t>(std::countr_zero(active));
        active &= active - 1;
        const Rounding between = round[bit];
        const auto u = static_cast<std::uint32_t>(((random ^ (bit * 0xd1342543de82ef95ULL)) * 0x9e3779b97f4a7c15ULL) >> 48U);
        const std::uint32_t level = (between & 15U) + (u < between >> 16U ? 1U : 0U);
        const std::uint32_t code = (level - 1) | ((between >> 5U) & 8U);
        lists[bit * pixels + length[bit]] = (code << entry_offset_bits) | offset;
        // What is rounded to 0 is dropped by not counting it: no branch to mispredict.
        length[bit] += level == 0 ? 0U : 1U;
        if (codes != nullptr) codes[(p * words + w) * word_bits + bit] = level == 0 ? no_code : static_cast<std::uint8_t>(code);
      }
    }
    for (std::size_t bit = 0; bit < word_bits && w * word_bits + bit < channels; ++bit) {
      const std::size_t o = w * word_bits + bit;
      const std::uint32_t* list = lists.data() + bit * pixels;
      out.entries.insert(out.entries.end(), list, list + length[bit]);
      out.begin[o + 1] = static_cast<std::uint32_t>(out.entries.size());
      for (std::uint32_t k = 0; k < length[bit]; ++k) {
        const std::int32_t value = code_values[list[k] >> entry_offset_bits];
        value_sum[o] += value;
        magnitude += std::abs(value);
      }
    }
  }
  return magnitude;
}

void accumulate_weight_gradient(const simd::Kernels& kernels, const BinaryLayer& layer, const std::uint64_t* inputs,
                                const std::vector<ImageEntries>& images, std::int32_t* sums) {
  const simd::ConvShape shape = layer.conv_shape();
  constexpr std::ptrdiff_t channels_per_call = 4;
  const std::size_t image_bytes = layer.geometry().input.size() * sizeof(std::uint64_t);
  const std::size_t part = std::max<std::size_t>(1, gradient_part_bytes / image_bytes);
  const auto channels = static_cast<std::ptrdiff_t>(layer.channels());
#pragma omp parallel
  {
    std::vector<std::uint32_t> offsets;
    std::vector<std::uint32_t> begin;
    for (std::size_t first_image = 0; first_image < images.size(); first_image += part) {
      const std::span<const ImageEntries> some(images.data() + first_image, std::min(part, images.size() - first_image));
#pragma omp for schedule(dynamic, 4)
      for (std::ptrdiff_t first = 0; first < channels; first += channels_per_call) {
        const std::ptrdiff_t last = std::min(first + channels_per_call, channels);
        offsets.clear();
        begin.assign(1, 0);
        for (std::ptrdiff_t o = first; o < last; ++o) append_lists(some, static_cast<std::size_t>(o), offsets, begin);
        simd::RowLists rows;
        rows.base = inputs;
        rows.offsets = offsets.data();
        rows.begin = begin.data();
        rows.lists = static_cast<std::size_t>(last - first);
        rows.scales = code_count;
        rows.scale = code_values.data();
        rows.runs = shape.patch_rows;
        rows.run_words = shape.run_words;
        rows.pitch = shape.pitch;
        kernels.accumulate_rows(rows, sums + static_cast<std::size_t>(first) * layer.patch_bits());
      }
    }
  }
}

// For an input bit a (value 1 - 2a) and a weight w in {+1, -1, 0}, d counts a where w = +1 and 1 - a where w = -1, so
// dd/da = w, and dL/da = sum over entries of (-value) * w. With n(k) the value-weighted count of set sign bits (w = -1) and
// z(k) that of nonzero bits (all of them for binary weights), sum of value * w = z - 2n.
void input_gradient(const simd::Kernels& kernels, const BinaryLayer& layer, const std::uint64_t* window,
                    const std::uint8_t* codes, float unit, BackwardScratch& scratch, float* gradient) {
  const LayerGeometry& geometry = layer.geometry();
  const LayerSpec& spec = layer.spec();
  const MapShape& output = geometry.output;
  const MapShape& input = geometry.input;
  const std::size_t words = output.words();
  const std::size_t bits = layer.patch_bits();
  const std::size_t in_channels = input.words() * word_bits;
  std::memset(gradient, 0, input.height * input.width * in_channels * sizeof *gradient);
  scratch.sums.resize(output.width * bits);
  scratch.totals.resize(output.width);
  if (spec.ternary) scratch.zero_sums.resize(output.width * bits);

  for (std::size_t y = 0; y < output.height; ++y) {
    scratch.offsets.clear();
    scratch.begin.assign(1, 0);
    for (std::size_t x = 0; x < output.width; ++x) {
      const std::size_t p = y * output.width + x;
      std::array<std::vector<std::uint32_t>, code_count>& lists = []() -> auto& {
        thread_local std::array<std::vector<std::uint32_t>, code_count> by_code;
        return by_code;
      }
      ();
      for (auto& list : lists) list.clear();
      std::int32_t total = 0;
      for (std::size_t w = 0; w < words; ++w) {
        std::uint64_t active = window[p * words + w];
        const std::uint8_t* code = codes + (p * words + w) * word_bits;
        while (active != 0) {
          const auto bit = static_cast<std::size_t>(std::countr_zero(active));
          active &= active - 1;
          if (code[bit] == no_code) continue;
          lists[code[bit]].push_back(static_cast<std::uint32_t>((w * word_bits + bit) * layer.patch_words()));
          total += code_values[code[bit]];
        }
      }
      scratch.totals[x] = total;
      for (const auto& list : lists) {
        scratch.offsets.insert(scratch.offsets.end(), list.begin(), list.end());
        scratch.begin.push_back(static_cast<std::uint32_t>(scratch.offsets.size()));
      }
    }
    simd::RowLists rows;
    rows.base = layer.rows().data();
    rows.offsets = scratch.offsets.data();
    rows.begin = scratch.begin.data();
    rows.lists = output.width;
    rows.scales = code_count;
    rows.scale = code_values.data();
    rows.runs = 1;
    rows.run_words = layer.patch_words();
    rows.pitch = layer.patch_words();
    std::fill(scratch.sums.begin(), scratch.sums.end(), 0);
    kernels.accumulate_rows(rows, scratch.sums.data());
    if (spec.ternary) {
      rows.base = layer.nonzero_rows().data();
      std::fill(scratch.zero_sums.begin(), scratch.zero_sums.end(), 0);
      kernels.accumulate_rows(rows, scratch.zero_sums.data());
    }
    for (std::size_t x = 0; x < output.width; ++x) {
      const std::int32_t* sums = scratch.sums.data() + x * bits;
      const std::int32_t* zeros = spec.ternary ? scratch.zero_sums.data() + x * bits : nullptr;
      for (std::size_t ky = 0; ky < spec.kernel; ++ky) {
        const auto row = static_cast<std::ptrdiff_t>(y * spec.stride + ky) - static_cast<std::ptrdiff_t>(spec.padding);
        for (std::size_t kx = 0; kx < spec.kernel; ++kx) {
          const auto column = static_cast<std::ptrdiff_t>(x * spec.stride + kx) - static_cast<std::ptrdiff_t>(spec.padding);
          const std::size_t tap = (ky * spec.kernel + kx) * in_channels;
          if (row < 0 || column < 0 || row >= static_cast<std::ptrdiff_t>(input.height) ||
              column >= static_cast<std::ptrdiff_t>(input.width)) {
            continue;
          }
          float* out =
              gradient + (static_cast<std::size_t>(row) * input.width + static_cast<std::size_t>(column)) * in_channels;
          const std::int32_t total = scratch.totals[x];
          if (zeros != nullptr) {
            for (std::size_t c = 0; c < in_channels; ++c)
              out[c] += unit * static_cast<float>(2 * sums[tap + c] - zeros[tap + c]);
          } else {
            for (std::size_t c = 0; c < in_channels; ++c) out[c] += unit * static_cast<float>(2 * sums[tap + c] - total);
          }
        }
      }
    }
  }
}

}  // namespace bitloom::layerwise
