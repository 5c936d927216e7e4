#include "nn/cpu/cpu_backend.h"

#include <cstring>

#include "nn/cpu/onednn.h"

namespace bitloom::nn {

CpuBackend::CpuBackend() : onednn_(std::make_unique<OneDnn>()) {}

CpuBackend::~CpuBackend() = default;

std::unique_ptr<Allocator> CpuBackend::make_allocator() const { return make_cpu_allocator(); }

void CpuBackend::use_pool(const std::shared_ptr<Pool>& pool) { onednn_->use_pool(pool); }

bool CpuBackend::supports(DType dtype) const { return dtype == DType::f32 || dtype == DType::bf16; }

void CpuBackend::write(void* device, std::span<const std::byte> host) {
  if (!host.empty()) std::memcpy(device, host.data(), host.size());
}

void CpuBackend::read(const void* device, std::span<std::byte> host) {
  if (!host.empty()) std::memcpy(host.data(), device, host.size());
}

void CpuBackend::synchronize() {}

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace bitloom::nn
