// The layers of a net as `inspect` and `report` show them, and tables.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerwise/net.h"

namespace bitloom::cli {

struct LayerSummary {
  std::string name;
  std::string inputs;   // "input", "layer1 + layer2", with "or 2x2" where they are reduced
  std::string output;   // "16 x 16 x 256"
  std::string kernel;   // "3x3", "5x5 stride 2"
  std::string weights;  // "binary", "ternary"
  std::size_t thresholds = 1;
  std::uint64_t weight_bits = 0;
  std::uint64_t bit_macs = 0;  // per view of an image
};

// input: the encoder's map. Throws a usage error when sizes do not fit.
std::vector<LayerSummary> summarise_layers(const layerwise::NetSpec& net, const layerwise::MapShape& input);

// Shape of the output of an encoder that is not fitted yet, for images of height x width x colours.
layerwise::MapShape encoder_output(const layerwise::EncoderSpec& spec, std::size_t height, std::size_t width,
                                   std::size_t colours);

// Rows of cells, padded to columns; numbers are strings already.
std::string table(const std::vector<std::vector<std::string>>& rows);

}  // namespace bitloom::cli
