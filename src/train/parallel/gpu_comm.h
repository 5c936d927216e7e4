// Collectives over the GPUs of engines of several processes.
#pragma once

#include <memory>

#include "mpi/device_comm.h"
#include "nn/engine.h"

namespace bitloom::train {

// On the engine's stream, in order with its ops. What the engine waits for may stand behind a collective whose peers are gone:
// it then gives up when the collective does, with its words.
class GpuComm final : public mpi::DeviceComm {
 public:
  // Collective. Both outlive this.
  GpuComm(nn::Engine& engine, mpi::Comm& comm) : DeviceComm(comm, engine.device().index, engine.native_stream()) {
    if (comm.size() > 1) watch_ = engine.watch([this](double waited) { look(waited); });
  }

 private:
  std::shared_ptr<const nn::Engine::Look> watch_;
};

}  // namespace bitloom::train
