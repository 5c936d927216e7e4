// The memory of one device: blocks are kept when they are given back and handed out again, and everything is counted by what
// it is for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "nn/device.h"

namespace bitloom::nn {

// Uses of memory.
enum class Use { parameters, gradients, optimizer, stash, activations, data, workspace };
inline constexpr std::size_t use_count = 7;
std::string_view name_of(Use use);

// There is no more memory: Error(io).
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

// How a device's memory is had. Implementations throw OutOfMemory when there is no more and another Error for whatever else is
// wrong: a GPU on which a kernel has failed refuses every request for memory too.
class Allocator {
 public:
  virtual ~Allocator() = default;
  // Aligned to 64 bytes; `bytes` is a multiple of 64.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory, std::size_t bytes) noexcept = 0;
  // Whether so little would be left after so many bytes more that others, libraries say, might not get what they need: a pool
  // then gives back first what it only keeps. Not a refusal.
  virtual bool is_scarce(std::size_t /*bytes*/) const { return false; }
  // Bytes after what is asked of the pool that the device's kernels may read (not write); a multiple of 64.
  virtual std::size_t tail() const { return 64; }
};

std::unique_ptr<Allocator> make_cpu_allocator();

class Pool : public std::enable_shared_from_this<Pool> {
 public:
  struct Count {
    std::uint64_t now = 0;
    std::uint64_t peak = 0;
  };

  // A pool is shared with the blocks that it handed out: it lives until the last is gone.
  static std::shared_ptr<Pool> make(Device device, std::unique_ptr<Allocator> allocator);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  Device device() const { return device_; }

  // At least `bytes` bytes, not initialised; the allocator's tail() may be read after them. Back in the pool when the last
  // pointer goes. Throws OutOfMemory, which says what is in use for what, where the limit or the device does not allow it, and
  // the allocator's other errors as they are.
  std::shared_ptr<std::byte> allocate(std::size_t bytes, Use use);
  // At least `bytes` bytes, aligned to 64, for ops that need memory besides tensors, of a size that no plan has: neither
  // counted nor limited, but in reserved(), and free blocks make room for it as for tensors. Back with the device when the last
  // pointer goes. Throws OutOfMemory where the device has no more.
  std::shared_ptr<std::byte> allocate_scratch(std::size_t bytes);

  // From now on a block that is in use is for something else.
  void count_as(const std::byte* block, Use use);

  // Bytes as they were asked for, that is without rounding.
  Count count(Use use) const;
  Count total() const;
  // Peaks become what is in use now.
  void reset_peaks();
  // Taken from the device, blocks that are not in use included.
  std::uint64_t reserved() const;
  // Gives blocks that are not in use back to the device.
  void trim();
  // Limit on the bytes in use at once; 0 disables it. Blocks that are not in use go back to the device before an eighth more
  // than that, which rounded rooms need, is reserved; what is in use and scratch memory may be more.
  void set_limit(std::uint64_t bytes);
  std::uint64_t limit() const;

 private:
  Pool(Device device, std::unique_ptr<Allocator> allocator);
  struct Held {
    std::size_t room = 0, bytes = 0;
    Use use = Use::workspace;
  };
  // These are called under the lock.
  std::byte* take_room(const Held& held);
  std::byte* new_room(const Held& held);
  void release(std::byte* memory, std::size_t room) noexcept;
  void release_free() noexcept;
  void release_free(std::uint64_t bytes) noexcept;
  // Where so many bytes more would be above the limit or leave too little on the device.
  void make_room(std::size_t bytes);
  void add(const Held& held);
  void subtract(const Held& held) noexcept;
  void take_back(std::byte* memory) noexcept;
  [[noreturn]] void out_of_memory(std::size_t bytes, Use use, const char* why) const;

  Device device_;
  std::unique_ptr<Allocator> allocator_;
  mutable std::mutex mutex_;
  std::multimap<std::size_t, std::byte*> free_;  // by size
  std::unordered_map<const std::byte*, Held> held_;
  std::array<Count, use_count> counts_;
  Count total_;
  std::uint64_t reserved_ = 0, limit_ = 0;
};

}  // namespace bitloom::nn
