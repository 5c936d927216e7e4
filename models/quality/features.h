// Numbers that a trained net has for an image, for figures of quality (distance.h) and nearness (near.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "nn/engine.h"

namespace bitloom::models {

class ImageFeatures {
 public:
  virtual ~ImageFeatures() = default;

  // Height and width of images, which have 3 channels.
  virtual std::size_t side() const = 0;
  virtual std::size_t columns() const = 0;
  // Classes that the net tells apart; 0: none.
  virtual std::size_t classes() const = 0;

  struct Found {
    std::vector<double> features;       // (N,columns)
    std::vector<double> probabilities;  // (N,classes)
  };
  // Features and probabilities of images (N,side,side,3).
  virtual Found of(std::span<const std::uint8_t> images) = 0;
};

// Loads a model. A contrastive one gives embeddings of images, of length 1; a convolutional net gives what its last layer gets,
// and the softmax of what that layer gives. values: V. The engine outlives it. Throws Error(data) that names the file for a
// model of another kind, one of images that are not square or not of 3 channels, and what is missing or wrong.
std::unique_ptr<ImageFeatures> load_image_features(nn::Engine& engine, const std::filesystem::path& path,
                                                   DType values = DType::f32);

}  // namespace bitloom::models
