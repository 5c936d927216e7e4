#include "nn/measure.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/clock.h"
#include "core/random.h"
#include "nn/ops.h"

namespace bitloom::nn {
namespace {

// Seconds of the fastest call. The first, which may have to prepare something, does not count.
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

// Rows and columns of the matrices: on a GPU many tiles for each multiprocessor (a tile is 256 long at most); few for plain
// loops, which take seconds for what others do in a hundredth of one.
std::size_t measured_side(const Engine& engine) {
  const Device device = engine.device();
  if (device.kind == Device::Kind::cpu) return engine.backend_name() == "ref" ? 128 : 1024;
  const auto multiprocessors = static_cast<std::size_t>(describe_gpu(device.index).multiprocessors);
  return std::max<std::size_t>(1, multiprocessors / 4) * 256;
}

// Numbers of a normal distribution, rows of which repeat: on a GPU, products of equal numbers draw less power than those of a
// net, so that its clock is higher.
Tensor normal_matrix(Engine& engine, std::size_t size, DType values, std::uint64_t seed) {
  const std::size_t rows = std::min<std::size_t>(size, 256);
  std::vector<float> numbers(rows * size);
  Random random(seed, Stream::test);
  for (float& x : numbers) x = static_cast<float>(random.normal());
  const Tensor block = engine.from<float>(numbers, {rows, size}, Use::workspace);
  Tensor matrix = engine.empty({size, size}, values, Use::workspace);
  for (std::size_t row = 0; row < size; row += rows) {
    const std::size_t end = std::min(row + rows, size);
    Tensor part = matrix.slice(row, end);
    scale_add(engine, 1, block.slice(0, end - row), 0, part);
  }
  return matrix;
}

// The result of f(). Tensors of the sizes that it measures do not come back: their memory is not kept.
template <typename F>
double measured(Engine& engine, F&& f) {
  const double speed = f();
  engine.pool().trim();
  return speed;
}

}  // namespace

double measure_matmul(Engine& engine, DType values, double seconds) {
  return measured(engine, [&] {
    const std::size_t size = measured_side(engine);
    const Tensor a = normal_matrix(engine, size, values, 1);
    const Tensor b = normal_matrix(engine, size, values, 2);
    Tensor c = engine.empty({size, size}, values, Use::workspace);
    return 2.0 * std::pow(size, 3) / fastest(engine, seconds, [&] { matmul(engine, a, b, c); });
  });
}

double measure_copy(Engine& engine, double seconds) {
  return measured(engine, [&] {
    constexpr std::size_t size = 64 << 20;
    Tensor from = engine.zeros({size}, DType::f32, Use::workspace);
    Tensor to = engine.zeros({size}, DType::f32, Use::workspace);
    return 2.0 * static_cast<double>(from.bytes()) / fastest(engine, seconds, [&] { scale_add(engine, 1, from, 0, to); });
  });
}

}  // namespace bitloom::nn
