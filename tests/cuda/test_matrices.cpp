// Products of matrices on CUDA where the library has nothing to do, or may not do it; and the memory of calls.
#include <cmath>
#include <limits>
#include <vector>

#include "nn/cuda/scratch.h"
#include "nn/measure.h"
#include "nn/ops.h"
#include "tests/cuda/tensors.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a product of no terms is the function of the bias", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  for (const std::size_t n : {3U, 4U}) {
    const nn::Tensor a = engine.empty({2, 0}, DType::f32, nn::Use::data);
    const nn::Tensor b = engine.empty({0, n}, DType::f32, nn::Use::data);
    const std::vector<float> bias(n, -1.5F);
    for (const char* name : {"relu", "gelu_tanh", "tanh"}) {
      const nn::Activation& activation = nn::find_activation(name);
      nn::Tensor out = engine.empty({2, n}, DType::f32, nn::Use::activations);
      nn::matmul(engine, a, b, out, {.bias = floats(engine, bias, {n}), .activation = &activation});
      for (const float value : engine.to_host<float>(out)) CHECK(std::abs(value - activation.value(-1.5)) < 1e-6);
    }
  }
}

TEST_CASE("relu of a product does not hide what is no number", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const nn::Tensor a = floats(engine, {std::numeric_limits<float>::quiet_NaN(), -1, 2}, {3, 1});
  const nn::Tensor b = floats(engine, {1, 1}, {1, 2});
  nn::Tensor out = engine.empty({3, 2}, DType::f32, nn::Use::activations);
  nn::matmul(engine, a, b, out, {.activation = &nn::find_activation("relu")});
  const std::vector<float> values = engine.to_host<float>(out);
  CHECK(std::isnan(values[0]));
  CHECK(std::vector<float>(values.begin() + 2, values.end()) == std::vector<float>{0, 0, 2, 2});
}

TEST_CASE("several products share a bias and a function", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const nn::Activation& activation = nn::find_activation("gelu_tanh");
  const nn::Tensor a = floats(engine, {1, 2, 3, 4}, {2, 2, 1});
  const nn::Tensor b = floats(engine, {1, -1, 0.5F, 2}, {2, 1, 2});
  nn::Tensor out = engine.empty({2, 2, 2}, DType::f32, nn::Use::activations);
  nn::matmul(engine, a, b, out, {.bias = floats(engine, {0.25F, -0.5F}, {2}), .activation = &activation});
  const std::vector<double> before = {1.25, -1.5, 2.25, -2.5, 1.75, 5.5, 2.25, 7.5};
  const std::vector<float> values = engine.to_host<float>(out);
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(std::abs(values[i] - activation.value(before[i])) < 1e-5);
}

// A bias of f32 that begins between multiples of 16 bytes went to the library as it was.
TEST_CASE("a bias may begin anywhere", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::size_t n = 16;
  std::vector<float> values(n + 4);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  const nn::Tensor all = floats(engine, values, {n + 4});
  const nn::Tensor a = floats(engine, std::vector<float>(8 * 8, 0.5F), {8, 8});
  const nn::Tensor b = floats(engine, std::vector<float>(8 * n, 0.25F), {8, n});
  for (const std::size_t first : {0U, 1U, 2U, 3U, 4U}) {
    INFO("from element " << first);
    nn::Tensor out = engine.empty({8, n}, DType::f32, nn::Use::activations);
    nn::matmul(engine, a, b, out, {.bias = all.slice(first, first + n)});
    const std::vector<float> result = engine.to_host<float>(out);
    for (std::size_t i = 0; i < result.size(); ++i) REQUIRE(result[i] == static_cast<float>(1 + first + i % n));
  }
}

TEST_CASE("the memory of calls grows, is kept, and says when there is no more", "[cuda]") {
  nn::cuda::Runtime runtime(0);
  nn::cuda::Scratch scratch(runtime);
  void* small = scratch.get(100);
  REQUIRE(small != nullptr);
  CHECK(scratch.get(256) == small);
  CHECK(scratch.get(1) == small);
  void* large = scratch.get(1 << 20);
  CHECK(reinterpret_cast<std::uintptr_t>(large) % 256 == 0);
  CHECK(scratch.get(100) == large);
  CHECK(has(message_of(ErrorKind::io, [&] { scratch.get(std::size_t{1} << 60U); }), "out of memory on cuda:0"));
  CHECK(scratch.get(100) != nullptr);

  // As much as there is, in a pool that holds most of it without using it.
  const std::shared_ptr<nn::Pool> pool = nn::Pool::make({nn::Device::Kind::cuda, 0}, runtime.make_allocator());
  runtime.use_pool(pool);
  nn::cuda::Scratch counted(runtime);
  pool->allocate(std::size_t{600} << 20U, nn::Use::stash).reset();
  CHECK(counted.get(std::size_t{600} << 20U) != nullptr);
  CHECK(pool->count(nn::Use::workspace).now == std::size_t{600} << 20U);
}

TEST_CASE("tensors take as much of a GPU's memory as they have bytes", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const std::uint64_t before = engine.pool().reserved();
  const nn::Tensor tensor = engine.empty({std::size_t{1} << 18U}, DType::f32, nn::Use::data);
  CHECK(engine.pool().reserved() - before == tensor.bytes());
}

TEST_CASE("the speed of a GPU is measured by products that it has done", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  CHECK(nn::measure_matmul(engine, DType::f32, 0) > 0);
}
