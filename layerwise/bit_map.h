// Packed maps of one image and the down-sampling, concatenation and padding between layers. Words only, no popcounts:
// these run at memory speed everywhere, so they need no instruction-set variants.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/bits.h"

namespace bitloom::layerwise {

// Height, width and channels of a map; `border` pixels of zeros around it when it feeds a convolution.
struct MapShape {
  std::size_t height = 0;
  std::size_t width = 0;
  std::size_t channels = 0;  // a multiple of 64 for everything but the last layer's output
  std::size_t border = 0;

  std::size_t words() const { return words_for(channels); }                     // per pixel
  std::size_t pitch() const { return (width + 2 * border) * words(); }          // words per row, border included
  std::size_t size() const { return (height + 2 * border) * pitch(); }          // words per image
  std::size_t interior() const { return border * pitch() + border * words(); }  // first word of pixel (0, 0)
  bool operator==(const MapShape&) const = default;
};

// How two-by-two pixels become one.
enum class Downsample { none, any, all, majority, space_to_depth };

// Names used in net descriptions: none, or, and, majority, space_to_depth.
Downsample parse_downsample(const std::string& name);
std::string to_string(Downsample kind);

// Channels of a source after down-sampling by `factor` (space-to-depth multiplies them by factor squared).
std::size_t downsampled_channels(std::size_t words, Downsample kind, std::size_t factor);

// Writes `source` (no border), reduced by `factor` in both directions, into words [word, word + n) of every interior pixel
// of `target`. `target` must be 1/factor of the source's size. The border is not touched: zero it once.
//   any: OR; all: AND; majority: more than half of the factor x factor bits, ties to 0; space_to_depth: concatenation;
//   none: OR, where a larger map meets a smaller one.
void place(const std::uint64_t* source, const MapShape& source_shape, Downsample kind, std::size_t factor,
           std::uint64_t* target, const MapShape& target_shape, std::size_t word);

// The backward of `place` for gradients of bits, per pixel and channel (channels padded to words x 64, row-major):
// adds to `source_gradient` (H x W x words * 64) what the target's gradient sends there. For `any` and `all` a bit gets
// the gradient if flipping it alone would flip the result; for majority as well; for space_to_depth, and where factor is 1,
// all pass.
void place_backward(const std::uint64_t* source, const MapShape& source_shape, Downsample kind, std::size_t factor,
                    const float* target_gradient, const MapShape& target_shape, std::size_t word, float* source_gradient);
// The same for OR, as a mask: clears the bits of `mask` (like `source`, no border) that get no gradient, since another bit of
// their cell is set. All others get that of their cell.
void clear_undecided(const std::uint64_t* source, const MapShape& source_shape, std::size_t factor, std::uint64_t* mask);

}  // namespace bitloom::layerwise
