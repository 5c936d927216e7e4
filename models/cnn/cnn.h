// A float convolutional net as layers of the engine, from images (N,Y,X,C) to logits (N,classes).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/cnn/config.h"
#include "nn/layer.h"

namespace bitloom::models {

struct Cnn {
  CnnConfig config;
  std::shared_ptr<nn::Sequence> layers = std::make_shared<nn::Sequence>();
  std::vector<std::size_t> ends;           // of the engine's layers that each described layer has
  nn::Parameter* whitening = nullptr;      // the frozen kernels of a whitening layer, or none
  std::vector<nn::Parameter*> identities;  // kernels that begin as the identity on their first channels

  explicit Cnn(const CnnConfig& config);
  Cnn(const Cnn&) = delete;
  Cnn& operator=(const Cnn&) = delete;

  nn::Shape input(std::size_t images) const;
  // Numbers that are learned.
  std::uint64_t parameters();
  // Multiplications and additions of a forward pass on one image.
  double cost() const { return layers->cost(input(1)); }
};

// Rows of a table of a net's layers: parameters are named after them.
struct CnnRow {
  std::string name, kind;
  nn::Shape output;              // of one image
  std::uint64_t parameters = 0;  // that are learned
  double cost = 0;               // multiplications and additions of a forward pass
};
std::vector<CnnRow> describe(Cnn& net);

}  // namespace bitloom::models
