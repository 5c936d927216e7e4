// Attention masks in the device's memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/attention_mask.h"
#include "nn/cuda/kernels.h"
#include "nn/cuda/runtime.h"
#include "nn/pool.h"

namespace bitloom::nn::cuda {

// Keeps the masks that were used last: models have a few that are used in every layer, but generation makes a new one for every
// token. Both references must outlive it.
class MaskCache {
 public:
  static constexpr std::size_t most_masks = 16;

  MaskCache(Runtime& runtime, Allocator& allocator) : runtime_(&runtime), allocator_(&allocator) {}
  ~MaskCache();
  MaskCache(const MaskCache&) = delete;
  MaskCache& operator=(const MaskCache&) = delete;

  // Uploads it unless it is there. Valid on the runtime's stream for what is started before the next call.
  DeviceMask find(const AttentionMask& mask);

 private:
  struct Kept {
    std::uint64_t id = 0, last_use = 0;
    std::byte* memory = nullptr;
    std::size_t room = 0;
    DeviceMask mask;
  };
  Kept& oldest_or_new();

  Runtime* runtime_;
  Allocator* allocator_;
  std::vector<Kept> kept_;
  std::uint64_t uses_ = 0;
};

}  // namespace bitloom::nn::cuda
