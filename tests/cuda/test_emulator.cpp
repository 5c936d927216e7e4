// The emulator of CUDA kernels itself: what it runs, and what it refuses.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <stdexcept>
#include <vector>

#include <cuda_platform.h>
#include <cuda_tensor_cores.h>
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using nn::cuda::launch;

namespace {

__global__ void number_threads(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] += static_cast<int>(thread + 1000 * block);
}

// Sums 1 .. threads in shared memory.
__global__ void sum_block(int* out) {
  __shared__ int values[256];
  values[threadIdx.x] = static_cast<int>(threadIdx.x) + 1;
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) values[threadIdx.x] += values[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[blockIdx.x] = values[0];
}

// The same with a barrier too few: every thread adds its number, and the first one reads what is there.
__global__ void sum_without_barrier(int* out) {
  __shared__ int sum;
  if (threadIdx.x == 0) sum = 0;
  __syncthreads();
  sum += static_cast<int>(threadIdx.x) + 1;
  if (threadIdx.x == 0) *out = sum;
}

__global__ void exchange_in_warps(int* out) {
  const int mine = static_cast<int>(threadIdx.x);
  int sum = mine;
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xFFFFFFFFU, sum, lanes);
  const int next = __shfl_down_sync(0xFFFFFFFFU, mine, 1);
  const int before = __shfl_up_sync(0xFFFFFFFFU, mine, 2);
  const int fifth = __shfl_sync(0xFFFFFFFFU, mine, 5);
  const unsigned even = __ballot_sync(0xFFFFFFFFU, mine % 2 == 0);
  int* mine_out = out + 5 * threadIdx.x;
  mine_out[0] = sum;
  mine_out[1] = next;
  mine_out[2] = before;
  mine_out[3] = fifth;
  mine_out[4] = static_cast<int>(even);
}

__global__ void leave_early(int* out) {
  if (threadIdx.x == 3) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

__global__ void read_shared(float* out) {
  out[threadIdx.x] = reinterpret_cast<float*>(nn::cuda::dynamic_shared())[threadIdx.x];
}

__global__ void exchange_some(int* out) { *out = __shfl_sync(0xFFFFU, 1, 0); }

__global__ void fail_in(unsigned thread) {
  __syncthreads();
  if (threadIdx.x == thread) throw std::runtime_error("thread " + std::to_string(thread));
  __syncthreads();
}

__global__ void load_misaligned(std::uint32_t* out) {
  std::uint32_t r[4];
  nn::cuda::load_matrices(r, nn::cuda::dynamic_shared() + 2);
  out[0] = r[0];
}

__global__ void copy_without_wait(const float* x, float* y) {
  auto* shared = reinterpret_cast<float*>(nn::cuda::dynamic_shared());
  nn::cuda::copy_async<4>(shared, x, true);
  nn::cuda::commit_copies();
  *y = *shared;
}

std::string complaint(const std::function<void()>& f) {
  try {
    f();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the emulator runs every thread of every block once", "[cuda]") {
  std::vector<int> out(3 * 2 * 2 * 5 * 3 * 2);
  for (int i = 0; i < 3; ++i) {
    std::fill(out.begin(), out.end(), 0);
    launch(nullptr, "number", {{3, 2, 2}, {5, 3, 2}}, number_threads, out.data());
    for (std::size_t j = 0; j < out.size(); ++j) REQUIRE(out[j] == static_cast<int>(j % 30 + 1000 * (j / 30)));
  }
}

TEST_CASE("the emulator's threads meet at barriers and exchange what they have", "[cuda]") {
  std::vector<int> sums(4);
  launch(nullptr, "sum", {4, 256}, sum_block, sums.data());
  CHECK(sums == std::vector<int>(4, 256 * 257 / 2));

  std::vector<int> out(64 * 5);
  launch(nullptr, "exchange", {1, 64}, exchange_in_warps, out.data());
  for (int i = 0; i < 64; ++i) {
    const int first = i / 32 * 32;
    CHECK(out[5 * i] == 32 * first + 496);
    CHECK(out[5 * i + 1] == (i % 32 == 31 ? i : i + 1));
    CHECK(out[5 * i + 2] == (i % 32 < 2 ? i : i - 2));
    CHECK(out[5 * i + 3] == first + 5);
    CHECK(static_cast<unsigned>(out[5 * i + 4]) == 0x55555555U);
  }
}

TEST_CASE("a barrier that is missing shows in the emulator: results depend on the order of threads", "[cuda]") {
  std::vector<int> results;
  for (int i = 0; i < 3; ++i) {
    int out = 0;
    launch(nullptr, "sum", {1, 64}, sum_without_barrier, &out);
    results.push_back(out);
  }
  CHECK_FALSE((results[0] == results[1] && results[1] == results[2]));
}

TEST_CASE("the emulator refuses what no GPU does", "[cuda][emulator]") {
  std::vector<int> out(2048);
  CHECK(has(complaint([&] { launch(nullptr, "k", {1, 8}, leave_early, out.data()); }), "kernel k: some threads wait"));
  CHECK(has(complaint([&] { launch(nullptr, "k", {0, 8}, sum_block, out.data()); }), "a grid of 0 x 1 x 1 blocks"));
  CHECK(has(complaint([&] { launch(nullptr, "k", {1, 2048}, sum_block, out.data()); }), "2048 x 1 x 1 threads"));
  CHECK(has(complaint([&] { launch(nullptr, "k", {{1, 65536}, 8}, sum_block, out.data()); }), "1 x 65536 x 1 blocks"));
  CHECK(has(complaint([&] { launch(nullptr, "k", {1, 8, 200000}, sum_block, out.data()); }), "200000 bytes"));
  CHECK(has(complaint([&] { launch(nullptr, "k", {1, 32}, exchange_some, out.data()); }), "less than a warp"));
  CHECK(complaint([&] { launch(nullptr, "k", {1, 64}, fail_in, 7U); }) == "thread 7");
  // Afterwards it works again.
  launch(nullptr, "sum", {1, 256}, sum_block, out.data());
  CHECK(out[0] == 256 * 257 / 2);
}

TEST_CASE("shared memory that nobody wrote is NaN in the emulator", "[cuda]") {
  std::vector<float> out(32);
  launch(nullptr, "read", {1, 32, 128}, read_shared, out.data());
  for (const float x : out) CHECK(std::isnan(x));
}

TEST_CASE("what was copied and is read too early is sometimes NaN in the emulator", "[cuda]") {
  const float x = 1;
  std::vector<float> seen(2);
  for (float& value : seen) launch(nullptr, "copy", {1, 1, 16}, copy_without_wait, &x, &value);
  CHECK((std::isnan(seen[0]) != std::isnan(seen[1])));
}

TEST_CASE("fragments that are not aligned are refused", "[cuda][emulator]") {
  std::vector<std::uint32_t> out(32 * 4);
  CHECK_THROWS_AS(launch(nullptr, "k", {1, 32, 512}, load_misaligned, out.data()), std::logic_error);
}
