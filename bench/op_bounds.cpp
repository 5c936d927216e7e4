#include "bench/op_bounds.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "bench/onednn_matmul.h"
#include "bench/op_workloads.h"
#include "core/buffer.h"

namespace bitloom::bench {
namespace {

class CpuBounds final : public Bounds {
 public:
  void multiply(DType dtype) override {
    std::optional<OnednnMatmul>& matmul = dtype == DType::f32 ? f32_matmul_ : bf16_matmul_;
    if (!matmul) matmul.emplace(dtype);
    matmul->run();
  }
  double flops(DType /*dtype*/) const override { return OnednnMatmul::flops(); }

  // In the way of bandwidth tests: a contiguous share per thread.
  void copy(double bytes) override {
    const auto size = static_cast<std::size_t>(bytes / 2);
    if (from_.size() < size) {
      from_ = Buffer<std::byte>(size);
      to_ = Buffer<std::byte>(size);
      std::memset(from_.data(), 1, size);
      std::memset(to_.data(), 2, size);
    }
    const auto threads = static_cast<std::size_t>(omp_get_max_threads());
    const std::size_t share = (size / threads + 63) / 64 * 64;
#pragma omp parallel for schedule(static)
    for (std::size_t thread = 0; thread < threads; ++thread) {
      const std::size_t first = std::min(thread * share, size);
      std::memcpy(to_.data() + first, from_.data() + first, std::min(share, size - first));
    }
  }
  const char* multiplies() const override { return "oneDNN's matmul"; }

 private:
  std::optional<OnednnMatmul> f32_matmul_, bf16_matmul_;
  Buffer<std::byte> from_{0}, to_{0};
};

class GpuBounds final : public Bounds {
 public:
  explicit GpuBounds(nn::Engine& engine) : engine_(engine) {}

  void multiply(DType dtype) override {
    auto found = squares_.find(dtype);
    if (found == squares_.end()) {
      const nn::Shape shape = {side, side};
      found = squares_
                  .try_emplace(dtype, Square{numbers(engine_, dtype, shape, 1), numbers(engine_, dtype, shape, 2),
                                             blank(engine_, dtype, shape)})
                  .first;
    }
    matmul(engine_, found->second.a, found->second.b, found->second.out);
  }
  double flops(DType /*dtype*/) const override { return 2.0 * side * side * side; }

  void copy(double bytes) override {
    const auto size = static_cast<std::size_t>(bytes / 2 / sizeof(float));
    if (from_.size() < size) {
      from_ = constant(engine_, DType::f32, {size}, 1);
      to_ = blank(engine_, DType::f32, {size});
    }
    nn::Tensor to = to_.slice(0, size);
    scale_add(engine_, 1, from_.slice(0, size), 0, to);
  }
  const char* multiplies() const override { return "cuBLASLt's matmul"; }

 private:
  static constexpr std::size_t side = 8192;
  struct Square {
    nn::Tensor a, b, out;
  };

  nn::Engine& engine_;
  std::map<DType, Square> squares_;
  nn::Tensor from_, to_;
};

}  // namespace

std::unique_ptr<Bounds> bounds_of(nn::Engine& engine) {
  if (engine.device() == nn::Device{}) return std::make_unique<CpuBounds>();
  return std::make_unique<GpuBounds>(engine);
}

}  // namespace bitloom::bench
