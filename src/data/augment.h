// Random changes to training images, integer arithmetic only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/random.h"
#include "data/dataset.h"

namespace bitloom::data {

// Changes that may be made to an image, in this order: crop, flip, contrast, brightness, colour, cutout. 0 or false disables.
// flip and alternating exclude each other.
struct Augment {
  int crop_padding = 0;      // shift by -n .. n pixels along each axis; the border is reflected
  bool flip = false;         // mirror left-right, with probability 1/2
  bool alternating = false;  // mirror left-right where the caller says so: is_mirrored()
  int contrast = 0;          // distance from the image's mean scaled by a factor in 1 - n% .. 1 + n%
  int brightness = 0;        // all channels moved by -n .. n
  int colour = 0;            // each channel moved by its own -n .. n
  int cutout = 0;            // a square of side n, at a random centre within the image, set to the image's mean colour

  bool operator==(const Augment&) const = default;
  // True if every image comes out as it went in.
  bool none() const noexcept { return *this == Augment{}; }
};

// Reads "none" or a comma-separated list of crop[N] (4), flip, alternating, contrastN, brightnessN, colourN, cutout[N] (8),
// e.g. "crop4,flip,cutout8". Throws a usage error with a suggestion for an unknown name, a repetition or a number out of range.
Augment parse_augment(const std::string& text);
// The text that parse_augment reads as the same value.
std::string to_string(const Augment& augment);

// Throws a usage error if images of this shape cannot be changed so: crop_padding must be below height and width.
void check_augment(const Augment& options, const ImageShape& shape);

// Alternating flips (Jordan 2024, section 3.6): whether an image is mirrored in an epoch. In every second one it is; where it
// begins is drawn for each image.
bool is_mirrored(std::uint64_t seed, std::size_t index, std::uint64_t epoch);

// How far an image is moved, in pixels: out(y, x) = image(y + down, x + across).
struct Shift {
  int down = 0, across = 0;
};
// By how much augment() moves an image that it gets the same `random` for; before it is mirrored.
Shift drawn_shift(const Augment& options, Random random);

// Writes one changed copy of `image` (channels x height x width) to `out` (as many bytes, not overlapping). The result is a
// function of the arguments alone: key `random` by (seed, Stream::augment, epoch, index) for a fresh one per epoch. `mirrored`
// counts with Augment::alternating. Throws what check_augment() does.
void augment(std::span<const std::uint8_t> image, const ImageShape& shape, const Augment& options, Random random,
             std::uint8_t* out, bool mirrored = false);

// out(y, x) = image(y + down, x + across), what comes in from beyond the border being the reflection there; then, with `flip`,
// mirrored. Throws a usage error unless both are smaller than the image.
void shift(std::span<const std::uint8_t> image, const ImageShape& shape, int down, int across, bool flip, std::uint8_t* out);

}  // namespace bitloom::data
