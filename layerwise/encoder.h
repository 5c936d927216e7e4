// From pixels to the first map of bits. An encoder is a bank of integer linear filters over a patch with two thresholds each,
// so the encoding is exact integer arithmetic on every machine.
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

class Encoder {
 public:
  Encoder() = default;

  // Chooses filters and thresholds from the training images.
  //   whitened: ZCA whitening of patch x patch x colours pixels (regulariser epsilon on pixels / 64), then spherical k-means
  //   in the whitened space (Coates, Ng, Lee 2011); bits are "at or above the 75% quantile" and "at or below the 25%
  //   quantile" of each filter's response.
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
  // Integer multiply-adds per image, and bytes of filters and thresholds.
  std::size_t macs() const { return shape_.height * shape_.width * features_ * taps(); }
  std::size_t bytes() const { return filters_.size() * sizeof(std::int16_t) + thresholds_.size() * sizeof(std::int32_t); }

  // image: channels x height x width bytes; bits: output().size() words. Pixels outside the image repeat its edge.
  // `scratch` is reused between calls of one thread.
  void encode(const simd::Kernels& kernels, const std::uint8_t* image, std::uint64_t* bits, std::vector<std::int16_t>& patches,
              std::vector<std::int32_t>& values) const;

 private:
  void pack();

  data::ImageShape shape_;
  std::size_t patch_ = 0;
  std::size_t features_ = 0;              // a multiple of 32; unused ones have thresholds that nothing reaches
  std::vector<std::int16_t> filters_;     // (features, taps)
  std::vector<std::int32_t> thresholds_;  // (features, 2)
  Buffer<std::int16_t> pairs_;            // the filters as gemm_s16 reads them
};

}  // namespace bitloom::layerwise
