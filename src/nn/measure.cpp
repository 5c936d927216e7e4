#include "nn/measure.h"

#include <algorithm>
#include <cmath>

#include "core/clock.h"
#include "nn/ops.h"

namespace bitloom::nn {
namespace {

// Of the fastest call. The first, which may have to prepare something, does not count.
template <typename F>
double fastest(Engine& engine, double seconds, F&& f) {
  f();
  engine.synchronize();
  double best = 0;
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < 2 || seconds_since(start) < seconds; ++i) {
    const Clock::time_point begin = Clock::now();
    f();
    engine.synchronize();
    const double took = seconds_since(begin);
    best = best == 0 ? took : std::min(best, took);
  }
  return best;
}

}  // namespace

double measure_matmul(Engine& engine, DType values, double seconds) {
  // A GPU needs more work at once, which it does in little time.
  const std::size_t size = engine.device().kind == Device::Kind::cpu ? 1024 : 8192;
  Tensor a = engine.empty({size, size}, values, Use::workspace);
  Tensor b = engine.empty({size, size}, values, Use::workspace);
  Tensor c = engine.empty({size, size}, values, Use::workspace);
  fill(engine, a, 0.5);
  fill(engine, b, 0.25);
  return 2.0 * std::pow(size, 3) / fastest(engine, seconds, [&] { matmul(engine, a, b, c); });
}

double measure_copy(Engine& engine, double seconds) {
  constexpr std::size_t size = 64 << 20;
  Tensor from = engine.zeros({size}, DType::f32, Use::workspace);
  Tensor to = engine.zeros({size}, DType::f32, Use::workspace);
  return 2.0 * static_cast<double>(from.bytes()) / fastest(engine, seconds, [&] { scale_add(engine, 1, from, 0, to); });
}

}  // namespace bitloom::nn
