// From pixels to the first map of bits. An encoder is a bank of integer linear filters over a patch with two thresholds each:
// exact integer sums and, where contrast counts, one correctly rounded factor per patch, the same on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/safetensors.h"
#include "data/dataset.h"
#include "layerwise/bit_map.h"
#include "layerwise/net.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

// Scratch memory of encode(); reused between calls of one thread.
struct EncodeScratch {
  std::vector<std::int16_t> pixels;                       // the padded image
  std::vector<std::int16_t> patches;                      // those of one image row, a row of taps each
  std::vector<std::int32_t> values;                       // their responses
  std::vector<std::int32_t> sums, squares;                // per padded pixel, over colours
  std::vector<std::int32_t> column_sums, column_squares;  // over the rows of a patch
};

class Encoder {
 public:
  Encoder() = default;

  // Chooses filters and thresholds from the training images.
  //   whitened: ZCA whitening of patch x patch x colours pixels (regulariser epsilon on pixels / 64), then spherical k-means
  //   in the whitened space (Coates, Ng, Lee 2011); bits are "at or above the 75% quantile" and "at or below the 25%
  //   quantile" of each filter's response. With a contrast c > 0 and more than one tap, patches lose their mean and are divided
  //   by their contrast before they are whitened, and responses are multiplied, rounding towards 0, by the 32-bit float
  //   c / sqrt(q / n - (s / n)^2 + c^2), s and q being the sums of the patch's n taps and of their squares.
  //   thermometer: `levels` evenly spaced thresholds per colour.
  // Deterministic in (dataset, spec, seed). Throws a usage error for a spec that does not fit the images.
  static Encoder fit(const EncoderSpec& spec, const data::Dataset& train, std::uint64_t seed);

  // The encoder with its integers, under "encoder." names; load throws data errors.
  void save(TensorFile& file) const;
  static Encoder load(const TensorFile& file);

  MapShape output() const { return {shape_.height, shape_.width, 2 * features_, 0}; }
  const data::ImageShape& image_shape() const { return shape_; }
  std::size_t patch() const { return patch_; }
  std::size_t features() const { return features_; }
  std::size_t taps() const { return patch_ * patch_ * shape_.channels; }
  // (features, taps): taps in the order row, column, colour.
  const std::vector<std::int16_t>& filters() const { return filters_; }
  // (features, 2): a feature's bits are "at or above the first" and "at or below the second".
  const std::vector<std::int32_t>& thresholds() const { return thresholds_; }
  // Grey levels; 0: contrast does not count.
  float contrast() const { return contrast_; }
  // Multiply-adds per image, and bytes of filters and thresholds.
  std::size_t macs() const {
    return shape_.height * shape_.width * (features_ * taps() + (contrast_ > 0 ? taps() + features_ : 0));
  }
  std::size_t bytes() const { return filters_.size() * sizeof(std::int16_t) + thresholds_.size() * sizeof(std::int32_t); }

  // image: channels x height x width bytes; bits: output().size() words. Pixels outside the image repeat its edge.
  void encode(const simd::Kernels& kernels, const std::uint8_t* image, std::uint64_t* bits, EncodeScratch& scratch) const;
  // The same bits of an image that was moved: its pixel (y, x) is (y + down, x + across) of one whose bits are `unmoved`,
  // wherever that has such a pixel. Where the patches of both lie within them, the bits are copied.
  void encode_moved(const simd::Kernels& kernels, const std::uint8_t* image, const std::uint64_t* unmoved, int down, int across,
                    std::uint64_t* bits, EncodeScratch& scratch) const;

 private:
  struct Range {
    std::size_t begin, end;
    std::size_t size() const { return end - begin; }
  };
  // Taps, rounded up to pairs.
  std::size_t depth() const { return (taps() + 1) / 2 * 2; }
  // Size of the image with its edge repeated.
  std::size_t padded_height() const { return shape_.height + patch_ - 1; }
  std::size_t padded_width() const { return shape_.width + patch_ - 1; }
  void pack();
  void pad(const std::uint8_t* image, EncodeScratch& scratch) const;
  void sum_colours(EncodeScratch& scratch) const;
  void read_image(const std::uint8_t* image, EncodeScratch& scratch) const;
  void normalise(std::size_t y, Range columns, EncodeScratch& scratch) const;
  void encode_row(const simd::Kernels& kernels, std::size_t y, Range columns, std::uint64_t* bits,
                  EncodeScratch& scratch) const;
  // Rows (or columns) of a moved image of `size` of them whose patches lie within it and within the one it was moved from.
  Range inner(std::size_t size, int move) const;

  data::ImageShape shape_;
  std::size_t patch_ = 0;
  std::size_t features_ = 0;              // a multiple of 32; unused ones have thresholds that nothing reaches
  std::vector<std::int16_t> filters_;     // (features, taps)
  std::vector<std::int32_t> thresholds_;  // (features, 2)
  float contrast_ = 0;                    // grey levels; 0: contrast does not count
  Buffer<std::int16_t> pairs_;            // the filters as gemm_s16 reads them
};

}  // namespace bitloom::layerwise
