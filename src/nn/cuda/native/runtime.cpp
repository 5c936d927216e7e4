// The runtime on CUDA's own.
#include "nn/cuda/runtime.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "nn/backend.h"
#include "nn/cuda/architectures.h"

namespace bitloom::nn {

namespace cuda {
// Throws Error(io), or Error(internal) for a call that cannot be, which names `what`.
void check_cuda(int status, const char* what);
// In probe.cu.
int ask_for_code();
}  // namespace cuda

namespace {

// Number of GPUs by the driver: 0 where there is none, with the reason.
int count_gpus(std::string& problem) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return count;
  // Forgets the error, or the next call would report it.
  (void)cudaGetLastError();
  problem = status == cudaErrorInsufficientDriver
                ? "no NVIDIA driver, or one that is too old for the CUDA that this program was built with"
                : fmt::format("no NVIDIA GPU on this machine ({})",
                              status == cudaSuccess ? "none found" : cudaGetErrorString(status));
  return 0;
}

// "", or that the program has no code for a GPU. CUDA has the last word, but is asked only where its rules say so: to answer,
// it takes memory on that GPU, which may be another process's.
std::string code_problem(int index) {
  int major = 0;
  int minor = 0;
  if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index) != cudaSuccess) {
    (void)cudaGetLastError();
    return "";
  }
  std::string problem = cuda::code_problem(major, minor, BITLOOM_CUDA_ARCHITECTURES);
  if (problem.empty()) return "";
  int before = 0;
  int answer = cudaSuccess;
  if (cudaGetDevice(&before) == cudaSuccess) {
    if (cudaSetDevice(index) == cudaSuccess) answer = cuda::ask_for_code();
    (void)cudaSetDevice(before);
  }
  (void)cudaGetLastError();
  const bool has_none = answer == cudaErrorNoKernelImageForDevice || answer == cudaErrorInvalidDeviceFunction;
  return has_none ? problem : "";
}

}  // namespace

Gpu describe_gpu(int index) {
  cudaDeviceProp properties;
  cuda::check_cuda(cudaGetDeviceProperties(&properties, index), "asking for the GPU");
  Gpu gpu;
  gpu.name = properties.name;
  gpu.memory = properties.totalGlobalMem;
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  gpu.multiprocessors = properties.multiProcessorCount;
  std::size_t free = 0;
  std::size_t total = 0;
  int before = 0;
  if (cudaGetDevice(&before) == cudaSuccess) {
    if (cudaSetDevice(index) == cudaSuccess && cudaMemGetInfo(&free, &total) == cudaSuccess) gpu.free_memory = free;
    (void)cudaSetDevice(before);  // after a failure, too: choosing a GPU may fail when it is chosen already
  }
  (void)cudaGetLastError();  // of a GPU that another process has all to itself
  return gpu;
}

int gpu_count() {
  std::string problem;
  return count_gpus(problem);
}

std::vector<Gpu> gpus() {
  std::vector<Gpu> all;
  const int count = gpu_count();
  for (int i = 0; i < count; ++i) all.push_back(describe_gpu(i));
  return all;
}

std::string gpu_problem(int index) {
  std::string problem;
  const int count = count_gpus(problem);
  if (!problem.empty()) return problem;
  if (index < count) return code_problem(index);
  return fmt::format("this machine has {} GPU{}; expected {}", count, count == 1 ? "" : "s",
                     count == 1 ? "cuda:0" : fmt::format("cuda:0 to cuda:{}", count - 1));
}

namespace cuda {

void check_cuda(int status, const char* what) {
  if (status == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(status);
  const bool is_bug = error == cudaErrorInvalidValue || error == cudaErrorInvalidConfiguration;
  fail(is_bug ? ErrorKind::internal : ErrorKind::io, "CUDA: {}: {} ({})", what, cudaGetErrorString(error),
       cudaGetErrorName(error));
}

namespace {

// Whether that is over which was asked for.
bool is_done(cudaError_t status) {
  if (status == cudaErrorNotReady) {
    (void)cudaGetLastError();  // or the next launch would report it
    return false;
  }
  check_cuda(status, "waiting for the GPU");
  return true;
}

class CudaAllocator final : public Allocator {
 public:
  explicit CudaAllocator(int index) : index_(index) {}

  void* allocate(std::size_t bytes) override {
    check_cuda(cudaSetDevice(index_), "choosing the device");
    void* memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes);
    if (status == cudaSuccess) return memory;
    (void)cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    if (status != cudaErrorMemoryAllocation || cudaMemGetInfo(&free, &total) != cudaSuccess) check_cuda(status, "memory");
    throw OutOfMemory(ErrorKind::io, fmt::format("the GPU has {} of {} free", format_bytes(free), format_bytes(total)));
  }
  void release(void* memory, std::size_t /*bytes*/) noexcept override {
    // Waits for kernels that still use it. At the program's end the driver may be gone already.
    (void)cudaSetDevice(index_);
    (void)cudaFree(memory);
  }
  // Kernels are loaded when they are first started, and cuDNN makes room for itself when it is first used.
  bool is_scarce(std::size_t bytes) const override {
    std::size_t free = 0;
    std::size_t total = 0;
    if (cudaSetDevice(index_) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
      (void)cudaGetLastError();  // the request will say it
      return false;
    }
    constexpr std::size_t most_reserve = std::size_t{512} << 20U;
    return free < bytes + std::min(most_reserve, total / 16);
  }
  std::size_t tail() const override { return 0; }

 private:
  int index_;
};

}  // namespace

// Uploads go through pinned memory, so that the host need not wait for the stream: a few buffers in turn, each with
// an event that says when its copy is done.
struct Runtime::State {
  static constexpr std::size_t buffer_bytes = std::size_t{4} << 20U;
  struct Buffer {
    std::byte* memory = nullptr;
    cudaEvent_t copied = nullptr;
  };

  int index = 0;
  cudaStream_t stream = nullptr;
  std::array<Buffer, 4> buffers;
  std::size_t next = 0;
  FaultWord* fault = nullptr;       // on the GPU
  FaultWord* host_fault = nullptr;  // pinned: its copy

  void make() {
    check_cuda(cudaSetDevice(index), "choosing the device");
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream");
    for (Buffer& buffer : buffers) {
      check_cuda(cudaMallocHost(reinterpret_cast<void**>(&buffer.memory), buffer_bytes), "pinned memory");
      check_cuda(cudaEventCreateWithFlags(&buffer.copied, cudaEventDisableTiming), "an event");
    }
    check_cuda(cudaMallocHost(reinterpret_cast<void**>(&host_fault), sizeof(FaultWord)), "pinned memory");
    *host_fault = no_fault;
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&fault), sizeof(FaultWord)), "memory");
    forget_fault();
  }

  void forget_fault() const {
    static_assert(no_fault == ~FaultWord{0});
    check_cuda(cudaMemsetAsync(fault, 0xFF, sizeof(FaultWord), stream), "setting memory");
  }

  ~State() {
    (void)cudaSetDevice(index);
    if (stream != nullptr) (void)cudaStreamSynchronize(stream);
    for (const Buffer& buffer : buffers) {
      if (buffer.copied != nullptr) (void)cudaEventDestroy(buffer.copied);
      if (buffer.memory != nullptr) (void)cudaFreeHost(buffer.memory);
    }
    if (fault != nullptr) (void)cudaFree(fault);
    if (host_fault != nullptr) (void)cudaFreeHost(host_fault);
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
};

Runtime::Runtime(int index) : state_(std::make_unique<State>()) {
  if (const std::string problem = gpu_problem(index); !problem.empty()) fail(ErrorKind::usage, "cuda:{}: {}", index, problem);
  // First of all, so that what describe_gpu() comes back to is this GPU: looking at another makes it hold memory there.
  cuda::check_cuda(cudaSetDevice(index), "choosing the device");
  gpu_ = describe_gpu(index);
  state_->index = index;
  state_->make();
}

Runtime::~Runtime() = default;

Stream Runtime::stream() const {
  check_cuda(cudaSetDevice(state_->index), "choosing the device");
  return state_->stream;
}

FaultWord* Runtime::fault() const { return state_->fault; }

FaultWord Runtime::take_fault() {
  const FaultWord found = std::exchange(*state_->host_fault, no_fault);
  if (found != no_fault) state_->forget_fault();
  return found;
}

std::unique_ptr<Allocator> Runtime::make_allocator() const { return std::make_unique<CudaAllocator>(state_->index); }

void Runtime::upload(void* device, std::span<const std::byte> host) {
  check_cuda(cudaSetDevice(state_->index), "choosing the device");
  for (std::size_t done = 0; done < host.size();) {
    const State::Buffer& buffer = state_->buffers[state_->next++ % state_->buffers.size()];
    const std::size_t bytes = std::min(State::buffer_bytes, host.size() - done);
    if (wait_) wait_([&] { return is_done(cudaEventQuery(buffer.copied)); });
    check_cuda(cudaEventSynchronize(buffer.copied), "copying to the GPU");
    std::memcpy(buffer.memory, host.data() + done, bytes);
    check_cuda(
        cudaMemcpyAsync(static_cast<std::byte*>(device) + done, buffer.memory, bytes, cudaMemcpyHostToDevice, state_->stream),
        "copying to the GPU");
    check_cuda(cudaEventRecord(buffer.copied, state_->stream), "copying to the GPU");
    done += bytes;
  }
}

void Runtime::download(const void* device, std::span<std::byte> host) {
  check_cuda(cudaSetDevice(state_->index), "choosing the device");
  // A copy to memory that is not pinned returns only when it is done.
  if (wait_) wait_([&] { return is_done(cudaStreamQuery(state_->stream)); });
  if (!host.empty()) {
    check_cuda(cudaMemcpyAsync(host.data(), device, host.size(), cudaMemcpyDeviceToHost, state_->stream),
               "copying from the GPU");
  }
  synchronize();
}

void Runtime::synchronize() {
  check_cuda(cudaSetDevice(state_->index), "choosing the device");
  if (wait_) wait_([&] { return is_done(cudaStreamQuery(state_->stream)); });
  // Kernels count in the GPU's own memory, where their atomics are sure to be atomic.
  check_cuda(cudaMemcpyAsync(state_->host_fault, state_->fault, sizeof(FaultWord), cudaMemcpyDeviceToHost, state_->stream),
             "copying from the GPU");
  check_cuda(cudaStreamSynchronize(state_->stream), "waiting for the GPU");
}

}  // namespace cuda
}  // namespace bitloom::nn
