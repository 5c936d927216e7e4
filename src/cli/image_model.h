// Trained models that classify images, whatever their kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "layerwise/model.h"

namespace bitloom::cli {

struct ImageModel {
  using Images = std::span<const std::span<const std::uint8_t>>;  // N x (channels x height x width)

  data::ImageShape shape;
  std::vector<std::string> class_names;
  std::function<std::vector<float>(Images images)> probabilities;  // (N, classes)
};

// A binary or convolutional net, on all threads of the CPU. `choose` gets the views of an image that it is made for and returns
// those to average over. values: number format in which a convolutional net computes. Throws Error(data) for models of other
// kinds.
ImageModel open_image_model(const std::filesystem::path& file, const std::function<layerwise::Views(layerwise::Views)>& choose,
                            const std::string& values = "f32");

}  // namespace bitloom::cli
