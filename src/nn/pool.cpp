#include "nn/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <new>
#include <utility>

#include "core/error.h"
#include "core/progress.h"

namespace bitloom::nn {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t steps_per_octave = 8;

// Rooms have few different sizes, so that blocks fit again: multiples of an eighth of a power of two, and the tail, which comes
// on top: tensors' sizes are often such multiples themselves.
std::size_t room_for(std::size_t bytes, std::size_t tail) {
  const std::size_t wanted = std::max(bytes, std::size_t{1});
  const std::size_t step = std::max(std::bit_floor(wanted) / steps_per_octave, alignment);
  return (wanted + step - 1) / step * step + tail;
}

// Large blocks ask for huge pages where the system leaves that to programs (Linux, "madvise", the default of Ubuntu): products
// read rows that are far apart, each on another page of 4 KiB, and first touches are tens of times fewer.
class CpuAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    void* memory = ::operator new(bytes, alignment_of(bytes), std::nothrow);
    if (memory == nullptr) throw OutOfMemory(ErrorKind::io, "the system has no more memory");
#ifdef MADV_HUGEPAGE
    // Whole huge pages alone, so that nothing is taken beyond the block. A system that refuses has small pages, as before.
    if (bytes >= huge_page) ::madvise(memory, bytes / huge_page * huge_page, MADV_HUGEPAGE);
#endif
    return memory;
  }
  void release(void* memory, std::size_t bytes) noexcept override { ::operator delete(memory, alignment_of(bytes)); }

 private:
  static constexpr std::size_t huge_page = std::size_t{2} << 20U;
  static std::align_val_t alignment_of(std::size_t bytes) {
    return std::align_val_t(bytes >= huge_page ? huge_page : alignment);
  }
};

}  // namespace

std::string_view name_of(Use use) {
  constexpr std::array<std::string_view, use_count> names = {"parameters",  "gradients", "optimiser", "stash",
                                                             "activations", "data",      "workspace"};
  return names[static_cast<std::size_t>(use)];
}

std::unique_ptr<Allocator> make_cpu_allocator() { return std::make_unique<CpuAllocator>(); }

std::shared_ptr<Pool> Pool::make(Device device, std::unique_ptr<Allocator> allocator) {
  return std::shared_ptr<Pool>(new Pool(device, std::move(allocator)));
}

Pool::Pool(Device device, std::unique_ptr<Allocator> allocator) : device_(device), allocator_(std::move(allocator)) {}

Pool::~Pool() { trim(); }

std::shared_ptr<std::byte> Pool::allocate(std::size_t bytes, Use use) {
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (limit_ != 0 && total_.now + bytes > limit_) out_of_memory(bytes, use, "the limit is reached");
    const Held held{room_for(bytes, allocator_->tail()), bytes, use};
    memory = take_room(held);
    try {
      held_.emplace(memory, held);
    } catch (...) {  // no memory to remember it
      release(memory, held.room);
      throw;
    }
    add(held);
  }
  return {memory, [pool = shared_from_this()](std::byte* block) { pool->take_back(block); }};
}

std::shared_ptr<std::byte> Pool::allocate_scratch(std::size_t bytes) {
  const std::size_t room = (std::max(bytes, std::size_t{1}) + alignment - 1) / alignment * alignment;
  std::byte* memory = nullptr;
  {
    const std::lock_guard lock(mutex_);
    memory = new_room({room, bytes, Use::workspace});
  }
  return {memory, [pool = shared_from_this(), room](std::byte* block) {
            const std::lock_guard lock(pool->mutex_);
            pool->release(block, room);
          }};
}

// A block that was given back, or a new one.
std::byte* Pool::take_room(const Held& held) {
  if (const auto found = free_.find(held.room); found != free_.end()) {
    std::byte* memory = found->second;
    free_.erase(found);
    return memory;
  }
  return new_room(held);
}

std::byte* Pool::new_room(const Held& held) {
  make_room(held.room);
  void* memory = nullptr;
  try {
    memory = allocator_->allocate(held.room);
  } catch (const OutOfMemory&) {
    release_free();
    try {
      memory = allocator_->allocate(held.room);
    } catch (const OutOfMemory& error) {
      out_of_memory(held.bytes, held.use, error.what());
    }
  }
  reserved_ += held.room;
  return static_cast<std::byte*>(memory);
}

void Pool::release(std::byte* memory, std::size_t room) noexcept {
  reserved_ -= room;
  allocator_->release(memory, room);
}

void Pool::release_free() noexcept {
  for (const auto& [room, memory] : free_) release(memory, room);
  free_.clear();
}

// Free blocks of so many bytes in all, or all: the smallest that is enough or, as long as none is, the largest. A step whose
// tensors reach the limit keeps the other blocks for the next step.
void Pool::release_free(std::uint64_t bytes) noexcept {
  while (bytes > 0 && !free_.empty()) {
    auto block = free_.lower_bound(bytes);
    if (block == free_.end()) block = std::prev(block);
    bytes -= std::min<std::uint64_t>(bytes, block->first);
    release(block->second, block->first);
    free_.erase(block);
  }
}

void Pool::make_room(std::size_t bytes) {
  if (free_.empty()) return;
  if (allocator_->is_scarce(bytes)) return release_free();
  // Rooms are up to an eighth larger than tensors, which may have all of the limit.
  const std::uint64_t most = limit_ + limit_ / 8;
  if (limit_ != 0 && reserved_ + bytes > most) release_free(reserved_ + bytes - most);
}

void Pool::add(const Held& held) {
  for (Count* count : {&counts_[static_cast<std::size_t>(held.use)], &total_}) {
    count->now += held.bytes;
    count->peak = std::max(count->peak, count->now);
  }
}

void Pool::subtract(const Held& held) noexcept {
  counts_[static_cast<std::size_t>(held.use)].now -= held.bytes;
  total_.now -= held.bytes;
}

void Pool::count_as(const std::byte* block, Use use) {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(block);
  if (found == held_.end()) fail(ErrorKind::internal, "pool: a block that is not in use");
  subtract(found->second);
  found->second.use = use;
  add(found->second);
}

void Pool::take_back(std::byte* memory) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(memory);
  const Held held = found->second;
  held_.erase(found);
  subtract(held);
  try {
    free_.emplace(held.room, memory);
  } catch (...) {  // no memory to remember it
    release(memory, held.room);
  }
}

void Pool::out_of_memory(std::size_t bytes, Use use, const char* why) const {
  std::string uses;
  for (std::size_t i = 0; i < use_count; ++i) {
    if (counts_[i].now == 0) continue;
    uses += fmt::format("{}{} {}", uses.empty() ? "" : ", ", format_bytes(counts_[i].now), name_of(static_cast<Use>(i)));
  }
  throw OutOfMemory(ErrorKind::io, fmt::format("out of memory on {}: {} more for {} ({}); in use: {}{}", name_of(device_),
                                               format_bytes(bytes), name_of(use), why, uses.empty() ? "nothing" : uses,
                                               limit_ != 0 ? fmt::format("; the limit is {}", format_bytes(limit_)) : ""));
}

Pool::Count Pool::count(Use use) const {
  const std::lock_guard lock(mutex_);
  return counts_[static_cast<std::size_t>(use)];
}

Pool::Count Pool::total() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

void Pool::reset_peaks() {
  const std::lock_guard lock(mutex_);
  for (Count& count : counts_) count.peak = count.now;
  total_.peak = total_.now;
}

std::uint64_t Pool::reserved() const {
  const std::lock_guard lock(mutex_);
  return reserved_;
}

void Pool::trim() {
  const std::lock_guard lock(mutex_);
  release_free();
}

std::uint64_t Pool::limit() const {
  const std::lock_guard lock(mutex_);
  return limit_;
}

void Pool::set_limit(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  make_room(0);
}

}  // namespace bitloom::nn
