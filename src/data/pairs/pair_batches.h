// Batches of pairs in an order that a seed gives, decoded by another thread while the step before them is computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "data/look_ahead.h"
#include "data/pairs/pairs.h"
#include "data/pairs/square_crop.h"

namespace bitloom::data {

struct PairBatch {
  std::vector<std::uint8_t> images;  // (N, side, side, 3)
  std::vector<std::size_t> indexes;  // N: which of the pairs each is
};

// An image of 3 channels cut square in the centre: (side, side, 3). Throws Error(usage) for a side out of range.
std::vector<std::uint8_t> centre_square(const Image& image, std::size_t side);
// The way back: the image of a square (side, side, 3).
Image to_image(std::span<const std::uint8_t> square, std::size_t side);

// These pairs, cut in the centre, in their order; for evaluation. Throws what read_image() throws.
PairBatch centre_batch(const Pairs& pairs, std::span<const std::size_t> indexes, std::size_t side);

// 0 to count - 1.
std::vector<std::size_t> first_indexes(std::size_t count);

// visit(batch, done) for these pairs, cut in the centre, at most `at_once` of them each time; done: how many of them, with
// those of the batch. Throws what read_image() and visit() throw.
void for_centre_batches(const Pairs& pairs, std::span<const std::size_t> indexes, std::size_t side, std::size_t at_once,
                        const std::function<void(const PairBatch& batch, std::size_t done)>& visit);

class PairBatches {
 public:
  struct Options {
    std::size_t batch = 32;        // pairs of a step; a set with fewer is an error
    std::size_t micro_batch = 32;  // a divisor of it
    std::size_t side = 64;         // of the images, pixels
    CropKind crop = CropKind::transformer;
    std::uint64_t seed = 1;
    int ranks = 1;  // after micro-batch m this process wants m + ranks, as far as a step has them
  };
  // The pairs outlive this. Throws Error(usage) that names the field for a batch that is larger than the set, a micro-batch
  // that does not divide it, or a side out of range.
  PairBatches(const Pairs& pairs, const Options& options);
  PairBatches(const PairBatches&) = delete;
  PairBatches& operator=(const PairBatches&) = delete;

  // Micro-batch `micro_batch` of step `step`: a function of seed, step and micro-batch, whatever was asked for before. An epoch
  // has as many whole batches as there are, its order is a shuffle of its own, and so are the crops. What is wanted next is
  // made meanwhile. Throws what read_image() throws.
  PairBatch get(std::uint64_t step, std::uint64_t micro_batch) { return ahead_->get({step, micro_batch}); }

  std::uint64_t steps_per_epoch() const { return pairs_.size() / options_.batch; }

 private:
  PairBatch make(const BatchPlace& place);

  const Pairs& pairs_;
  Options options_;
  std::vector<std::uint32_t> order_;  // of order_epoch_
  std::uint64_t order_epoch_ = 0;
  // Once the options are checked. Last, since its thread reads the others.
  std::optional<LookAhead<PairBatch>> ahead_;
};

}  // namespace bitloom::data
