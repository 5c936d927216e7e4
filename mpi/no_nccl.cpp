// In place of NCCL, in a program that was built without it.
#include "mpi/device_comm.h"

namespace bitloom::mpi {

struct DeviceComm::State {};

DeviceComm::DeviceComm(Comm& /*comm*/, int gpu, void* /*stream*/) {
  fail(ErrorKind::usage, "cuda:{}: several processes with GPUs need NCCL, which this program was built without", gpu);
}

DeviceComm::~DeviceComm() = default;

void DeviceComm::sum(std::span<const Values> /*all*/) {}
void DeviceComm::max(std::span<const Values> /*all*/) {}
void DeviceComm::reduce_scatter(const Values& /*all*/, const Values& /*mine*/, std::span<const std::size_t> /*counts*/) {}
void DeviceComm::all_gather(const Values& /*all*/, std::span<const std::size_t> /*counts*/) {}
void DeviceComm::wait() {}
void DeviceComm::look(double /*waited*/) {}

}  // namespace bitloom::mpi
