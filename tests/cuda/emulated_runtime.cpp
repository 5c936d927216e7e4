// The runtime of src/nn/cuda on the CPU: one GPU whose memory is this machine's.
#include "tests/cuda/emulated_runtime.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "nn/backend.h"
#include "nn/cuda/runtime.h"

namespace bitloom::emulated {
namespace {

bool is_broken = false;

}  // namespace

BrokenDevice::BrokenDevice() { is_broken = true; }
BrokenDevice::~BrokenDevice() { is_broken = false; }

}  // namespace bitloom::emulated

namespace bitloom::nn {

Gpu describe_gpu(int /*index*/) { return {"emulated", std::uint64_t{1} << 30U, std::uint64_t{1} << 30U, 8, 0, 1}; }

std::vector<Gpu> gpus() { return {describe_gpu(0)}; }

std::string gpu_problem(int index) { return index == 0 ? "" : "there is one emulated GPU"; }

namespace cuda {
namespace {

// Its blocks are poisoned: what was never written is NaN.
class EmulatedAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    if (emulated::is_broken)
      fail(ErrorKind::io, "CUDA: memory: an illegal memory access was encountered (cudaErrorIllegalAddress)");
    const bool fits = bytes <= gpus().front().memory;
    void* memory = fits ? std::aligned_alloc(256, (bytes + 255) / 256 * 256) : nullptr;
    if (memory == nullptr) throw OutOfMemory(ErrorKind::io, "the emulated GPU has no more memory");
    std::memset(memory, 0xFF, bytes);
    return memory;
  }
  void release(void* memory, std::size_t /*bytes*/) noexcept override { std::free(memory); }
};

}  // namespace

struct Runtime::State {
  FaultWord fault = no_fault, waited_for = no_fault;
};

Runtime::Runtime(int index) : state_(std::make_unique<State>()) {
  if (const std::string problem = gpu_problem(index); !problem.empty()) fail(ErrorKind::usage, "cuda:{}: {}", index, problem);
  gpu_ = describe_gpu(index);
}

Runtime::~Runtime() = default;

Stream Runtime::stream() const { return nullptr; }

FaultWord* Runtime::fault() const { return &state_->fault; }

FaultWord Runtime::take_fault() { return std::exchange(state_->waited_for, no_fault); }

std::unique_ptr<Allocator> Runtime::make_allocator() const { return std::make_unique<EmulatedAllocator>(); }

void Runtime::upload(void* device, std::span<const std::byte> host) {
  if (!host.empty()) std::memcpy(device, host.data(), host.size());
}

void Runtime::download(const void* device, std::span<std::byte> host) {
  if (!host.empty()) std::memcpy(host.data(), device, host.size());
  synchronize();
}

void Runtime::synchronize() { state_->waited_for = std::min(state_->waited_for, std::exchange(state_->fault, no_fault)); }

}  // namespace cuda
}  // namespace bitloom::nn
