// Images as the float engine takes them: batches in an order that a seed gives, augmented, normalised, made ready by another
// thread while the step before them is computed.
#pragma once

#include <cstdint>
#include <future>
#include <span>
#include <string>
#include <vector>

#include "data/augment.h"
#include "data/dataset.h"

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
    int ranks = 1;  // after micro-batch m this process wants m + ranks, as far as a step has them
  };
  // The set outlives this. Throws Error(usage) for a batch that is larger than the set.
  ImageBatches(const data::Dataset& images, PixelScale scale, const Options& options);
  ~ImageBatches();

  // Micro-batch `micro_batch` of step `step`. An epoch has as many whole batches as there are; its order is a shuffle of its
  // own. What is wanted next is made meanwhile.
  ImageBatch get(std::uint64_t step, std::uint64_t micro_batch);

  std::uint64_t steps_per_epoch() const { return images_.size() / options_.batch; }

 private:
  struct Place {
    std::uint64_t step = 0, micro_batch = 0;
    bool operator==(const Place&) const = default;
  };
  ImageBatch make(const Place& place);
  Place next(const Place& place) const;

  const data::Dataset& images_;
  PixelScale scale_;
  Options options_;
  std::vector<std::uint32_t> order_;  // of order_epoch_
  std::uint64_t order_epoch_ = 0;
  Place ahead_place_;
  std::future<ImageBatch> ahead_;
};

}  // namespace bitloom::models
