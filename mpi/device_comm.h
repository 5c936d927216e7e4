// Sums of floats that lie in GPUs' memory, over the ranks of a run, by NCCL. A program without NCCL has the class too; making
// one is then an error.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "mpi/comm.h"

namespace bitloom::mpi {

class DeviceComm {
 public:
  // Floats in the memory of this rank's GPU.
  struct Values {
    float* data = nullptr;
    std::size_t size = 0;
  };

  // Collective: every rank has a GPU of its own. stream: CUDA's handle of the stream on which sums are done, in order with what
  // else is started there. `comm` outlives this. Throws Error(usage) if this program has no NCCL, and Error(io), which says
  // what NCCL said, if ranks cannot reach each other or share a GPU.
  DeviceComm(Comm& comm, int gpu, void* stream);
  ~DeviceComm();
  DeviceComm(const DeviceComm&) = delete;
  DeviceComm& operator=(const DeviceComm&) = delete;

  // Collective, in place: every value becomes the sum over ranks, in an order that depends on the number of ranks and how they
  // are connected. All ranks pass the same sizes. Returns before it is done.
  void sum(std::span<const Values> all);
  // Until all sums are done. Throws PeerLost if that takes longer than the watchdog of `comm` allows, or if NCCL lost a peer.
  void wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bitloom::mpi
