// The state of a training whose tensors are divided among processes, to and from files of full tensors: no process ever has
// more of a tensor than its own part and a piece.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "mpi/comm.h"
#include "nn/engine.h"
#include "train/parallel/holding.h"

namespace bitloom::train {

// A tensor as files have it, and the elements of it that this process has.
struct HeldTensor {
  std::string name;
  std::vector<std::size_t> shape;  // of the full tensor
  Holding holding;
  nn::Tensor* tensor = nullptr;  // the own elements
  DType stored = DType::f32;     // type in files: the tensor's, or f32 where that is bf16
  bool converts = false;         // f32 and bf16 in files are fine, too, whatever the tensor has
};

// Bytes of a full tensor that are on their way at once.
inline constexpr std::size_t state_piece_bytes = std::size_t{1} << 20U;

// Collective: every rank gets its elements from full tensors, which rank 0 reads in pieces. Throws SharedError(data) that names
// a tensor that is missing, or of another type or shape, and SharedError(io) where rank 0 cannot read one.
void scatter_state(nn::Engine& engine, mpi::Comm& comm, std::span<const HeldTensor> held, const TensorSource* file);

}  // namespace bitloom::train
