// Tied weights: places of a layer's weights that hold one and the same. A layer with several thresholds compares the count of
// each row of weights with all of them, so a row gives that number of output channels: channel t * width + r is row r under
// threshold t. What they say together is a number from 0 to the number of thresholds, and layers above have one weight for it:
// the planes of a row, one for each threshold, meet the same weight. In memory every channel and every bit of a patch has its
// own place, so that no kernel has to know but the convolution, which may count a row once and the words of two planes together
// (simd::ConvShape), and the gradient of inputs, which has them once; in files tied weights stand once (FORMAT.md).
//
// The idea is that of activations of few bits (Zhou et al., DoReFa-Net, 2016) with thresholds in place of a scale.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layerwise/net.h"

namespace bitloom::layerwise {

class Ties {
 public:
  Ties() = default;
  Ties(const LayerSpec& spec, const LayerGeometry& geometry);

  bool any() const { return tied_rows_ || !tied_.empty(); }
  std::size_t rows() const { return rows_; }                // of weights: channels of the same row are `rows` apart
  std::size_t weights_per_row() const { return weights_; }  // tied ones count once
  // (words of a patch): the bits that some input channel can set; the others are tails of words.
  const std::vector<std::uint64_t>& valid() const { return valid_; }
  // Subset of valid(): the first of the weights that are tied to one another, and all that are tied to none.
  const std::vector<std::uint64_t>& first() const { return first_; }
  // Words of an input pixel that have weights of their own, in every row and at every tap: all but those of further planes that
  // take whole words. place, by word of a pixel: where in `stored` the one with its weights is.
  struct PixelWords {
    std::vector<std::size_t> stored, place;
  };
  const PixelWords& pixel_words() const { return pixel_words_; }

  // values (bits of a patch): where weights of a row are tied, each gets the sum of what they have.
  void sum(std::span<float> values) const;
  // The same with what the first of them has: values, or the bits of a row.
  void spread(std::span<std::int16_t> values) const;
  void spread(std::uint64_t* row) const;

  // Rows of files: tap by tap, source by source, of tied weights the first.
  std::size_t file_words() const { return file_words_; }
  void to_file(const std::uint64_t* row, std::uint64_t* file) const;
  void from_file(const std::uint64_t* file, std::uint64_t* row) const;

 private:
  struct Tied {
    std::uint32_t bit, first;
  };
  // The rows of one source at one tap: `planes` times `channels` bits of a patch from `begin` on.
  struct Group {
    std::size_t begin, channels, planes;
  };
  std::size_t rows_ = 0;
  bool tied_rows_ = false;
  std::size_t patch_words_ = 0, file_words_ = 0, weights_ = 0;
  std::vector<Group> groups_;
  std::vector<Tied> tied_;
  std::vector<std::uint64_t> valid_, first_;
  PixelWords pixel_words_;
};

}  // namespace bitloom::layerwise
