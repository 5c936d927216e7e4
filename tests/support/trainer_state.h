// The state of a trainer as a file in memory.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"
#include "train/trainer.h"

namespace bitloom::test {

inline TensorFile file_of(const std::map<std::string, StreamedTensor>& tensors) {
  TensorFile file;
  for (const auto& [name, streamed] : tensors) {
    std::size_t size = dtype_size(streamed.dtype);
    for (const std::size_t length : streamed.shape) size *= length;
    Tensor tensor{streamed.dtype, streamed.shape, Buffer<std::byte>(size)};
    std::size_t at = 0;
    streamed.bytes([&](std::span<const std::byte> part) {
      std::memcpy(tensor.bytes.data() + at, part.data(), part.size());
      at += part.size();
    });
    file.tensors.insert_or_assign(name, std::move(tensor));
  }
  return file;
}

inline TensorFile saved(train::Trainer& trainer) {
  TensorFile file;
  trainer.save([&](const std::map<std::string, StreamedTensor>& tensors) { file = file_of(tensors); });
  return file;
}

inline void load(train::Trainer& trainer, const TensorFile& file) { trainer.load(&file); }

// Collective: what rank 0 has of it, on all ranks.
inline TensorFile everywhere(mpi::Comm& comm, const TensorFile& file) {
  std::vector<std::byte> bytes;
  if (comm.is_root()) bytes = file.serialize();
  return TensorFile::parse(comm.broadcast_bytes(std::move(bytes)), "checkpoint");
}

// Loss of the last of `steps` steps.
inline double loss_after(train::Trainer& trainer, std::size_t steps) {
  double loss = 0;
  for (std::size_t i = 0; i < steps; ++i) loss = trainer.step().loss;
  return loss;
}

}  // namespace bitloom::test
