// A training step allocates no memory once its buffers have grown. This file counts what the whole test program allocates.
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "tests/layerwise/small_stage.h"
#include "tests/support/catch.h"
#include "tests/support/threads.h"

namespace {

std::atomic<std::size_t> allocations{0};

void* counted(std::size_t size, std::size_t alignment) {
  ++allocations;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// Not inlined: the compiler would see that free() ends what its own operator new began.
[[gnu::noinline]] void* operator new(std::size_t size) { return counted(size, alignof(std::max_align_t)); }
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return counted(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return counted(size, alignof(std::max_align_t));
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("steps allocate nothing once their buffers have grown", "[stage]") {
  // One thread, so that no thread meets its first image late.
  const Threads limit(1);
  for (StageCase c : all_stage_cases()) {
    INFO(c.name);
    c.stage.epochs = 40;
    mpi::Comm comm;
    SmallStage small(c, simd::kernels(), comm);
    const TensorFile middle = small.run(60);
    small.run(30);
    // The same steps once more: what they need has been there.
    small.stage().load(middle);
    const std::size_t before = allocations;
    for (int step = 0; step < 30; ++step) small.stage().step();
    CHECK(allocations - before == 0);
  }
}
