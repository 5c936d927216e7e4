// In place of NCCL: collectives of emulated GPUs, whose memory is this machine's and whose kernels are done when they are
// started.
#include <span>

#include "core/half.h"
#include "mpi/device_comm.h"
#include "mpi/float_collectives.h"
#include "tests/cuda/emulated_runtime.h"

namespace bitloom::mpi {
namespace {

// f(elements) in the numbers' own type.
template <typename F>
void with_elements(const DeviceComm::Values& values, F&& f) {
  const auto elements = [&](auto* first) { f(std::span(first, values.size)); };
  switch (values.type) {
    case DeviceComm::Type::bf16: return elements(static_cast<bf16*>(values.data));
    case DeviceComm::Type::f16: return elements(static_cast<f16*>(values.data));
    case DeviceComm::Type::f32: return elements(static_cast<float*>(values.data));
  }
}

}  // namespace

struct DeviceComm::State {
  Comm& comm;
};

DeviceComm::DeviceComm(Comm& comm, int /*gpu*/, void* /*stream*/) : state_(new State{comm}) {}
DeviceComm::~DeviceComm() = default;

void DeviceComm::sum(std::span<const Values> all) {
  for (const Values& values : all) {
    with_elements(values, [&](auto elements) { sum_in_order(state_->comm, elements); });
  }
}

void DeviceComm::max(std::span<const Values> all) {
  for (const Values& values : all) {
    with_elements(values, [&](auto elements) { max_of(state_->comm, elements); });
  }
}

void DeviceComm::reduce_scatter(const Values& all, const Values& mine, std::span<const std::size_t> counts) {
  with_elements(all, [&]<typename T>(std::span<T> elements) {
    const std::span<T> own(static_cast<T*>(mine.data), mine.size);
    start_reduce_scatter(state_->comm, std::span<const T>(elements), own, counts).wait();
  });
}

void DeviceComm::all_gather(const Values& all, std::span<const std::size_t> counts) {
  with_elements(all, [&](auto elements) { start_all_gather(state_->comm, elements, counts).wait(); });
}

void DeviceComm::wait() {}

void DeviceComm::look(double waited) {
  const double most = state_->comm.settings().watchdog_seconds;
  if (!emulated::is_hung() || most == 0 || waited <= most) return;
  throw PeerLost(
      fmt::format("a collective of rank {} of {}: no answer for {:g} s", state_->comm.rank(), state_->comm.size(), most));
}

}  // namespace bitloom::mpi
