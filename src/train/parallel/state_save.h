// A checkpoint that is gathered and written while training goes on.
#pragma once

#include <future>
#include <vector>

#include "train/parallel/state_gather.h"

namespace bitloom::train {

class StateSave {
 public:
  // Collective. Copies this rank's part of the state; then a thread of each rank brings it to rank 0, whose thread calls
  // write() as StateGather::run() does. comm is used by nothing else until this is gone. All of it is done before the
  // constructor returns where some host has no room for the copies, or where MPI lets only one thread call it.
  StateSave(nn::Engine& engine, mpi::Comm& comm, std::vector<HeldTensor> held, TensorFile rest, WriteTensors write,
            std::uint64_t room = available_memory());
  StateSave(const StateSave&) = delete;
  StateSave& operator=(const StateSave&) = delete;
  // Waits for it, whatever comes of it.
  ~StateSave() = default;

  // Whether this rank is done, so that finish() need not wait.
  bool is_over() const { return thread_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  // Calls alive() now and then while it waits. Throws what write() threw, at rank 0, and PeerLost.
  void finish(const std::function<void()>& alive);

 private:
  StateGather gather_;
  TensorFile rest_;
  WriteTensors write_;
  std::future<void> thread_;  // the first to go: its end is waited for
};

}  // namespace bitloom::train
