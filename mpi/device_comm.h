// Collectives on numbers that lie in GPUs' memory, over the ranks of a communicator, by NCCL. A program without NCCL has the
// class too; making one is then an error.
//
// All that is started goes on in the stream, one after the other, in order with what else is started there; wait() says when it
// is done. Sums are formed in the numbers' own type, in an order that depends on the number of ranks and how they are
// connected. Counted in the Traffic of the communicator as float_collectives.h counts, with the time that the calls take, not
// the GPUs.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "mpi/comm.h"

namespace bitloom::mpi {

class DeviceComm {
 public:
  enum class Type { f32, bf16, f16 };
  // Numbers in the memory of this rank's GPU.
  struct Values {
    void* data = nullptr;
    std::size_t size = 0;
    Type type = Type::f32;
  };
  // Collective: every rank has a GPU of its own. `comm`, the run or a group of it, outlives this; one of a single rank needs no
  // NCCL. stream: CUDA's handle. Throws Error(usage) if this program has no NCCL, and Error(io), which says what NCCL said, if
  // ranks cannot reach each other or share a GPU.
  DeviceComm(Comm& comm, int gpu, void* stream);
  ~DeviceComm();
  DeviceComm(const DeviceComm&) = delete;
  DeviceComm& operator=(const DeviceComm&) = delete;

  // Collective; all ranks pass the same sizes and types. All of these return before it is done, and throw PeerLost and
  // Error(io). In place: every value becomes the sum or the largest over ranks.
  void sum(std::span<const Values> all);
  void max(std::span<const Values> all);
  // `all` are the parts of all ranks, one after the other, rank r's of counts[r] values; `mine` becomes the sum over ranks of
  // this rank's, and may be that part of `all`. Throws Error(internal) if the counts do not fit.
  void reduce_scatter(const Values& all, const Values& mine, std::span<const std::size_t> counts);
  // This rank's part of `all` is there before, the others' afterwards.
  void all_gather(const Values& all, std::span<const std::size_t> counts);

  // Until all is done. Throws PeerLost if that takes longer than the watchdog of `comm` allows, or if NCCL lost a peer.
  void wait();
  // For whoever waits for the stream by other means, to be called again and again with the seconds that this has taken: throws
  // as wait() does. What was not started here may take as long as it likes.
  void look(double waited);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace bitloom::mpi
