// Collectives over GPUs by NCCL.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <thread>

#include "core/clock.h"
#include "mpi/comm_state.h"
#include "mpi/device_comm.h"

namespace bitloom::mpi {
namespace {

ncclDataType_t nccl_type(DeviceComm::Type type) {
  switch (type) {
    case DeviceComm::Type::bf16: return ncclBfloat16;
    case DeviceComm::Type::f16: return ncclFloat16;
    case DeviceComm::Type::f32: break;
  }
  return ncclFloat32;
}

std::size_t bytes_of(DeviceComm::Type type) { return type == DeviceComm::Type::f32 ? 4 : 2; }
std::size_t bytes_of(const DeviceComm::Values& values) { return values.size * bytes_of(values.type); }

std::size_t bytes_of(std::span<const DeviceComm::Values> all) {
  std::size_t bytes = 0;
  for (const DeviceComm::Values& values : all) bytes += bytes_of(values);
  return bytes;
}

std::byte* at(const DeviceComm::Values& values, std::size_t index) {
  return static_cast<std::byte*>(values.data) + index * bytes_of(values.type);
}

bool are_equal(std::span<const std::size_t> counts) {
  return std::ranges::adjacent_find(counts, std::not_equal_to<>()) == counts.end();
}

}  // namespace

struct DeviceComm::State {
  Comm* comm = nullptr;
  int gpu = 0;
  cudaStream_t stream = nullptr;
  ncclComm_t nccl = nullptr;  // none with one rank
  // When the last groups were done. The driver takes a thousand launches or so that wait, and blocks then: where one of these
  // waits for a peer that is gone, this rank must not get that far ahead.
  std::array<cudaEvent_t, 8> ends = {};
  std::size_t groups = 0;
  const char* last = "a new communicator";  // what is under way, for messages
  // All ranks made it and nothing has failed since. Otherwise the communicator cannot be finished in order, which waits for
  // peers: they may be gone or be told of the failure later.
  bool is_sound = false;

  ~State() {
    finish();
    for (cudaEvent_t end : ends) {
      if (end != nullptr) (void)cudaEventDestroy(end);
    }
  }
  void finish() {
    if (nccl == nullptr) return;
    const bool is_orderly = is_sound && !comm->broken() && std::uncaught_exceptions() == 0 && finalise();
    (void)(is_orderly ? ncclCommDestroy(nccl) : ncclCommAbort(nccl));
  }
  // Ends what is under way, with all ranks: whether they came to it before the watchdog's time was up. Destroying the
  // communicator waits for nobody after that.
  bool finalise() const {
    ncclResult_t state = ncclCommFinalize(nccl);
    const double most = comm->settings().watchdog_seconds;
    Patience patience(Clock::now());
    while (state == ncclSuccess || state == ncclInProgress) {
      if (ncclCommGetAsyncError(nccl, &state) != ncclSuccess) return false;
      if (state == ncclSuccess) return true;
      const double waited = patience.waited(Clock::now());
      if (comm->broken() || (most > 0 && waited > most)) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return false;
  }
  [[noreturn]] void lose(const std::string& message) {
    is_sound = false;
    comm->state().process->break_off(message);
    throw PeerLost(message);
  }

  void check(ncclResult_t result) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    is_sound = false;
    fail(ErrorKind::io, "NCCL: {} of {}: {}: {}", last, comm->state().self(), ncclGetErrorString(result),
         nccl == nullptr ? "" : ncclGetLastError(nccl));
  }
  void check(cudaError_t result) {
    if (result == cudaSuccess) return;
    is_sound = false;
    fail(ErrorKind::io, "CUDA: {}: {}", last, cudaGetErrorString(result));
  }

  // Whether NCCL has done what it was asked for, which may go on in the stream.
  bool is_idle() {
    ncclResult_t state = ncclSuccess;
    if (nccl != nullptr) check(ncclCommGetAsyncError(nccl, &state));
    if (state != ncclSuccess && state != ncclInProgress) {
      lose(fmt::format("NCCL: {} of {}: {}", last, comm->state().self(), ncclGetErrorString(state)));
    }
    return state == ncclSuccess;
  }
  void require_patience(double waited) {
    const double most = comm->settings().watchdog_seconds;
    if (most > 0 && waited > most) {
      lose(fmt::format("NCCL: {} of {}: no answer for {:.0f} s", last, comm->state().self(), most));
    }
  }
  // Whether the stream is done with what a query asks for.
  bool is_done(cudaError_t status) {
    if (status == cudaErrorNotReady) {
      (void)cudaGetLastError();  // or the next launch of a kernel would report it
      return false;
    }
    check(status);
    return true;
  }

  // Until NCCL has done what it was asked for and `done` holds, at most as long as the watchdog allows.
  template <typename Done>
  void wait(Done done) {
    Patience patience(Clock::now());
    while (!is_idle() || !done()) {
      require_patience(patience.waited(Clock::now()));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  // Until all ranks have made the communicator, or all know of one that cannot, for which the others would wait in NCCL.
  void meet() {
    const double most = comm->settings().watchdog_seconds;
    Patience patience(Clock::now());
    for (;;) {
      const bool is_under_way = comm->together([&] {
        ncclResult_t state = ncclSuccess;
        check(ncclCommGetAsyncError(nccl, &state));
        check(state);
        return state == ncclInProgress;
      });
      // Not counted as traffic: how often depends on time.
      constexpr std::int64_t done = 0, waits = 1, gives_up = 2;
      const bool is_late = most > 0 && patience.waited(Clock::now()) > most;
      const std::int64_t slowest = comm->state().largest(!is_under_way ? done : is_late ? gives_up : waits, "NCCL");
      if (slowest == done) return;
      if (slowest == gives_up) lose(fmt::format("NCCL: {} of {}: no answer for {:.0f} s", last, comm->state().self(), most));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Starts the operations of f as one group, and waits until they are on their way: the stream must not be used before.
  template <typename F>
  void group(const char* what, F&& f) {
    if (comm->broken()) throw PeerLost(comm->state().lost_earlier(what));
    if (nccl == nullptr) return;
    const cudaEvent_t end = ends[groups % ends.size()];  // of an earlier group, if any, which is waited for
    wait([&] { return is_done(cudaEventQuery(end)); });
    last = what;
    check(ncclGroupStart());
    try {
      f();
    } catch (...) {
      is_sound = false;      // a part of it may be under way
      (void)ncclGroupEnd();  // or all that this thread asks of NCCL later would wait for the end of this group
      throw;
    }
    check(ncclGroupEnd());
    wait([] { return true; });
    check(cudaEventRecord(end, stream));
    ++groups;
  }

  void reduce_in_place(const char* what, std::span<const Values> all, ncclRedOp_t operation) {
    group(what, [&] {
      for (const Values& values : all) {
        if (values.size == 0) continue;
        check(ncclAllReduce(values.data, values.data, values.size, nccl_type(values.type), operation, nccl, stream));
      }
    });
  }

  void require_counts(const char* what, std::span<const std::size_t> counts, const Values& all) const {
    std::size_t total = 0;
    for (const std::size_t count : counts) total += count;
    if (counts.size() == static_cast<std::size_t>(comm->size()) && total == all.size) return;
    fail(ErrorKind::internal, "{}: {} counts of {} values in all; expected {} of {}", what, counts.size(), total, comm->size(),
         all.size);
  }
};

DeviceComm::DeviceComm(Comm& comm, int gpu, void* stream) : state_(std::make_unique<State>()) {
  state_->comm = &comm;
  state_->gpu = gpu;
  state_->stream = static_cast<cudaStream_t>(stream);
  ncclUniqueId id = {};
  comm.together([&] {
    if (cudaSetDevice(gpu) != cudaSuccess) fail(ErrorKind::io, "cuda:{}: it cannot be used", gpu);
    if (comm.size() == 1) return;
    for (cudaEvent_t& end : state_->ends) state_->check(cudaEventCreateWithFlags(&end, cudaEventDisableTiming));
    if (comm.is_root()) state_->check(ncclGetUniqueId(&id));
  });
  if (comm.size() == 1) return;
  // A new communicator for every group, rather than ncclCommSplit(), which needs one of the whole run.
  comm.broadcast(std::as_writable_bytes(std::span(&id, 1)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;  // a peer that is gone must not hold this rank for ever
  comm.together([&] { state_->check(ncclCommInitRankConfig(&state_->nccl, comm.size(), id, comm.rank(), &config)); });
  state_->meet();
  state_->is_sound = true;
}

DeviceComm::~DeviceComm() = default;

void DeviceComm::sum(std::span<const Values> all) {
  const Meter meter = state_->comm->state().meter(Collective::float_sum, bytes_of(all));
  state_->reduce_in_place("a sum", all, ncclSum);
}

void DeviceComm::max(std::span<const Values> all) {
  const Meter meter = state_->comm->state().meter(Collective::float_max, bytes_of(all));
  state_->reduce_in_place("a maximum", all, ncclMax);
}

void DeviceComm::reduce_scatter(const Values& all, const Values& mine, std::span<const std::size_t> counts) {
  constexpr const char* what = "a reduce-scatter";
  State& state = *state_;
  const Meter meter = state.comm->state().meter(Collective::reduce_scatter, bytes_of(all));
  state.require_counts(what, counts, all);
  const std::size_t own = counts[static_cast<std::size_t>(state.comm->rank())];
  if (mine.size != own || mine.type != all.type) {
    fail(ErrorKind::internal, "{}: room for {} values, expected {} of the same type", what, mine.size, own);
  }
  if (state.nccl == nullptr && mine.data != all.data && own > 0) {
    state.check(cudaMemcpyAsync(mine.data, all.data, bytes_of(all), cudaMemcpyDeviceToDevice, state.stream));
  }
  state.group(what, [&] {
    if (all.size == 0) return;
    const ncclDataType_t type = nccl_type(all.type);
    if (are_equal(counts)) {
      state.check(ncclReduceScatter(all.data, mine.data, own, type, ncclSum, state.nccl, state.stream));
      return;
    }
    std::size_t begin = 0;
    for (std::size_t r = 0; r < counts.size(); begin += counts[r], ++r) {
      if (counts[r] == 0) continue;
      // Only the root's result is written.
      state.check(
          ncclReduce(at(all, begin), mine.data, counts[r], type, ncclSum, static_cast<int>(r), state.nccl, state.stream));
    }
  });
}

void DeviceComm::all_gather(const Values& all, std::span<const std::size_t> counts) {
  constexpr const char* what = "an all-gather";
  State& state = *state_;
  const auto rank = static_cast<std::size_t>(state.comm->rank());
  const Meter meter =
      state.comm->state().meter(Collective::all_gather, rank < counts.size() ? counts[rank] * bytes_of(all.type) : 0);
  state.require_counts(what, counts, all);
  state.group(what, [&] {
    if (all.size == 0) return;
    const ncclDataType_t type = nccl_type(all.type);
    if (are_equal(counts)) {
      state.check(ncclAllGather(at(all, rank * counts[rank]), all.data, counts[rank], type, state.nccl, state.stream));
      return;
    }
    std::size_t begin = 0;
    for (std::size_t r = 0; r < counts.size(); begin += counts[r], ++r) {
      if (counts[r] == 0) continue;
      state.check(
          ncclBroadcast(at(all, begin), at(all, begin), counts[r], type, static_cast<int>(r), state.nccl, state.stream));
    }
  });
}

void DeviceComm::wait() {
  state_->wait([&] { return state_->is_done(cudaStreamQuery(state_->stream)); });
}

void DeviceComm::look(double waited) {
  State& state = *state_;
  const cudaEvent_t end = state.ends[(state.groups + state.ends.size() - 1) % state.ends.size()];  // of the last group
  if (!state.is_idle() || !state.is_done(cudaEventQuery(end))) state.require_patience(waited);
}

}  // namespace bitloom::mpi
