#include "nn/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <string_view>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "core/patience.h"

namespace bitloom::nn {

std::unique_ptr<Backend> make_cuda_backend(int gpu) { return std::make_unique<cuda::CudaBackend>(gpu); }

namespace cuda {

Number number_of(const Tensor& tensor) {
  switch (tensor.dtype()) {
    case DType::f32: return Number::f32;
    case DType::bf16: return Number::bf16;
    case DType::f16: return Number::f16;
    default: fail(ErrorKind::internal, "{} is no tensor of numbers of this device", to_text(tensor));
  }
}

Pool& Runtime::pool() {
  if (pool_ == nullptr) pool_ = Pool::make({Device::Kind::cuda, 0}, make_allocator());
  return *pool_;
}

CudaBackend::CudaBackend(int gpu)
    : runtime_(gpu), blas_(runtime_), dnn_(runtime_, notes_), masks_(runtime_), workspace_(runtime_) {}

std::unique_ptr<Allocator> CudaBackend::make_allocator() const { return runtime_.make_allocator(); }

bool CudaBackend::supports(DType dtype) const { return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16; }

void CudaBackend::write(void* device, std::span<const std::byte> host) { runtime_.upload(device, host); }

void CudaBackend::read(const void* device, std::span<std::byte> host) {
  runtime_.download(device, host);
  check_faults();
}

void CudaBackend::synchronize() {
  runtime_.synchronize();
  check_faults();
}

void CudaBackend::watch(const std::weak_ptr<const Engine::Look>& look) {
  looks_.push_back(look);
  runtime_.wait_by([this](const std::function<bool()>& ready) { wait(ready); });
}

void CudaBackend::wait(const std::function<bool()>& ready) {
  // As mpi/ waits: short waits are most of them.
  constexpr double spin_seconds = 50e-6;
  Patience patience(Clock::now());
  for (;;) {
    std::erase_if(looks_, [](const auto& look) { return look.expired(); });
    if (looks_.empty()) return;
    const double waited = patience.waited(Clock::now());
    for (const auto& look : looks_) {
      if (const auto held = look.lock()) (*held)(waited);
    }
    if (ready()) return;
    if (waited > spin_seconds) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

void CudaBackend::check_faults() {
  const FaultWord fault = runtime_.take_fault();
  if (fault == no_fault) return;
  constexpr std::array<std::string_view, 3> texts = {
      "gather: ids[{}] is no row of the table",
      "scatter_add: ids[{}] is no row of the table",
      "cross_entropy: targets[{}] is neither -1 nor a class",
  };
  throw Error(ErrorKind::usage, fmt::format(fmt::runtime(texts.at(fault & 0xFFU)), fault >> 8U));
}

}  // namespace cuda
}  // namespace bitloom::nn
