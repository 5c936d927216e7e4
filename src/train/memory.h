// How much memory training takes, told from shapes before there is any.
#pragma once

#include <cstdint>

#include "train/trainer.h"

namespace bitloom::train {

// Peaks in bytes, as nn::Pool counts them. What is not in it: activations on their way, about two of the largest; moving
// statistics of batch norm, and what follows them; what Muon works with (orthogonalise_bytes()).
struct MemoryNeeds {
  std::uint64_t parameters = 0;
  std::uint64_t gradients = 0;
  std::uint64_t optimizer = 0;
  std::uint64_t stash = 0;
  // In this machine's memory, beside the total, while a checkpoint is written beside training; without room for it training
  // waits.
  std::uint64_t checkpoint = 0;

  std::uint64_t total() const { return parameters + gradients + optimizer + stash; }
};

// Memory of a net under micro-batches of shape x. Throws Error(usage) for an x that it cannot take.
MemoryNeeds predict_memory(nn::Layer& net, const nn::Shape& x, const TrainOptions& options);

}  // namespace bitloom::train
