// Runs CUDA kernels on the CPU, block after block: the threads of a block are fibers that take turns at barriers and at what a
// warp exchanges. Strict where hardware is lenient: a barrier that not every thread of the block (of the warp) reaches,
// launches that no GPU of compute capability 8.0 takes, and reads of shared memory that nobody wrote (NaN) are errors. The
// order of blocks and threads changes from launch to launch, so that a barrier that is missing gives other bits.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <type_traits>

struct CUstream_st;

namespace bitloom::emulated {

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}  // implicit, as CUDA has it
};

// Indices of the thread that runs.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

// Throws std::logic_error that names the kernel for what no GPU would do.
void run_grid(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& kernel);

void block_barrier();
void warp_barrier();
unsigned char* dynamic_shared();

// The `bytes` bytes of every lane of the warp, once all are there: lane i's at i * lane_bytes. Valid until this lane's next
// call but one.
inline constexpr std::size_t lane_bytes = 64;
const unsigned char* exchange_bytes(const void* mine, std::size_t bytes);
unsigned lane();
// Throws std::logic_error unless all lanes are meant.
void require_whole_warp(unsigned mask);

// The value of lane from(own lane).
template <typename T, typename From>
T exchange(unsigned mask, T value, From from) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= lane_bytes);
  require_whole_warp(mask);
  const unsigned char* all = exchange_bytes(&value, sizeof value);
  T result;
  std::memcpy(&result, all + lane_bytes * from(lane()), sizeof result);
  return result;
}

unsigned ballot(unsigned mask, bool predicate);

// Copies of this thread that go on beside the computation, in groups (cp.async). In every other launch they are done at once,
// in the others when they are waited for. `from` nullptr: zeros.
struct Copy {
  void* to = nullptr;
  const void* from = nullptr;
  std::size_t bytes = 0;
};
void start_copy(const Copy& copy);
void commit_copies();
// Until all but the last `pending` groups are done.
void wait_for_copies(std::size_t pending);

// Throws std::logic_error: no GPU does `what`.
[[noreturn]] void refuse(const char* what);

}  // namespace bitloom::emulated
