#include "nn/engine.h"

#include <fmt/ranges.h>
#include <algorithm>
#include <array>
#include <utility>

#include "core/error.h"
#include "core/field.h"
#include "nn/backend.h"

namespace bitloom::nn {
namespace {

struct BackendRow {
  std::string_view name;
  Device::Kind kind;
  std::string (*problem)(int index);  // why it cannot run on that device, or ""
  std::unique_ptr<Backend> (*make)(int index);
};

std::string no_problem(int /*index*/) { return ""; }

// The default of a kind of device first.
constexpr std::array backend_table = {
    BackendRow{"cpu", Device::Kind::cpu, no_problem, [](int) { return make_cpu_backend(); }},
    BackendRow{"ref", Device::Kind::cpu, no_problem, [](int) { return make_ref_backend(); }},
    BackendRow{"cuda", Device::Kind::cuda, gpu_problem, make_cuda_backend},
};

std::vector<std::string_view> backends_of(Device::Kind kind) {
  std::vector<std::string_view> names;
  for (const BackendRow& row : backend_table) {
    if (row.kind == kind) names.push_back(row.name);
  }
  return names;
}

}  // namespace

std::vector<std::string> backends() {
  std::vector<std::string> names;
  for (const BackendRow& row : backend_table) {
    if (row.problem(0).empty()) names.emplace_back(row.name);
  }
  return names;
}

Engine::Engine(Device device, std::string_view backend) {
  for (const BackendRow& row : backend_table) {
    if (row.kind != device.kind || (!backend.empty() && backend != row.name)) continue;
    check_device(device);
    backend_ = row.make(device.index);
    name_ = row.name;
    pool_ = Pool::make(device, backend_->make_allocator());
    backend_->use_pool(pool_);
    return;
  }
  fail_field(ErrorKind::usage, "backend", "'{}' does not run on {}; expected {}", backend, name_of(device),
             fmt::join(backends_of(device.kind), " or "));
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

std::shared_ptr<const Engine::Look> Engine::watch(Look look) {
  auto shared = std::make_shared<const Look>(std::move(look));
  backend_->watch(shared);
  return shared;
}

void* Engine::native_stream() { return backend_->native_stream(); }

std::vector<std::string> Engine::take_notes() { return backend_->take_notes(); }

}  // namespace bitloom::nn
