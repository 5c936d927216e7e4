// The runtime of src/nn/cuda on the CPU: one GPU whose memory is this machine's.
#include "tests/cuda/emulated_runtime.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "nn/backend.h"
#include "nn/cuda/architectures.h"
#include "nn/cuda/runtime.h"

namespace bitloom::emulated {
namespace {

bool is_broken = false;
bool hangs = false;

// As a call of the driver that waits for the stream.
void wait_in_driver() {
  if (hangs) fail(ErrorKind::internal, "the emulated stream is waited for, and will never be done");
}

}  // namespace

BrokenDevice::BrokenDevice() { is_broken = true; }
BrokenDevice::~BrokenDevice() { is_broken = false; }

HungStream::HungStream() { hangs = true; }
HungStream::~HungStream() { hangs = false; }
bool is_hung() { return hangs; }

}  // namespace bitloom::emulated

namespace bitloom::nn {

Gpu describe_gpu(int /*index*/) { return {"emulated", std::uint64_t{1} << 30U, std::uint64_t{1} << 30U, 8, 0, 1}; }

std::vector<Gpu> gpus() { return {describe_gpu(0)}; }

int gpu_count() { return 1; }

std::string gpu_problem(int index) {
  if (index != 0) return "there is one emulated GPU";
  const char* const architectures = std::getenv("BITLOOM_EMULATED_ARCHITECTURES");
  return architectures == nullptr ? "" : cuda::code_problem(describe_gpu(0).major, describe_gpu(0).minor, architectures);
}

namespace cuda {
namespace {

// Its blocks are poisoned: what was never written is NaN. After them comes a page that nobody may read.
class EmulatedAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    if (emulated::is_broken)
      fail(ErrorKind::io, "CUDA: memory: an illegal memory access was encountered (cudaErrorIllegalAddress)");
    void* mapped = MAP_FAILED;
    if (bytes <= gpus().front().memory) {
      mapped = ::mmap(nullptr, mapped_bytes(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    if (mapped == MAP_FAILED) throw OutOfMemory(ErrorKind::io, "the emulated GPU has no more memory");
    std::byte* const end = static_cast<std::byte*>(mapped) + mapped_bytes(bytes) - page;
    if (::mprotect(end, page, PROT_NONE) != 0) {
      ::munmap(mapped, mapped_bytes(bytes));
      throw OutOfMemory(ErrorKind::io, "the emulated GPU has no more memory");
    }
    std::byte* const memory = end - rounded(bytes, alignment);
    std::memset(memory, 0xFF, bytes);
    return memory;
  }
  void release(void* memory, std::size_t bytes) noexcept override {
    std::byte* const end = static_cast<std::byte*>(memory) + rounded(bytes, alignment);
    ::munmap(end + page - mapped_bytes(bytes), mapped_bytes(bytes));
  }
  std::size_t tail() const override { return 0; }

 private:
  static constexpr std::size_t alignment = 256;                // cudaMalloc()'s
  static constexpr std::size_t page = std::size_t{64} << 10U;  // the largest that a system has
  static std::size_t rounded(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }
  static std::size_t mapped_bytes(std::size_t bytes) { return rounded(bytes, page) + page; }
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
  if (wait_) wait_([] { return !emulated::is_hung(); });
  emulated::wait_in_driver();
  if (!host.empty()) std::memcpy(device, host.data(), host.size());
}

void Runtime::download(const void* device, std::span<std::byte> host) {
  synchronize();
  if (!host.empty()) std::memcpy(host.data(), device, host.size());
}

void Runtime::synchronize() {
  if (wait_) wait_([] { return !emulated::is_hung(); });
  emulated::wait_in_driver();
  state_->waited_for = std::min(state_->waited_for, std::exchange(state_->fault, no_fault));
}

}  // namespace cuda
}  // namespace bitloom::nn
