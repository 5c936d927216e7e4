// From loss gradients of output bits to sparse, signed, power-of-two gradient components, and from these to weight gradients
// and to gradients of input bits: the training half of a layer's arithmetic, in bits.
//
// An output bit y = [d <= T] can only be moved where d is near T: in the surrogate-gradient window. There the loss changes by
// -q per unit of d, q = dL/dy * slope (slope = 1 / the window's width). Every q in the window is rounded at random,
// without bias and for every pixel anew, to 0 or to a power of two from 1 to 128 units: what is left is a list of pixels per
// channel and value, whose patches are counted bit by bit with carry-save adders (simd::Kernels::accumulate_rows). Nothing is
// multiplied, and small gradients mostly vanish.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "layerwise/layer.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// Quantised gradients: values of the codes 0..15. `quantised_zero` is a gradient that was rounded to 0.
inline constexpr std::array<std::int32_t, 16> quantised_values = {1,  2,  4,  8,  16,  32,  64,  128,
                                                                  -1, -2, -4, -8, -16, -32, -64, -128};
inline constexpr std::uint8_t quantised_zero = 0xFF;
inline constexpr std::size_t largest_quantised = 128;  // magnitude

// The values a gradient may be rounded to: one of two neighbours of 0, 1, 2, 4 .. 128, and how likely each is.
//   bits 0..3   l: between level l and level l + 1, where level 0 is 0 and level j is 2^(j - 1)
//   bit 8       the sign
//   bits 16..31 the probability of level l + 1, in 1/65536
// Made by simd::Kernels::prepare_rounding.
using Rounding = std::uint32_t;

// The surviving components of one image for one layer, grouped by channel.
struct ImageComponents {
  // code << component_offset_bits | word offset of the pixel's patch in the batch of input maps
  std::vector<std::uint32_t> components;
  std::vector<std::uint32_t> begin;  // O + 1
};
inline constexpr unsigned component_offset_bits = 28;
// How many components have each code.
using CodeCounts = std::array<std::uint32_t, quantised_values.size()>;

// Rounds the pixels in the window of one channel after the other of one image.
//   window: (pixels, words) words; rounding: (regions, words * 64); region[p] < regions: whose gradient holds at pixel p
//   patch_offset[p]: word offset of the patch of pixel p within the image's input map; image_offset: of the image
//   key: of this image's random numbers; that of a pixel and channel depends on (key, pixel, channel) alone
//   codes: null, or (pixels, words * 64) that get the code where the window has a bit; the others stay as they are
// Adds each channel's sum of values to value_sum (O) and returns the sum of magnitudes.
std::int64_t collect_components(const std::uint64_t* window, std::size_t pixels, std::size_t words, std::size_t channels,
                                const Rounding* rounding, const std::uint32_t* region, const std::uint32_t* patch_offset,
                                std::uint32_t image_offset, std::uint64_t key, ImageComponents& out, std::int64_t* value_sum,
                                std::uint8_t* codes);

// Every channel reads patches all over the batch, so the batch is taken in parts whose maps stay in the second-level cache;
// but every part passes once more over the sums, so that parts are larger where these are many.
std::size_t images_per_part(const BinaryLayer& layer, std::size_t images);

// sums (O, patch_bits) = value of each component x its patch's bits, over all images. Parallel over channels.
void accumulate_weight_gradient(const simd::Kernels& kernels, const BinaryLayer& layer, const std::uint64_t* inputs,
                                std::span<const ImageComponents> images, std::int32_t* sums);

// The rows of weights of a layer that gradients of its input are made of. Tied weights (ties.h) are there once: a row serves
// all its thresholds, a word all planes that meet it, whose gradients are one and the same.
class BackwardWeights {
 public:
  explicit BackwardWeights(const BinaryLayer& layer);  // `layer` outlives it
  // To be called when the layer's weights have changed.
  void refresh();

  const BinaryLayer& layer() const { return layer_; }
  std::size_t rows() const { return layer_.ties().rows(); }
  std::size_t pixel_words() const { return layer_.ties().pixel_words().stored.size(); }
  std::size_t row_words() const { return layer_.spec().kernel * layer_.spec().kernel * pixel_words(); }
  const std::uint64_t* sign() const { return copied_ ? sign_.data() : layer_.rows().data(); }
  const std::uint64_t* nonzero() const { return copied_ ? nonzero_.data() : layer_.nonzero_rows().data(); }
  // Where the row of an output channel begins.
  std::uint32_t row_offset(std::size_t channel) const { return row_offset_[channel]; }

 private:
  const BinaryLayer& layer_;
  bool copied_;
  std::vector<std::uint32_t> row_offset_;
  std::vector<std::uint64_t> sign_, nonzero_;
};

// Gradient of the layer's input bits for one image, in units: gradient (H x W of geometry().input without border, input words
// * 64) = -sum over components of value x weight (derived in gradient.cpp); codes: (pixels, words * 64), read where window has
// a bit. Scratch is reused by one thread.
struct BackwardScratch {
  // By pixel: code << component_offset_bits | word offset of the channel's row of weights.
  std::vector<std::uint32_t> components, pixel_begin;
  std::vector<CodeCounts> pixel_counts;               // of them, by code
  std::vector<std::uint32_t> offsets, begin;          // of the lists that are counted at once
  std::vector<std::int32_t> sums, zero_sums, totals;  // over the padded input map
};
void input_gradient(const simd::Kernels& kernels, const BackwardWeights& weights, const std::uint64_t* window,
                    const std::uint8_t* codes, float unit, BackwardScratch& scratch, float* gradient);

}  // namespace bitloom::layerwise
