// Attention masks in the device's memory, from the pool of the tensors, where they count as data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nn/attention_mask.h"
#include "nn/cuda/kernels.h"
#include "nn/cuda/runtime.h"
#include "nn/pool.h"

namespace bitloom::nn::cuda {

// Keeps the masks that were used last: models have a few that are used in every layer, but generation makes a new one for every
// token. The runtime outlives this.
class MaskCache {
 public:
  static constexpr std::size_t most_masks = 16;

  explicit MaskCache(Runtime& runtime) : runtime_(runtime) {}

  // Uploads it unless it is there. Valid on the runtime's stream for what is started before the next call. Throws OutOfMemory.
  DeviceMask find(const AttentionMask& mask);

 private:
  struct Kept {
    std::uint64_t id = 0, last_use = 0;
    std::shared_ptr<std::byte> memory;
    std::size_t room = 0;
    DeviceMask mask;
  };
  Kept& oldest_or_new();

  Runtime& runtime_;
  std::vector<Kept> kept_;
  std::uint64_t uses_ = 0;
};

}  // namespace bitloom::nn::cuda
