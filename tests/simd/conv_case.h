// One convolution with everything it reads and writes, made from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/bits.h"
#include "core/random.h"
#include "tests/simd/tables_under_test.h"

namespace bitloom::test {

struct ConvParameters {
  std::size_t height, width;  // input, without its border
  std::size_t in_channels, out_channels;
  std::size_t kernel, stride, padding;
  bool ternary;
  std::size_t planes = 1;  // ConvShape::planes
  std::size_t pairs = 0;   // of words of a pixel, whole ones: word w and word w + pairs meet the same weights
};

struct ConvCase {
  simd::ConvShape shape;
  std::vector<std::uint16_t> twin;
  Guarded<std::uint64_t> input;  // (height + 2 padding, width + 2 padding, words)
  std::vector<std::uint64_t> sign_rows, nonzero_rows;
  std::vector<std::uint32_t> sign, nonzero;
  std::vector<std::int32_t> threshold, low, high;  // padded to 16
  simd::ConvWeights weights;
  simd::ConvThresholds thresholds;

  ConvCase(const ConvCase&) = delete;
  ConvCase& operator=(const ConvCase&) = delete;

  ConvCase(const ConvParameters& p, std::uint64_t seed)
      : input((p.height + 2 * p.padding) * (p.width + 2 * p.padding) * words_for(p.in_channels)) {
    const std::size_t words = words_for(p.in_channels);
    shape.out_height = (p.height + 2 * p.padding - p.kernel) / p.stride + 1;
    shape.out_width = (p.width + 2 * p.padding - p.kernel) / p.stride + 1;
    shape.out_channels = p.out_channels;
    shape.patch_rows = p.kernel;
    shape.run_words = p.kernel * words;
    shape.pitch = (p.width + 2 * p.padding) * words;
    shape.row_step = p.stride * shape.pitch;
    shape.column_step = p.stride * words;
    shape.planes = p.planes;
    for (std::size_t w = 0; w < words && p.pairs > 0; ++w) {
      twin.push_back(static_cast<std::uint16_t>(w < p.pairs ? w + p.pairs : w < 2 * p.pairs ? w - p.pairs : w));
    }
    shape.twin = twin.empty() ? nullptr : twin.data();
    shape.pixel_words = twin.size();

    Random random(seed, Stream::test);
    for (std::size_t i = 0; i < input.size(); ++i) input[i] = 0;
    for (std::size_t i = 0; i < p.height; ++i) {
      for (std::size_t j = 0; j < p.width; ++j) {
        std::uint64_t* pixel = &input[(i + p.padding) * shape.pitch + (j + p.padding) * words];
        for (std::size_t w = 0; w < words; ++w) pixel[w] = random.next();
        pixel[words - 1] &= tail_mask(p.in_channels);
      }
    }
    const std::size_t patch_words = shape.patch_words();
    sign_rows.resize(p.out_channels * patch_words);
    nonzero_rows.resize(p.ternary ? sign_rows.size() : 0);
    for (std::size_t i = 0; i < sign_rows.size(); ++i) {
      const std::uint64_t valid = i % words == words - 1 ? tail_mask(p.in_channels) : ~std::uint64_t{0};
      sign_rows[i] = random.next() & valid;
      if (p.ternary) {
        nonzero_rows[i] = random.next() & valid;
        sign_rows[i] &= nonzero_rows[i];
      }
    }
    for (std::size_t i = 0; i < sign_rows.size() && p.pairs > 0; ++i) {
      if (twin[i % words] >= i % words) continue;
      const std::size_t first = i - i % words + twin[i % words];
      sign_rows[i] = sign_rows[first];
      if (p.ternary) nonzero_rows[i] = nonzero_rows[first];
    }
    const std::size_t plane = sign_rows.size() / p.planes;
    for (std::size_t i = plane; i < sign_rows.size(); ++i) {
      sign_rows[i] = sign_rows[i - plane];
      if (p.ternary) nonzero_rows[i] = nonzero_rows[i - plane];
    }
    sign.resize(simd::packed_conv_weights_size(p.out_channels, patch_words));
    simd::pack_conv_weights(sign_rows.data(), p.out_channels, patch_words, sign.data());
    if (p.ternary) {
      nonzero.resize(sign.size());
      simd::pack_conv_weights(nonzero_rows.data(), p.out_channels, patch_words, nonzero.data());
    }
    weights = {sign.data(), p.ternary ? nonzero.data() : nullptr};

    const std::size_t padded = padded_channels();
    threshold.assign(padded, -1);
    low.assign(padded, 1);
    high.assign(padded, 0);
    const std::int32_t bits = static_cast<std::int32_t>(p.kernel * p.kernel * p.in_channels);
    const std::int32_t middle = p.ternary ? bits / 4 : bits / 2;
    for (std::size_t o = 0; o < p.out_channels; ++o) {
      threshold[o] = middle + static_cast<std::int32_t>(random.below(9)) - 4;
      low[o] = threshold[o] - static_cast<std::int32_t>(random.below(6));
      high[o] = threshold[o] + static_cast<std::int32_t>(random.below(6));
    }
    // The extremes that a trained layer can have: never, always.
    threshold[0] = -1;
    if (p.out_channels > 2) threshold[2] = static_cast<std::int32_t>(64 * patch_words);
    thresholds = {threshold.data(), low.data(), high.data()};
  }

  std::size_t padded_channels() const { return (shape.out_channels + 15) / 16 * 16; }
  std::size_t out_words() const { return words_for(shape.out_channels); }
};

// Output of a convolution: bits inside a map with a border of one pixel, window, statistics.
struct ConvResult {
  Guarded<std::uint64_t> bits, window;
  Guarded<std::int64_t> sum, sum_of_squares;
  std::size_t pitch;

  ConvResult(const ConvCase& c, const simd::Kernels& table, bool with_window, bool with_statistics)
      : bits((c.shape.out_height + 2) * (c.shape.out_width + 2) * c.out_words()),
        window(with_window ? c.shape.out_height * c.shape.out_width * c.out_words() : 0),
        sum(with_statistics ? c.padded_channels() : 0),
        sum_of_squares(with_statistics ? c.padded_channels() : 0),
        pitch((c.shape.out_width + 2) * c.out_words()) {
    for (std::size_t o = 0; o < sum.size(); ++o) {
      sum[o] = 1000 + static_cast<std::int64_t>(o);  // the kernel adds to what is there
      sum_of_squares[o] = -7;
    }
    simd::ConvOutput output;
    output.bits = bits.data() + pitch + c.out_words();
    output.bits_pitch = pitch;
    if (with_window) output.window = window.data();
    if (with_statistics) {
      output.sum = sum.data();
      output.sum_of_squares = sum_of_squares.data();
    }
    table.conv(c.shape, c.input.data(), c.weights, c.thresholds, output);
    // Statistics of the lanes beyond O are nobody's.
    for (std::size_t o = c.shape.out_channels; o < sum.size(); ++o) sum[o] = sum_of_squares[o] = 0;
  }

  bool guards_intact() const {
    return bits.guards_intact() && window.guards_intact() && sum.guards_intact() && sum_of_squares.guards_intact();
  }
};

inline bool same(const ConvResult& a, const ConvResult& b) {
  return same(a.bits, b.bits) && same(a.window, b.window) && same(a.sum, b.sum) && same(a.sum_of_squares, b.sum_of_squares);
}

}  // namespace bitloom::test
