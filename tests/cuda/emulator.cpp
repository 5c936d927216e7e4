#include "tests/cuda/emulator.h"

#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <deque>
#include <exception>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace bitloom::emulated {

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

using boost::context::fiber;

constexpr unsigned warp_size = 32;
constexpr std::size_t stack_bytes = 64 * 1024;

// Limits of compute capability 8.0 (CUDA C++ programming guide, table of technical specifications).
constexpr unsigned most_threads = 1024, most_grid_yz = 65535;
constexpr std::size_t most_shared_bytes = 163 * 1024;

enum class State { ready, at_block_barrier, at_warp_barrier, done };

// A fiber that runs one thread of a block after the other.
struct Thread {
  fiber self;    // while it does not run
  fiber caller;  // while it runs
  State state = State::done;
  dim3 index;
  unsigned number = 0;  // in the block
  unsigned exchanges = 0;
  std::deque<std::vector<Copy>> copies;  // not done yet, by groups; the last one is not committed
  std::exception_ptr error;
};

struct Warp {
  unsigned char buffers[2][warp_size * lane_bytes];
};

// The one GPU.
struct Machine {
  std::vector<std::unique_ptr<Thread>> threads;  // threads of a block, kept from launch to launch
  std::vector<Warp> warps;
  std::vector<unsigned char> shared;
  const std::function<void()>* kernel = nullptr;
  const char* name = "";
  Thread* running = nullptr;
  std::size_t size = 0;  // threads of a block
  unsigned launches = 0;

  [[noreturn]] void fail(const std::string& what) const { throw std::logic_error(std::string("kernel ") + name + ": " + what); }
};
Machine machine;

void pause(State state) {
  Thread& thread = *machine.running;
  thread.state = state;
  thread.caller = std::move(thread.caller).resume();
}

void start(Thread& thread) {
  thread.self = fiber(std::allocator_arg, boost::context::fixedsize_stack(stack_bytes), [&thread](fiber&& caller) {
    thread.caller = std::move(caller);
    for (;;) {
      try {
        (*machine.kernel)();
      } catch (const boost::context::detail::forced_unwind&) {
        throw;
      } catch (...) {
        thread.error = std::current_exception();
      }
      pause(State::done);
    }
    return fiber();
  });
}

void resume(Thread& thread) {
  machine.running = &thread;
  threadIdx = thread.index;
  thread.self = std::move(thread.self).resume();
  machine.running = nullptr;
  if (thread.error) std::rethrow_exception(std::exchange(thread.error, nullptr));
}

// Those of threads first .. last - 1 that wait in `state` go on if all of them do.
bool release(std::size_t first, std::size_t last, State state) {
  for (std::size_t i = first; i < last; ++i) {
    if (machine.threads[i]->state != state) return false;
  }
  for (std::size_t i = first; i < last; ++i) machine.threads[i]->state = State::ready;
  return true;
}

// 0 .. n - 1 forward, backward or the even ones first.
std::vector<std::size_t> order_of(std::size_t n, unsigned kind) {
  std::vector<std::size_t> order(n);
  for (std::size_t i = 0; i < n; ++i) {
    order[i] = kind == 0 ? i : kind == 1 ? n - 1 - i : 2 * i < n ? 2 * i : 2 * (i - (n + 1) / 2) + 1;
  }
  return order;
}

// Every warp goes as far as it can before the next one does: what a barrier of the block that is missing allows.
void run_warp(const std::vector<std::size_t>& lanes, std::size_t first, std::size_t last) {
  do {
    for (const std::size_t lane : lanes) {
      if (first + lane < last && machine.threads[first + lane]->state == State::ready) resume(*machine.threads[first + lane]);
    }
  } while (release(first, last, State::at_warp_barrier));
}

void run_block(const std::vector<std::size_t>& warps, const std::vector<std::size_t>& lanes, std::size_t shared_bytes) {
  machine.shared.assign(shared_bytes, 0xFF);
  for (std::size_t i = 0; i < machine.size; ++i) {
    Thread& thread = *machine.threads[i];
    const auto number = static_cast<unsigned>(i);
    thread.number = number;
    thread.index = {number % blockDim.x, number / blockDim.x % blockDim.y, number / blockDim.x / blockDim.y};
    thread.state = State::ready;
    thread.exchanges = 0;
    thread.copies.assign(1, {});
  }
  do {
    for (const std::size_t warp : warps) {
      run_warp(lanes, warp * warp_size, std::min<std::size_t>((warp + 1) * warp_size, machine.size));
    }
  } while (release(0, machine.size, State::at_block_barrier));
  for (std::size_t i = 0; i < machine.size; ++i) {
    if (machine.threads[i]->state != State::done) machine.fail("some threads wait at a barrier that others do not reach");
  }
}

void check_launch(const dim3& grid, const dim3& block, std::size_t shared_bytes) {
  const auto threads = std::size_t{block.x} * block.y * block.z;
  const bool fits = threads > 0 && threads <= most_threads && block.z <= 64 && grid.x > 0 && grid.x < 0x80000000U &&
                    grid.y > 0 && grid.y <= most_grid_yz && grid.z > 0 && grid.z <= most_grid_yz &&
                    shared_bytes <= most_shared_bytes;
  if (fits) return;
  const auto text = [](const dim3& d) {
    return std::to_string(d.x) + " x " + std::to_string(d.y) + " x " + std::to_string(d.z);
  };
  machine.fail("no GPU takes a grid of " + text(grid) + " blocks of " + text(block) + " threads with " +
               std::to_string(shared_bytes) + " bytes of shared memory");
}

}  // namespace

void run_grid(const char* name, dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& kernel) {
  machine.name = name;
  check_launch(grid, block, shared_bytes);
  gridDim = grid;
  blockDim = block;
  machine.kernel = &kernel;
  machine.size = std::size_t{block.x} * block.y * block.z;
  machine.warps.resize((machine.size + warp_size - 1) / warp_size);
  while (machine.threads.size() < machine.size) {
    machine.threads.push_back(std::make_unique<Thread>());
    start(*machine.threads.back());
  }
  const unsigned kind = machine.launches++ % 3;
  const std::vector<std::size_t> warps = order_of(machine.warps.size(), kind);
  const std::vector<std::size_t> lanes = order_of(warp_size, kind);
  try {
    for (const std::size_t b : order_of(std::size_t{grid.x} * grid.y * grid.z, kind)) {
      blockIdx = {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                  static_cast<unsigned>(b / grid.x / grid.y)};
      run_block(warps, lanes, shared_bytes);
    }
  } catch (...) {
    machine.threads.clear();  // those that still wait
    throw;
  }
}

void block_barrier() { pause(State::at_block_barrier); }

void warp_barrier() { pause(State::at_warp_barrier); }

unsigned char* dynamic_shared() { return machine.shared.data(); }

unsigned lane() { return machine.running->number % warp_size; }

void require_whole_warp(unsigned mask) {
  if (mask != 0xFFFFFFFFU || machine.size % warp_size != 0) machine.fail("an exchange of less than a warp");
}

const unsigned char* exchange_bytes(const void* mine, std::size_t bytes) {
  Thread& thread = *machine.running;
  // A lane is at most one exchange ahead of another, so two buffers do.
  unsigned char* buffer = machine.warps[thread.number / warp_size].buffers[thread.exchanges++ % 2];
  std::memcpy(buffer + lane_bytes * (thread.number % warp_size), mine, bytes);
  warp_barrier();
  return buffer;
}

unsigned ballot(unsigned mask, bool predicate) {
  require_whole_warp(mask);
  const auto mine = static_cast<unsigned char>(predicate);
  const unsigned char* all = exchange_bytes(&mine, 1);
  unsigned bits = 0;
  for (unsigned i = 0; i < warp_size; ++i) bits |= static_cast<unsigned>(all[lane_bytes * i]) << i;
  return bits;
}

namespace {

void do_copy(const Copy& copy) {
  if (copy.from == nullptr) {
    std::memset(copy.to, 0, copy.bytes);
  } else {
    std::memcpy(copy.to, copy.from, copy.bytes);
  }
}

}  // namespace

void start_copy(const Copy& copy) {
  if (machine.launches % 2 == 0) return do_copy(copy);
  machine.running->copies.back().push_back(copy);
}

void commit_copies() { machine.running->copies.emplace_back(); }

void wait_for_copies(std::size_t pending) {
  std::deque<std::vector<Copy>>& groups = machine.running->copies;
  while (groups.size() > pending + 1) {
    for (const Copy& copy : groups.front()) do_copy(copy);
    groups.pop_front();
  }
}

void refuse(const char* what) { machine.fail(what); }

}  // namespace bitloom::emulated
