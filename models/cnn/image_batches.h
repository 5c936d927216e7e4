// Images as the float engine takes them: batches in an order that a seed gives, augmented, normalised, made ready by another
// thread while the step before them is computed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/dataset.h"
#include "data/look_ahead.h"

namespace bitloom::models {

// Pixels to numbers: (pixel - mean) / deviation of its channel.
struct PixelScale {
  std::vector<float> mean, deviation;  // (channels)
};
// Mean and deviation of all pixels of a set; a channel that is the same everywhere has deviation 1. Throws Error(io) where an
// image cannot be read.
PixelScale fit_pixel_scale(const data::Dataset& images);

// out (height, width, channels) of an image (channels, height, width), mirrored left-right if wanted.
void to_numbers(std::span<const std::uint8_t> image, const data::ImageShape& shape, const PixelScale& scale, bool mirror,
                std::span<float> out);

enum class Flip : std::uint8_t { none, random, alternating };
std::vector<std::string> flip_names();
// Throws Error(usage) that names the field `flip`.
Flip parse_flip(const std::string& name);

struct ImageBatch {
  std::vector<float> images;  // (N, height, width, channels)
  std::vector<std::int32_t> labels;
  std::vector<float> target_changes;  // (N, classes), with a teacher: train::Classification::Batch
};

class ImageBatches {
 public:
  struct Options {
    std::size_t batch = 128;  // of a step; a set with fewer images is an error
    std::size_t micro_batch = 128;
    data::Augment augment;
    // alternating: in every second epoch, an image's first by chance (Jordan 2024, section 3.6).
    Flip flip = Flip::none;
    std::uint64_t seed = 1;
    // Share of the set's soft labels in the targets (data/soft_labels.h); the rest is labels, smoothed.
    double teacher_share = 0, label_smoothing = 0;
    int ranks = 1;  // after micro-batch m this process wants m + ranks, as far as a step has them
  };
  // The set outlives this. Throws Error(usage) that names the field for a batch that is larger than the set, a micro-batch that
  // does not divide it, or an augmentation that is not for such images.
  ImageBatches(const data::Dataset& images, PixelScale scale, const Options& options);

  // Micro-batch `micro_batch` of step `step`. An epoch has as many whole batches as there are; its order is a shuffle of its
  // own. What is wanted next is made meanwhile. Throws Error(usage) for a micro-batch that a step does not have, and Error(io)
  // where an image cannot be read.
  ImageBatch get(std::uint64_t step, std::uint64_t micro_batch) { return ahead_->get({step, micro_batch}); }

  std::uint64_t steps_per_epoch() const { return images_.size() / options_.batch; }

 private:
  ImageBatch make(const data::BatchPlace& place);
  void add_target_changes(std::size_t image, const data::Shift& shift, std::vector<float>& changes) const;

  const data::Dataset& images_;
  PixelScale scale_;
  Options options_;
  std::vector<std::uint32_t> order_;  // of order_epoch_
  std::uint64_t order_epoch_ = 0;
  // Once the options are checked. Last, since its thread reads the others.
  std::optional<data::LookAhead<ImageBatch>> ahead_;
};

}  // namespace bitloom::models
