// How good a convolutional net is: logits of images, and accuracy over a set, with test-time augmentation.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "layerwise/model.h"
#include "models/cnn/cnn.h"
#include "models/cnn/image_batches.h"
#include "mpi/comm.h"

namespace bitloom::models {

// Views of an image whose logits are averaged: itself, and with `shift` itself moved by that many pixels up and left, and down
// and right, half as heavy each; with `mirror` all of these mirrored, too (Jordan 2024, section 3.5). Pixels that come in are
// the reflection at the border. Of an image that is sure (Views::sure) the average is that of the views until then: itself, its
// mirror image, both moved up and left, both moved down and right.
using CnnViews = layerwise::Views;

class CnnClassifier {
 public:
  // values: V of the net, which has its numbers and outlives this. at_once: images of a pass at most. Throws Error(usage) for a
  // shift that the images do not allow. Views that stop where an image is sure are for a net of one process alone.
  CnnClassifier(nn::Engine& engine, Cnn& net, PixelScale scale, DType values, const CnnViews& views, std::size_t at_once = 256);
  // The same where processes have the net together, and predict() is to be called equally often by all that share images:
  // logits (N,classes) of x, the net's input.
  using Predict = std::function<std::vector<float>(const nn::Tensor& x)>;
  CnnClassifier(nn::Engine& engine, Cnn& net, PixelScale scale, DType values, const CnnViews& views, std::size_t at_once,
                Predict predict);

  CnnClassifier(const CnnClassifier&) = delete;
  CnnClassifier& operator=(const CnnClassifier&) = delete;

  // Averages of logits (N, classes) of images (channels, height, width each). `taken` (N) gets how many views of each they are
  // of.
  std::vector<float> logits(std::span<const std::span<const std::uint8_t>> images, std::vector<std::size_t>* taken = nullptr);

  // Collective: each rank of comm takes a part of the set. `watch` is called between batches: with the images that this rank
  // has done, and false ends the evaluation by Error(interrupted).
  using Watch = std::function<bool(std::size_t images)>;
  layerwise::Evaluation evaluate(mpi::Comm& comm, const data::Dataset& set, const Watch& watch = {});

 private:
  CnnClassifier(nn::Engine& engine, Cnn& net, PixelScale scale, DType values, const CnnViews& views, std::size_t at_once,
                Predict predict, bool together);
  std::vector<float> logits_of_part(std::span<const std::span<const std::uint8_t>> images, std::span<std::size_t> taken);
  std::vector<float> logits_of_view(std::span<const std::span<const std::uint8_t>> images, std::span<const std::size_t> open,
                                    int moved, bool mirror);

  nn::Engine& engine_;
  Cnn& net_;
  PixelScale scale_;
  DType values_;
  CnnViews views_;
  std::size_t at_once_;
  Predict predict_;
  bool together_;  // whether all that share images make equally many passes
};

}  // namespace bitloom::models
