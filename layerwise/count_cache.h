// The counts of a layer's convolution over a minibatch, kept while the minibatch stays (--repeat): then only the channels whose
// weights the last update flipped are convolved again, as the essay "Distributed training" proposes. Thresholds and windows
// move at every step, so all counts are compared anew. The results are those of the whole convolution, bit for bit.
//
// Letters: O channels, padded to 64; H, W output rows and columns; d a count, 0 .. bits of a patch.
#pragma once

#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "layerwise/layer.h"
#include "layerwise/layer_trainer.h"

namespace bitloom::layerwise {

// How a step computes a layer.
enum class CountMode {
  none,  // the fused convolution; no counts are kept
  all,   // counts of all channels, for the steps to come
  part,  // counts of the channels that changed
};

class CountCache {
 public:
  // Memory of one thread.
  struct Scratch {
    Buffer<std::int32_t> counts;
    std::vector<std::int32_t> sum;
    std::vector<std::uint32_t> squares;
  };

  // For `images` images; `layer` must outlive the cache. Takes images x H x W x O x 2 bytes once counts are kept.
  CountCache(const BinaryLayer& layer, std::size_t images);
  // Whether the layer's counts fit what they are kept in.
  static bool can_hold(const BinaryLayer& layer);

  // At the start of a step: finds the channels whose weights changed since the last call and chooses the mode of the step:
  // counts pay if at most a share `limit` of the channels changed. `same`: the inputs are those of the last step; `again`: they
  // are those of the next one too.
  CountMode begin_step(bool same, bool again, double limit);
  CountMode mode() const { return mode_; }
  // That of the last begin_step().
  double changed_share() const;

  // For every image of a step that is not `none`, instead of Kernels::conv, by any number of threads: output bits and window
  // (null: not wanted) of H x W pixels, and the statistics of the channels that were convolved, added to `sums`.
  void forward(const simd::Kernels& kernels, std::size_t image, const std::uint64_t* input,
               const simd::ConvThresholds& thresholds, std::uint64_t* bits, std::uint64_t* window, LayerSums& sums,
               Scratch& scratch);
  // After all images: completes the step's sums of counts and of their squares over all images by those of the channels that
  // were not convolved.
  void complete(LayerSums& sums);

 private:
  void convolve(const simd::Kernels& kernels, const std::uint64_t* input, std::int16_t* counts, LayerSums& sums,
                Scratch& scratch) const;

  const BinaryLayer& layer_;
  std::size_t images_;
  std::size_t pixels_;
  std::vector<std::int16_t> counts_;               // (images, H x W, O)
  std::vector<std::int64_t> sum_, squares_;        // (O), over all images
  std::vector<std::uint64_t> sign_, nonzero_;      // (O, P): the weights of the last step
  std::vector<std::uint32_t> changed_;             // channels
  Buffer<std::uint32_t> packed_, packed_nonzero_;  // their weights; larger than need be
  std::vector<std::uint64_t> chosen_;              // (changed_, P): scratch
  std::vector<bool> convolved_;                    // (O): scratch
  CountMode mode_ = CountMode::none;
  bool known_ = false;  // sign_ and nonzero_ hold something
};

}  // namespace bitloom::layerwise
