#include "nn/engine.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>

#include "core/error.h"
#include "nn/backend.h"

namespace bitloom::nn {
namespace {

struct BackendRow {
  std::string_view name;
  Device::Kind kind;
  std::unique_ptr<Backend> (*make)();  // null if this machine cannot run it
};

// The default of a kind of device first.
constexpr std::array backend_table = {
    BackendRow{"cpu", Device::Kind::cpu, make_cpu_backend},
    BackendRow{"ref", Device::Kind::cpu, make_ref_backend},
};

}  // namespace

std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const BackendRow& row : backend_table) {
    if (row.make() != nullptr) names.emplace_back(row.name);
  }
  return names;
}

Engine::Engine(Device device, std::string_view backend) {
  for (const BackendRow& row : backend_table) {
    if (row.kind != device.kind || (!backend.empty() && backend != row.name)) continue;
    backend_ = row.make();
    if (backend_ == nullptr) continue;
    name_ = row.name;
    pool_ = Pool::make(device, backend_->make_allocator());
    return;
  }
  if (device.kind != Device::Kind::cpu && backend.empty()) {
    fail(ErrorKind::usage, "--device: {}: this program was built without CUDA, or there is no such GPU; expected cpu",
         name_of(device));
  }
  fail(ErrorKind::usage, "--backend: '{}' does not run on {}; expected one of {}", backend, name_of(device),
       fmt::join(backends(), ", "));
}

Engine::~Engine() = default;

Device Engine::device() const { return pool_->device(); }

Tensor Engine::empty(const Shape& shape, DType dtype, Use use) { return {*pool_, shape, dtype, use}; }

Tensor Engine::zeros(const Shape& shape, DType dtype, Use use) {
  Tensor tensor(*pool_, shape, dtype, use);
  backend_->fill(tensor, 0);
  return tensor;
}

void Engine::write(Tensor& tensor, std::span<const std::byte> bytes) {
  if (bytes.size() != tensor.bytes()) {
    fail(ErrorKind::internal, "tensor {} cannot be made of {} bytes", to_text(tensor), bytes.size());
  }
  backend_->write(tensor.data(), bytes);
}

void Engine::read(const Tensor& tensor, DType dtype, std::span<std::byte> bytes) {
  if (tensor.dtype() != dtype || bytes.size() != tensor.bytes()) {
    fail(ErrorKind::internal, "tensor {} is read as {} bytes of {}", to_text(tensor), bytes.size(), to_text(dtype));
  }
  backend_->read(tensor.data(), bytes);
}

bool Engine::supports(DType values) const { return backend_->supports(values); }

void Engine::synchronize() { backend_->synchronize(); }

}  // namespace bitloom::nn
