// The norm of all gradients of a net whose parameters many processes have parts of.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "mpi/grid.h"
#include "nn/parameter.h"
#include "train/parallel/holding.h"

namespace bitloom::train {

// Sums of squares are formed by chunk (nn::squares_chunk) and added in the order of the net's parameters and their chunks,
// whoever has them: stages of a pipeline and shards of whole chunks come to the bits of one process. Of a parameter that tensor
// ranks divide the chunks are those of their parts, added up over the ranks one by one; so are those of a shard that begins
// within a chunk.
class GradientNorm {
 public:
  // A parameter's gradient, as far as this process has it.
  struct Part {
    const nn::Parameter* parameter = nullptr;  // of the net
    const nn::Tensor* gradient = nullptr;
    std::size_t begin = 0;  // its first element among this rank's of the parameter
    bool counts = true;     // false: another stage has it, too, and counts it
  };
  // net: all parameters that are learned, in their order, with memory or without. shards: processes that have shards of them,
  // if any. All outlive this.
  GradientNorm(nn::Engine& engine, std::span<nn::Parameter* const> net, std::vector<Part> parts, mpi::Grid& grid,
               mpi::Comm* shards);

  // Collective: the norm, times `scale`, the same on all ranks. Not finite if a gradient is not.
  double norm(double scale);
  // Collective: the sum of squares of the gradient of each parameter of the net, the same on all ranks. Not finite where the
  // gradient is not.
  std::vector<double> squares();

 private:
  std::vector<double> sums_by_chunk();

  nn::Engine& engine_;
  std::vector<Part> parts_;
  mpi::Grid& grid_;
  mpi::Comm* shards_;
  std::vector<std::size_t> slots_;          // of parts_: the first of their sums
  std::vector<std::size_t> first_slots_;    // of the net's parameters
  std::vector<std::size_t> divided_slots_;  // of parameters that tensor ranks have parts of
  std::size_t size_ = 0;
};

}  // namespace bitloom::train
