// Tensor cores as cuda_tensor_cores.h has them: fragments that are filled as PTX documents it, against plain loops.
#include <cmath>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include <cuda_tensor_cores.h>
#include "core/half.h"
#include "tests/cases/case.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"

using namespace bitloom;
using namespace bitloom::test;
using nn::cuda::launch;

namespace {

constexpr int m = 16, n = 8, k = 16;

std::uint32_t pair_of(std::uint16_t low, std::uint16_t high) { return low | static_cast<std::uint32_t>(high) << 16U; }

// c (m,n) += a (m,k) b (k,n), by one warp.
template <bool is_bf16>
__global__ void multiply(const std::uint16_t* a, const std::uint16_t* b, float* c) {
  const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
  std::uint32_t a_part[4], b_part[2];
  for (int i = 0; i < 4; ++i) {
    const std::uint16_t* at = a + (g + 8 * (i % 2)) * k + 2 * t + 8 * (i / 2);
    a_part[i] = pair_of(at[0], at[1]);
  }
  for (int i = 0; i < 2; ++i) b_part[i] = pair_of(b[(2 * t + 8 * i) * n + g], b[(2 * t + 1 + 8 * i) * n + g]);
  float c_part[4];
  for (int i = 0; i < 4; ++i) c_part[i] = c[(g + 8 * (i / 2)) * n + 2 * t + i % 2];
  if (is_bf16) {
    nn::cuda::multiply_bf16(c_part, a_part, b_part[0], b_part[1]);
  } else {
    nn::cuda::multiply_f16(c_part, a_part, b_part[0], b_part[1]);
  }
  for (int i = 0; i < 4; ++i) c[(g + 8 * (i / 2)) * n + 2 * t + i % 2] = c_part[i];
}

// Rows of 8 numbers in order, from shared memory; then the same transposed.
__global__ void load_four(std::uint32_t* out) {
  auto* rows = reinterpret_cast<std::uint16_t*>(nn::cuda::dynamic_shared());
  for (unsigned i = 0; i < 8; ++i) rows[8 * threadIdx.x + i] = static_cast<std::uint16_t>(8 * threadIdx.x + i);
  __syncwarp();
  std::uint32_t r[4];
  nn::cuda::load_matrices(r, rows + 8 * threadIdx.x);
  for (int i = 0; i < 4; ++i) out[8 * threadIdx.x + i] = r[i];
  nn::cuda::load_matrices_transposed(r, rows + 8 * threadIdx.x);
  for (int i = 0; i < 4; ++i) out[8 * threadIdx.x + 4 + i] = r[i];
}

__global__ void load_misaligned(std::uint32_t* out) {
  std::uint32_t r[4];
  nn::cuda::load_matrices(r, nn::cuda::dynamic_shared() + 2);
  out[0] = r[0];
}

// Each thread's floats in two groups, of which the second, `count` of them, may be missing.
__global__ void copy_two_groups(const float* x, float* y, unsigned count) {
  auto* shared = reinterpret_cast<float*>(nn::cuda::dynamic_shared()) + 4 * threadIdx.x;
  nn::cuda::copy_async<4>(shared, x + 2 * threadIdx.x, true);
  nn::cuda::commit_copies();
  nn::cuda::copy_async<4>(shared + 1, x + 2 * threadIdx.x + 1, threadIdx.x < count);
  nn::cuda::commit_copies();
  nn::cuda::wait_for_copies<1>();
  y[2 * threadIdx.x] = shared[0];
  nn::cuda::wait_for_copies<0>();
  y[2 * threadIdx.x + 1] = shared[1];
}

__global__ void copy_without_wait(const float* x, float* y) {
  auto* shared = reinterpret_cast<float*>(nn::cuda::dynamic_shared());
  nn::cuda::copy_async<4>(shared, x, true);
  nn::cuda::commit_copies();
  *y = *shared;
}

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
  std::vector<float> c(expected.begin(), expected.end());
  for (int i = 0; i < m; ++i) {
    for (int j = 0; j < n; ++j) {
      for (int l = 0; l < k; ++l) expected[i * n + j] += to_float(a[i * k + l]) * to_float(b[l * n + j]);
    }
  }
  launch(nullptr, "multiply", {1, 32}, multiply<is_bf16>, &a[0].bits, &b[0].bits, c.data());
  CHECK(compare(std::vector<double>(c.begin(), c.end()), expected, 1e-6) == "");
}

TEST_CASE("matrices are loaded as fragments", "[cuda]") {
  std::vector<std::uint32_t> out(32 * 8);
  launch(nullptr, "load", {1, 32, 512}, load_four, out.data());
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t g = lane / 4, t = lane % 4;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const std::uint32_t first = 64 * i;
      CHECK(out[8 * lane + i] == ((first + 8 * g + 2 * t) | (first + 8 * g + 2 * t + 1) << 16U));
      CHECK(out[8 * lane + 4 + i] == ((first + 8 * (2 * t) + g) | (first + 8 * (2 * t + 1) + g) << 16U));
    }
  }
}

TEST_CASE("copies are there when they were waited for, and what is missing is zero", "[cuda]") {
  std::vector<float> x(64), y(64);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i) + 1;
  for (int time = 0; time < 2; ++time) {
    launch(nullptr, "copy", {1, 32, 512}, copy_two_groups, x.data(), y.data(), 20U);
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == (i % 2 == 1 && i / 2 >= 20 ? 0 : x[i]));
  }
  // Read too early, it is sometimes NaN: what nobody wrote.
  std::vector<float> seen(2);
  for (float& value : seen) launch(nullptr, "copy", {1, 1, 16}, copy_without_wait, x.data(), &value);
  CHECK((std::isnan(seen[0]) != std::isnan(seen[1])));
}

TEST_CASE("fragments that are not aligned are refused", "[cuda][emulator]") {
  std::vector<std::uint32_t> out(32 * 4);
  CHECK_THROWS_AS(launch(nullptr, "k", {1, 32, 512}, load_misaligned, out.data()), std::logic_error);
}
