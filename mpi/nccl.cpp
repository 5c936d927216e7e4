// Sums over GPUs by NCCL.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <thread>

#include "core/clock.h"
#include "mpi/device_comm.h"

namespace bitloom::mpi {

struct DeviceComm::State {
  Comm* comm = nullptr;
  int gpu = 0;
  cudaStream_t stream = nullptr;
  ncclComm_t nccl = nullptr;
  // All ranks made it and nothing has failed since. Otherwise the communicator cannot be finished in order: ncclCommDestroy()
  // waits for peers, which may be gone or be told of the failure later.
  bool is_sound = false;

  ~State() {
    if (nccl == nullptr) return;
    const bool is_orderly = is_sound && !comm->broken() && std::uncaught_exceptions() == 0;
    (void)(is_orderly ? ncclCommDestroy(nccl) : ncclCommAbort(nccl));
  }
  [[noreturn]] void lose(const std::string& message) {
    is_sound = false;
    throw PeerLost(message);
  }

  void check(ncclResult_t result, const char* what) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    is_sound = false;
    fail(ErrorKind::io, "NCCL: {}: {}: {}", what, ncclGetErrorString(result), nccl == nullptr ? "" : ncclGetLastError(nccl));
  }

  // Until NCCL has done what it was asked for and `done` holds, at most as long as the watchdog allows.
  template <typename Done>
  void wait(const char* what, Done done) {
    const double most = comm->settings().watchdog_seconds;
    const Clock::time_point start = Clock::now();
    for (;;) {
      ncclResult_t state = ncclSuccess;
      check(ncclCommGetAsyncError(nccl, &state), what);
      if (state != ncclSuccess && state != ncclInProgress) {
        lose(fmt::format("NCCL: {}: {}", what, ncclGetErrorString(state)));
      }
      if (state == ncclSuccess && done()) return;
      if (most > 0 && seconds_since(start) > most) {
        lose(fmt::format("NCCL: {}: no answer for {:.0f} s", what, most));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
};

DeviceComm::DeviceComm(Comm& comm, int gpu, void* stream) : state_(std::make_unique<State>()) {
  state_->comm = &comm;
  state_->gpu = gpu;
  state_->stream = static_cast<cudaStream_t>(stream);
  ncclUniqueId id = {};
  comm.together([&] {
    if (cudaSetDevice(gpu) != cudaSuccess) fail(ErrorKind::io, "cuda:{}: it cannot be used", gpu);
    if (comm.is_root()) state_->check(ncclGetUniqueId(&id), "a new communicator");
  });
  comm.broadcast(std::as_writable_bytes(std::span(&id, 1)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // a peer that is gone must not hold this rank for ever
  comm.together([&] {
    state_->check(ncclCommInitRankConfig(&state_->nccl, comm.size(), id, comm.rank(), &config), "a new communicator");
    state_->wait("a new communicator", [] { return true; });
  });
  state_->is_sound = true;
}

DeviceComm::~DeviceComm() = default;

void DeviceComm::sum(std::span<const Values> all) {
  State& state = *state_;
  state.check(ncclGroupStart(), "a sum");
  for (const Values& values : all) {
    if (values.size == 0) continue;
    state.check(ncclAllReduce(values.data, values.data, values.size, ncclFloat32, ncclSum, state.nccl, state.stream), "a sum");
  }
  state.check(ncclGroupEnd(), "a sum");
  state.wait("a sum", [] { return true; });  // until it is on its way: the stream must not be used before
}

void DeviceComm::wait() {
  state_->wait("a sum", [&] {
    const cudaError_t status = cudaStreamQuery(state_->stream);
    if (status == cudaErrorNotReady) return false;
    if (status != cudaSuccess) {
      state_->is_sound = false;
      fail(ErrorKind::io, "CUDA: a sum: {}", cudaGetErrorString(status));
    }
    return true;
  });
}

}  // namespace bitloom::mpi
