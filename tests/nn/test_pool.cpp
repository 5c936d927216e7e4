#include "nn/pool.h"

#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "nn/engine.h"
#include "nn/ops.h"
#include "tests/support/backends.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

namespace bitloom::nn {
namespace {

using test::device_of;
using test::has;
using test::message_of;
using test::tested_backends;

// Records the requests to a device that has room for `room` bytes.
struct Device0 {
  std::uint64_t room = std::uint64_t{1} << 40U;
  std::uint64_t held = 0;
  std::uint64_t reserve = 0;  // below which the rest is scarce
  std::size_t tail = 64;
  bool is_broken = false;
  int allocations = 0;
  int releases = 0;
};

class CountingAllocator final : public Allocator {
 public:
  explicit CountingAllocator(Device0& device) : device_(device), real_(make_cpu_allocator()) {}
  void* allocate(std::size_t bytes) override {
    CHECK(bytes % 64 == 0);
    if (device_.is_broken) fail(ErrorKind::io, "a kernel has failed");
    if (device_.held + bytes > device_.room) throw OutOfMemory(ErrorKind::io, "the device is full");
    device_.held += bytes;
    ++device_.allocations;
    return real_->allocate(bytes);
  }
  void release(void* memory, std::size_t bytes) noexcept override {
    device_.held -= bytes;
    ++device_.releases;
    real_->release(memory, bytes);
  }
  bool is_scarce(std::size_t bytes) const override { return device_.held + bytes + device_.reserve > device_.room; }
  std::size_t tail() const override { return device_.tail; }

 private:
  Device0& device_;
  std::unique_ptr<Allocator> real_;
};

std::shared_ptr<Pool> make_pool(Device0& device) { return Pool::make({}, std::make_unique<CountingAllocator>(device)); }

}  // namespace

TEST_CASE("a pool counts bytes by what they are for, as they were asked for", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  auto parameters = pool->allocate(1000, Use::parameters);
  {
    const auto stash = pool->allocate(333, Use::stash);
    const auto more = pool->allocate(7, Use::stash);
    CHECK(pool->count(Use::stash).now == 340);
    CHECK(pool->total().now == 1340);
  }
  const auto stash = pool->allocate(100, Use::stash);
  CHECK(pool->count(Use::parameters).now == 1000);
  CHECK(pool->count(Use::stash).now == 100);
  CHECK(pool->count(Use::stash).peak == 340);
  CHECK(pool->count(Use::optimizer).peak == 0);
  CHECK(pool->total().now == 1100);
  CHECK(pool->total().peak == 1340);
  pool->reset_peaks();
  CHECK(pool->count(Use::stash).peak == 100);
  CHECK(pool->total().peak == 1100);
  parameters.reset();
  CHECK(pool->count(Use::parameters).now == 0);
  CHECK(pool->count(Use::parameters).peak == 1000);
  CHECK(pool->total().peak == 1100);
}

TEST_CASE("a block of a pool may change what it is for", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  auto block = pool->allocate(100, Use::activations);
  pool->count_as(block.get(), Use::stash);
  CHECK(pool->count(Use::activations).now == 0);
  CHECK(pool->count(Use::stash).now == 100);
  CHECK(pool->count(Use::stash).peak == 100);
  CHECK(pool->total().now == 100);
  CHECK(pool->total().peak == 100);
  const std::byte* gone = block.get();
  block.reset();
  CHECK(pool->count(Use::stash).now == 0);
  CHECK(has(message_of(ErrorKind::internal, [&] { pool->count_as(gone, Use::data); }), "not in use"));
}

TEST_CASE("blocks are aligned, and 64 bytes behind them may be read", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  std::vector<std::shared_ptr<std::byte>> held;  // so that none is handed out again
  for (const std::size_t bytes : {0U, 1U, 63U, 64U, 65U, 1000U, 4096U, 100001U}) {
    INFO(bytes);
    const std::uint64_t before = device.held;
    const auto block = pool->allocate(bytes, Use::data);
    REQUIRE(block != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(block.get()) % 64 == 0);
    CHECK(device.held - before >= bytes + 64);
    CHECK(device.held - before <= bytes + bytes / 7 + 192);  // little is lost to rounding
    std::memset(block.get(), 1, bytes);
    held.push_back(block);
  }
}

// 64 bytes after each, rounded with it, took an eighth more of what tensors mostly ask for, also where no kernel reads them.
TEST_CASE("blocks of whole eighths of powers of two take no more than the tail beside themselves", "[nn][pool]") {
  for (const std::size_t tail : {0U, 64U}) {
    Device0 device;
    device.tail = tail;
    const auto pool = make_pool(device);
    for (const std::size_t bytes : {64U, 512U, 1U << 20U, 3U << 20U, 15U << 18U}) {
      const std::uint64_t before = device.held;
      const auto block = pool->allocate(bytes, Use::data);
      CHECK(device.held - before == bytes + tail);
    }
  }
}

TEST_CASE("a pool hands out blocks again that were given back", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  auto first = pool->allocate(10000, Use::stash);
  const std::byte* place = first.get();
  const auto other = pool->allocate(10000, Use::stash);
  CHECK(other.get() != place);
  first.reset();
  CHECK(device.releases == 0);
  auto again = pool->allocate(9999, Use::workspace);  // rounded to the same room
  CHECK(again.get() == place);
  CHECK(device.allocations == 2);
  const auto larger = pool->allocate(20000, Use::stash);
  CHECK(device.allocations == 3);

  const std::uint64_t reserved = pool->reserved();
  CHECK(reserved == device.held);
  again.reset();
  CHECK(pool->reserved() == reserved);
  pool->trim();
  CHECK(device.releases == 1);
  CHECK(pool->reserved() == device.held);
  CHECK(pool->reserved() < reserved);
}

TEST_CASE("a pool that is at its limit says what is in use", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  pool->set_limit(1 << 20U);
  const auto parameters = pool->allocate(600 << 10U, Use::parameters);
  const auto stash = pool->allocate(300 << 10U, Use::stash);
  const std::string message = message_of(ErrorKind::io, [&] { pool->allocate(200 << 10U, Use::activations); });
  INFO(message);
  CHECK(has(message, "out of memory on cpu"));
  CHECK(has(message, "for activations"));
  CHECK(has(message, "parameters"));
  CHECK(has(message, "stash"));
  CHECK(has(message, "limit"));
  CHECK_FALSE(has(message, "optimiser"));
  CHECK(pool->count(Use::activations).now == 0);
  CHECK(pool->total().now == 900U << 10U);
  CHECK(pool->allocate(124 << 10U, Use::activations) != nullptr);  // to the byte
  pool->set_limit(0);
  CHECK(pool->allocate(2 << 20U, Use::activations) != nullptr);
}

// Blocks that nobody used counted for nothing: processes held far more than their limit.
TEST_CASE("a pool gives free blocks back before more than its limit is reserved, as few as that takes", "[nn][pool]") {
  constexpr std::size_t kib = 1024;
  Device0 device;
  device.tail = 0;
  const auto pool = make_pool(device);
  pool->set_limit(88 * kib);  // an eighth more: 99 KiB
  for (const std::size_t size : {32U, 16U, 8U}) pool->allocate(size * kib, Use::stash).reset();
  const auto first = pool->allocate(40 * kib, Use::activations);
  CHECK(device.releases == 0);
  CHECK(device.held == 96 * kib);
  const auto second = pool->allocate(12 * kib, Use::activations);  // 9 KiB too many: 16 is the smallest that is enough
  CHECK(device.releases == 1);
  CHECK(device.held == 92 * kib);
  const auto third = pool->allocate(28 * kib, Use::activations);  // 21 KiB too many
  CHECK(device.releases == 2);
  CHECK(device.held == 88 * kib);
  CHECK(pool->allocate(8 * kib, Use::activations) != nullptr);  // a block that there is
  CHECK(device.releases == 2);
  CHECK(pool->reserved() == device.held);

  // A lower limit counts at once: 32 of 33.5 KiB too many, and the smallest block of 1.5 or more.
  Device0 another;
  another.tail = 0;
  const auto kept = make_pool(another);
  for (const std::size_t size : {32U, 16U, 8U}) kept->allocate(size * kib, Use::stash).reset();
  kept->set_limit(20 * kib);
  CHECK(another.releases == 2);
  CHECK(kept->reserved() == 16 * kib);
}

TEST_CASE("steps that fit below a pool's limit keep their blocks", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  pool->set_limit(100 << 10U);
  for (int step = 0; step < 3; ++step) {
    auto stash = pool->allocate(40 << 10U, Use::stash);
    const auto activations = pool->allocate(30 << 10U, Use::activations);
    stash.reset();
    const auto gradients = pool->allocate(20 << 10U, Use::activations);
    CHECK(device.allocations == 3);
  }
  CHECK(device.releases == 0);
}

TEST_CASE("steps whose tensors have all of a pool's limit keep their blocks, whose rooms are larger", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  pool->set_limit(99000);
  for (int step = 0; step < 3; ++step) {
    const auto stash = pool->allocate(33000, Use::stash);
    const auto activations = pool->allocate(33000, Use::activations);
    const auto gradients = pool->allocate(33000, Use::activations);
    CHECK(device.allocations == 3);
    CHECK(pool->reserved() > pool->limit());
  }
  CHECK(device.releases == 0);
}

TEST_CASE("scratch memory is reserved but not counted, is not refused for the limit, and is not kept", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  auto scratch = pool->allocate_scratch(1000);
  CHECK(reinterpret_cast<std::uintptr_t>(scratch.get()) % 64 == 0);
  std::memset(scratch.get(), 1, 1000);
  CHECK(pool->reserved() == 1024);
  CHECK(pool->total().peak == 0);
  pool->allocate(5000, Use::data).reset();
  pool->set_limit(pool->reserved());
  CHECK(device.releases == 0);
  const auto more = pool->allocate_scratch(10000);  // in place of the block that nobody uses
  CHECK(device.releases == 1);
  CHECK(device.held == 1024 + 10048);
  scratch.reset();
  CHECK(device.releases == 2);
  CHECK(pool->reserved() == device.held);
  device.room = device.held;
  CHECK(has(message_of(ErrorKind::io, [&] { pool->allocate_scratch(1); }), "out of memory on cpu"));
}

// Sums of weights' gradients by groups of images were hundreds of megabytes beside the pool.
TEST_CASE("free blocks make room for what convolutions work with", "[nn][pool][conv]") {
  Engine engine({}, "cpu");
  Pool& pool = engine.pool();
  const Tensor x = engine.zeros({4, 16, 16, 8}, DType::f32, Use::data);
  const Tensor dy = engine.zeros({4, 16, 16, 16}, DType::f32, Use::data);
  Tensor dw = engine.zeros({16, 8, 3, 3}, DType::f32, Use::data);
  const std::uint64_t in_tensors = pool.reserved();
  engine.empty({std::size_t{16} << 20U}, DType::u8, Use::data);
  const std::uint64_t with_free = pool.reserved();
  REQUIRE(with_free > in_tensors);
  pool.set_limit(with_free / 9 * 8 + 64);  // with an eighth more hardly above what is reserved
  pool.reset_peaks();
  conv2d_backward_weights(engine, {1, 1}, x, dy, dw);
  CHECK(pool.reserved() < with_free);
  CHECK(pool.reserved() >= in_tensors + 4 * dw.bytes());  // sums of each image
  CHECK(pool.total().peak == pool.total().now);
}

TEST_CASE("a pool gives back what it keeps before it says that the device is full", "[nn][pool]") {
  Device0 device;
  device.room = 100000;
  const auto pool = make_pool(device);
  auto block = pool->allocate(60000, Use::stash);
  block.reset();
  CHECK(pool->allocate(80000, Use::data) != nullptr);  // fits only without the first
  const auto kept = pool->allocate(50000, Use::optimizer);
  const std::string message = message_of(ErrorKind::io, [&] { pool->allocate(70000, Use::data); });
  CHECK(has(message, "the device is full"));
  CHECK(has(message, "optimiser"));
  CHECK(pool->count(Use::data).now == 0);
  CHECK(pool->count(Use::optimizer).now == 50000);
}

// A GPU's libraries and kernels found no memory for themselves while the pool kept blocks that nobody used.
TEST_CASE("a pool gives back what it keeps before little is left on the device, and refuses nothing for that", "[nn][pool]") {
  Device0 device;
  device.room = 100000;
  device.reserve = 20000;
  const auto pool = make_pool(device);
  pool->allocate(40000, Use::stash).reset();
  auto second = pool->allocate(30000, Use::data);
  CHECK(device.releases == 0);
  const auto third = pool->allocate(20000, Use::data);  // fits beside the block that is kept, but leaves too little
  CHECK(device.releases == 1);
  CHECK(pool->reserved() == device.held);
  const auto fourth = pool->allocate(40000, Use::data);  // nothing is kept, so that the rest may go
  CHECK(device.releases == 1);
  second.reset();
  CHECK(pool->allocate(30000, Use::data) != nullptr);  // the same block, for which nothing is asked
  CHECK(device.releases == 1);
}

// A device that refuses everything was taken for one that is full, and a benchmark for one on which a net does not fit.
TEST_CASE("a pool does not call a broken device full", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  pool->allocate(1000, Use::data).reset();
  device.is_broken = true;
  CHECK(message_of(ErrorKind::io, [&] { pool->allocate(5000, Use::data); }) == "a kernel has failed");
  CHECK_THROWS_AS(pool->allocate(5000, Use::data), Error);
  try {
    pool->allocate(5000, Use::data);
  } catch (const OutOfMemory&) {
    FAIL("an OutOfMemory");
  } catch (const Error&) {
  }
  CHECK(device.releases == 0);
  CHECK(pool->allocate(1000, Use::data) != nullptr);  // a block that it has
  CHECK(pool->total().now == 0);
}

TEST_CASE("the last block may outlive its pool's engine", "[nn][pool]") {
  Device0 device;
  std::shared_ptr<std::byte> block;
  {
    const auto pool = make_pool(device);
    block = pool->allocate(1000, Use::parameters);
    const auto freed = pool->allocate(2000, Use::parameters);
  }
  CHECK(device.releases == 0);
  std::memset(block.get(), 7, 1000);
  CHECK(block.get()[999] == std::byte{7});
  block.reset();
  CHECK(device.releases == 2);
  CHECK(device.held == 0);

  for (const std::string& backend : tested_backends()) {
    Tensor tensor;
    {
      Engine engine(device_of(backend), backend);
      tensor = engine.zeros({7}, DType::f32, Use::parameters);
    }
    // A GPU's memory outlives its engine, too, but cannot be read without one.
    if (tensor.device().kind == Device::Kind::cpu) CHECK(tensor.as<float>()[6] == 0);
  }
}

TEST_CASE("threads may share a pool", "[nn][pool]") {
  Device0 device;
  const auto pool = make_pool(device);
  // The counter of devices is not made for threads: let the pool have all blocks beforehand.
  std::vector<std::shared_ptr<std::byte>> blocks;
  for (int i = 0; i < 4 * 8; ++i) blocks.push_back(pool->allocate(4096, Use::data));
  blocks.clear();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool, t] {
      for (int i = 0; i < 2000; ++i) {
        std::vector<std::shared_ptr<std::byte>> mine;
        for (int j = 0; j < 8; ++j) {
          mine.push_back(pool->allocate(4096, j % 2 == 0 ? Use::stash : Use::workspace));
          std::memset(mine.back().get(), t, 4096);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(pool->total().now == 0);
  CHECK(pool->total().peak <= 4U * 8 * 4096);
  CHECK(device.allocations == 4 * 8);
}

}  // namespace bitloom::nn
