// The state of a training whose tensors are divided among processes, to and from files of full tensors: no process ever has
// more of a tensor than its own part and a piece.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
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
inline constexpr std::size_t state_piece_bytes = std::size_t{4} << 20U;

// Brings tensors to rank 0, which writes them while the others serve. Of processes that have the same elements the first sends
// them.
class StateGather {
 public:
  // Collective. Each rank names what it has. Throws SharedError(internal) if the ranks disagree about a tensor, or if nobody
  // has some element. All outlive this.
  StateGather(nn::Engine& engine, mpi::Comm& comm, std::vector<HeldTensor> held);

  // For rank 0: streams of all full tensors, which may be asked for any number of times. Errors of whoever takes the bytes
  // pass through them, and leave the other ranks waiting for release().
  std::map<std::string, StreamedTensor> tensors();
  // For rank 0: the other ranks return from serve(). To be called in any case.
  void release();
  // For other ranks: sends what rank 0 asks for until it says that it is done.
  void serve();

 private:
  struct Source {
    int rank = 0;
    Holding holding;
  };
  struct Described {
    DType dtype = DType::f32;
    std::vector<std::size_t> shape;
    std::vector<Source> sources;
  };
  void describe(int rank, const std::vector<std::byte>& text);
  void require_complete() const;
  void stream(const std::string& name, const Described& tensor, const TakeBytes& take);
  const HeldTensor* find(const std::string& name) const;
  std::vector<std::byte> read(const HeldTensor& held) const;

  nn::Engine& engine_;
  mpi::Comm& comm_;
  std::vector<HeldTensor> held_;
  std::map<std::string, Described> all_;  // rank 0
};

// Collective: every rank gets its elements from full tensors, which rank 0 reads in pieces. Throws SharedError(data) that names
// a tensor that is missing, or of another type or shape, and SharedError(io) where rank 0 cannot read one.
void scatter_state(nn::Engine& engine, mpi::Comm& comm, std::span<const HeldTensor> held, const TensorSource* file);

}  // namespace bitloom::train
