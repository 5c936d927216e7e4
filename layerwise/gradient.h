// From loss gradients of output bits to sparse, signed, power-of-two gradient entries, and from these to weight gradients and
// to gradients of input bits: the training half of a layer's arithmetic, in bits.
//
// An output bit y = [d <= T] can only be moved where d is near T: in the window. There the loss changes by -q per unit of d,
// q = dL/dy * slope (slope = 1 / (2 omega sigma), the height of the window's box). Every q in the window is rounded at random,
// without bias, to 0, +-1, +-2, +-4 or +-8 units: what is left is a list of pixels per channel and value, whose patches are
// counted bit by bit with carry-save adders (simd::Kernels::accumulate_rows). Most entries vanish, none is multiplied.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "layerwise/layer.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// The values of the codes 0..7; `no_code` is a gradient that was rounded to 0.
inline constexpr std::array<std::int32_t, 8> code_values = {1, 2, 4, 8, -1, -2, -4, -8};
inline constexpr std::uint8_t no_code = 0xFF;

// codes[i] = unbiased random rounding of gradient[i] * slope[i % period] / unit, i < n; n a multiple of period. The random
// number of element i depends on (key, i) alone.
void make_codes(const float* gradient, const float* slope, std::size_t n, std::size_t period, float inverse_unit,
                std::uint64_t key, std::uint8_t* codes);

// The same for gradients per pixel, of which only those in the window matter: writes codes (pixels, words * 64) where
// window (pixels, words) has a bit, and leaves the rest as it is. slope: (words * 64).
void make_window_codes(const float* gradient, const float* slope, const std::uint64_t* window, std::size_t pixels,
                       std::size_t words, float inverse_unit, std::uint64_t key, std::uint8_t* codes);

// The surviving entries of one image for one layer, grouped by channel.
struct ImageEntries {
  // code << 29 | word offset of the pixel's patch in the batch of input maps
  std::vector<std::uint32_t> entries;
  std::vector<std::uint32_t> begin;  // O + 1
};

// Pixels of one channel and image that are in the window and have a code.
//   window: (pixels, words) words; codes: (regions, words * 64); region[p] < regions: whose codes hold at pixel p
//   patch_offset[p]: word offset of the patch of pixel p within the image's input map; image_offset: of the image
// Adds each channel's sum of values to value_sum (O) and returns the sum of magnitudes.
std::int64_t collect_entries(const std::uint64_t* window, std::size_t pixels, std::size_t words, std::size_t channels,
                             const std::uint8_t* codes, const std::uint32_t* region, const std::uint32_t* patch_offset,
                             std::uint32_t image_offset, ImageEntries& out, std::int64_t* value_sum);

// sums (O, patch_bits) += value of each entry x its patch's bits, for all images. Parallel over channels.
void accumulate_weight_gradient(const simd::Kernels& kernels, const BinaryLayer& layer, const std::uint64_t* inputs,
                                const std::vector<ImageEntries>& images, std::int32_t* sums);

// Gradient of the layer's input bits for one image, in units: gradient (H x W of geometry().input without border, input words
// * 64) = -sum over entries of value x weight (derived in gradient.cpp). Scratch is reused by one thread.
struct BackwardScratch {
  std::vector<std::uint32_t> offsets, begin;
  std::vector<std::int32_t> sums, zero_sums, totals;
};
void input_gradient(const simd::Kernels& kernels, const BinaryLayer& layer, const std::uint64_t* window,
                    const std::uint8_t* codes, const std::uint32_t* region, float unit, BackwardScratch& scratch,
                    float* gradient);

}  // namespace bitloom::layerwise
