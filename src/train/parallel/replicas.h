// Copies of tensors that several processes have and each moves by itself: they are to stay the same to the bit.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "mpi/comm.h"
#include "nn/engine.h"

namespace bitloom::train {

struct Replica {
  std::string name;
  const nn::Tensor* tensor = nullptr;  // none on a process that has it not, while others of its groups have
  std::vector<mpi::Comm*> groups;
};

// Collective over `world`: compares hashes of them, 16 bytes of each going round in each group. All ranks pass the same but for
// `tensor`, those of a stage at least. Throws SharedError(data), which names `when`, the first tensor that differs and the
// ranks that have another one than most.
void require_same(nn::Engine& engine, mpi::Comm& world, std::span<const Replica> replicas, const std::string& when);

}  // namespace bitloom::train
