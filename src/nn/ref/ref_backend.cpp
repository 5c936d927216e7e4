#include "nn/ref/ref_backend.h"

#include <cstring>

namespace bitloom::nn {
namespace ref {

std::unique_ptr<Allocator> RefBackend::make_allocator() const { return make_cpu_allocator(); }

bool RefBackend::supports(DType dtype) const {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16;
}

void RefBackend::write(void* device, std::span<const std::byte> host) {
  if (!host.empty()) std::memcpy(device, host.data(), host.size());
}

void RefBackend::read(const void* device, std::span<std::byte> host) {
  if (!host.empty()) std::memcpy(host.data(), device, host.size());
}

}  // namespace ref

std::unique_ptr<Backend> make_ref_backend() { return std::make_unique<ref::RefBackend>(); }

}  // namespace bitloom::nn
