// One picture of a binary net and its training, as a file of its own: an image, the bits that encoder and layers make of it,
// the heads' verdict, and below it how accuracies rose while weights flipped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "report/picture.h"

namespace bitloom::report {

// Some channels of a map of bits.
struct BitMaps {
  std::string name, size;  // "layer1", "32 x 32 x 128"
  std::size_t height = 0, width = 0;
  std::vector<std::vector<std::uint8_t>> channels;  // each (height, width): 0 or 1; the first 16 are shown
};

struct NetPicture {
  std::string title, subtitle;
  std::size_t height = 0, width = 0;
  std::vector<std::uint8_t> rgb;                       // (height, width, 3)
  std::vector<BitMaps> maps;                           // maps of the encoder, then of the layers; the first five are shown
  std::vector<std::pair<std::string, double>> scores;  // classes with their probabilities, the likeliest first
  std::string truth;                                   // the image's class; "": unknown
  std::vector<nlohmann::json> metrics;                 // the lines of metrics.jsonl; without epochs there are no curves
};

// Throws a usage error when sizes do not agree.
Picture draw(const NetPicture& net);

}  // namespace bitloom::report
