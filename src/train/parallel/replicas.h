// Copies of tensors that several processes have and each moves by itself: they are to stay the same to the bit.
#pragma once

#include <span>
#include <string>

#include "mpi/grid.h"
#include "nn/engine.h"

namespace bitloom::train {

struct Replica {
  std::string name;
  const nn::Tensor* tensor = nullptr;
  bool over_data = false, over_tensor = false;  // groups whose processes all have it
};

// Collective: compares hashes of them, 16 bytes of each going round. All ranks pass the same but for `tensor`, those of a stage
// at least. Throws SharedError(data), which names `when`, the first tensor that differs and the ranks that have another one
// than most.
void require_same(nn::Engine& engine, mpi::Grid& grid, std::span<const Replica> replicas, const std::string& when);

}  // namespace bitloom::train
