// A head's classifier, arranged so that the loss of a changed map is cheap: what exact_signal.h needs of a head.
//
// Pixels whose bits the head counts into the same regions form a zone. A logit is a function of two integers, one through the
// linear part and one through the hidden units; both are sums over zones, and a changed count in one zone changes one term.
//
// Letters: H x W pixels of the map, C channels padded to 64, F features, J hidden units, L classes, Z zones.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "layerwise/head.h"
#include "simd/kernels.h"

namespace bitloom::layerwise {

class ExactHead {
 public:
  // Rows of sums that losses() takes at once.
  static constexpr std::size_t block = 64;

  // `map` is what the head reads: geometry().output of the layer.
  ExactHead(const Head& head, const MapShape& map);
  // After every Head::update.
  void refresh(const Head& head);

  std::size_t classes() const { return classes_; }
  std::size_t features() const { return centre_.size(); }
  std::size_t zones() const { return zone_regions_.size(); }
  const std::vector<std::uint32_t>& zone_of_pixel() const { return zone_of_pixel_; }  // (H*W)
  // Numbers per row of sums: the integers behind the logits of an image, modulo 2^32.
  std::size_t width() const { return width_; }

  struct Image {
    std::vector<std::uint32_t> sums;         // (width)
    std::vector<std::int32_t> hidden_input;  // (Z, J)
    std::vector<std::int16_t> centred;       // (F)
    std::size_t label = 0;
    double loss = 0;  // nats
  };
  // counts: (F), as Head::count gives them.
  void prepare(const simd::Kernels& kernels, const std::int16_t* counts, std::size_t label, Image& image) const;

  // change (last - first + 1, width): what the sums change by when `first` .. `last` more bits of a channel are set in a zone.
  void zone_change(const Image& image, std::size_t channel, std::size_t zone, std::int32_t first, std::int32_t last,
                   std::uint32_t* change) const;

  // losses (n): the cross-entropy in nats for every row of sums (n, width), n <= block; the same bits as cross_entropy() of
  // Head::predict gives.
  void losses(const std::uint32_t* sums, std::size_t n, std::size_t label, double* losses) const;

 private:
  void hidden_outputs(const std::int32_t* hidden_input, const std::int32_t* step, std::int32_t times, std::size_t zone,
                      std::uint32_t* out) const;

  std::size_t classes_ = 0, padded_classes_ = 0, width_ = 0, channels_ = 0, hidden_ = 0;
  std::vector<std::uint32_t> zone_of_pixel_;
  std::vector<std::vector<std::uint32_t>> zone_regions_;  // (Z): the regions that count a pixel of the zone
  std::vector<std::uint32_t> linear_;                     // (C, Z, padded L)
  std::vector<std::int32_t> input_;                       // (C, J)
  std::vector<std::int16_t> output_;                      // (Z, J, padded L)
  Buffer<std::int16_t> linear_pairs_, input_pairs_;       // as gemm_s16 reads them
  std::vector<std::int16_t> centre_;
  std::vector<float> bias_, input_bias_;  // (padded L) (J)
  float linear_step_ = 0, input_step_ = 0, output_step_ = 0;
};

}  // namespace bitloom::layerwise
