// Effect of flips of a trained layer's weights on the loss of the head above it, exactly: how many single flips lower it, and
// what the best ones do together. The essay "Distributed training" rests on both ("Training binary weights"): about half of all
// flips lower the loss of a random net, ever fewer that of one that learns; flips are mostly independent, but too many at once
// overshoot.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "layerwise/model.h"

namespace bitloom::layerwise {

struct FlipStudy {
  std::string layer;
  std::size_t weights = 0;
  std::size_t moves = 0;    // flips; of a ternary layer two per weight
  std::size_t lower = 0;    // moves that lower the loss over the images, by themselves
  std::size_t neutral = 0;  // moves that leave it to the last bit
  double loss = 0;          // nats per image, before any
  double others_loss = 0;

  // The moves that lower the loss most, at most one of a weight, all at once. Changes in nats per image.
  struct Together {
    std::size_t flips = 0;
    double predicted = 0;  // sum of what each does by itself
    double realised = 0;
    double on_others = 0;  // of images that the moves were not chosen for
  };
  std::vector<Together> together;  // 1, 3, 10, 30, ... and all that lower the loss
};

// Studies a layer that has a head. images: what moves are chosen for; others: what they are tried on besides. `progress` gets
// what share is done. Throws Error(usage) for a layer that there is not, or without a head, and for sets without images.
FlipStudy study_flips(const simd::Kernels& kernels, const Model& model, const std::string& layer, const data::Dataset& images,
                      const data::Dataset& others, const std::function<void(double share)>& progress = {});

}  // namespace bitloom::layerwise
