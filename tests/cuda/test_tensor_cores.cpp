// Tensor cores as cuda_tensor_cores.h has them: fragments that are filled as PTX documents it, against plain loops.
#include <cstdint>
#include <type_traits>
#include <vector>

#include "core/half.h"
#include "nn/engine.h"
#include "tests/cases/case.h"
#include "tests/cuda/tensor_core_kernels.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

constexpr int m = 16, n = 8, k = 16;

nn::cuda::Stream stream_of(nn::Engine& engine) { return static_cast<nn::cuda::Stream>(engine.native_stream()); }

}  // namespace

TEMPLATE_TEST_CASE("a warp's product is that of plain loops", "[cuda]", bf16, f16) {
  constexpr bool is_bf16 = std::is_same_v<TestType, bf16>;
  const auto rounded = [](const std::vector<double>& numbers) {
    std::vector<TestType> values(numbers.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if constexpr (is_bf16) {
        values[i] = to_bf16(static_cast<float>(numbers[i]));
      } else {
        values[i] = to_f16(static_cast<float>(numbers[i]));
      }
    }
    return values;
  };
  const std::vector<TestType> a = rounded(normal_numbers(m * k, 1)), b = rounded(normal_numbers(k * n, 2));
  std::vector<double> expected = normal_numbers(m * n, 3);
  const std::vector<float> before(expected.begin(), expected.end());
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int l = 0; l < k; ++l) expected[i * n + j] += to_float(a[i * k + l]) * to_float(b[l * n + j]);
    }
  }
  nn::Engine engine(device_of("cuda"), "cuda");
  const nn::Tensor on_a = engine.from<TestType>(a, {m, k}, nn::Use::data),
                   on_b = engine.from<TestType>(b, {k, n}, nn::Use::data);
  const nn::Tensor c = engine.from<float>(before, {m, n}, nn::Use::data);
  multiply_tile(stream_of(engine), is_bf16 ? nn::cuda::Number::bf16 : nn::cuda::Number::f16, on_a.data(), on_b.data(),
                static_cast<float*>(c.data()));
  const std::vector<float> is = engine.to_host<float>(c);
  CHECK(compare(std::vector<double>(is.begin(), is.end()), expected, 1e-6) == "");
}

TEST_CASE("matrices are loaded as fragments", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  const nn::Tensor on_device = engine.zeros({32, 8}, DType::i32, nn::Use::data);
  load_fragments(stream_of(engine), static_cast<std::uint32_t*>(on_device.data()));
  const std::vector<std::int32_t> out = engine.to_host<std::int32_t>(on_device);
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t g = lane / 4, t = lane % 4;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t first = 64 * i;
      CHECK(static_cast<std::uint32_t>(out[8 * lane + i]) == ((first + 8 * g + 2 * t) | (first + 8 * g + 2 * t + 1) << 16U));
      CHECK(static_cast<std::uint32_t>(out[8 * lane + 4 + i]) ==
            ((first + 8 * (2 * t) + g) | (first + 8 * (2 * t + 1) + g) << 16U));
    }
  }
}

TEST_CASE("copies are there when they were waited for, and what is missing is zero", "[cuda]") {
  nn::Engine engine(device_of("cuda"), "cuda");
  std::vector<float> x(64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 1;
  const nn::Tensor from = engine.from<float>(x, {x.size()}, nn::Use::data);
  const nn::Tensor to = engine.zeros({x.size()}, DType::f32, nn::Use::data);
  for (int time = 0; time < 2; ++time) {
    copy_in_groups(stream_of(engine), static_cast<const float*>(from.data()), static_cast<float*>(to.data()), 20U);
    const std::vector<float> y = engine.to_host<float>(to);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == (i % 2 == 1 && i / 2 >= 20 ? 0 : x[i]));
  }
}
