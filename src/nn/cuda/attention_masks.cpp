#include "nn/cuda/attention_masks.h"

#include <algorithm>
#include <bit>
#include <span>

namespace bitloom::nn::cuda {
namespace {

// Arrays put one after the other into one piece of the device's memory.
class Image {
 public:
  // Where it begins; all are multiples of 8 bytes.
  template <typename T>
  std::size_t append(std::span<const T> values) {
    const std::size_t place = bytes_.size();
    const auto bytes = std::as_bytes(values);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    while (bytes_.size() % 8 != 0) bytes_.push_back({});
    return place;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

template <typename T>
const T* at(const std::byte* memory, std::size_t place) {
  return reinterpret_cast<const T*>(memory + place);
}

MaskBlock to_block(std::uint32_t block, const AttentionMask::Entry& entry) {
  return {block, entry.is_full ? all_seen : entry.rows};
}

struct Transposed {
  std::vector<std::uint32_t> first;
  std::vector<MaskBlock> blocks;
};

// By blocks of keys, each with its blocks of queries in ascending order.
Transposed transpose(const AttentionMask& mask) {
  Transposed result;
  result.first.assign((mask.keys() + AttentionMask::block - 1) / AttentionMask::block + 1, 0);
  for (const AttentionMask::Entry& entry : mask.entries()) ++result.first[entry.keys + 1];
  for (std::size_t i = 1; i < result.first.size(); ++i) result.first[i] += result.first[i - 1];
  std::vector<std::uint32_t> next = result.first;
  result.blocks.resize(mask.entries().size());
  for (std::uint32_t i = 0; i < mask.query_blocks(); ++i) {
    for (std::uint32_t e = mask.first_entry()[i]; e < mask.first_entry()[i + 1]; ++e) {
      const AttentionMask::Entry& entry = mask.entries()[e];
      result.blocks[next[entry.keys]++] = to_block(i, entry);
    }
  }
  return result;
}

}  // namespace

MaskCache::Kept& MaskCache::oldest_or_new() {
  if (kept_.size() < most_masks) return kept_.emplace_back();
  return *std::ranges::min_element(kept_, {}, &Kept::last_use);
}

DeviceMask MaskCache::find(const AttentionMask& mask) {
  ++uses_;
  for (Kept& kept : kept_) {
    if (kept.id != mask.id() || kept.memory == nullptr) continue;
    kept.last_use = uses_;
    return kept.mask;
  }

  std::vector<MaskBlock> blocks;
  blocks.reserve(mask.entries().size());
  std::size_t words = 0;  // words of the largest partial block
  for (const AttentionMask::Entry& entry : mask.entries()) {
    blocks.push_back(to_block(entry.keys, entry));
    if (!entry.is_full) words = std::max(words, (std::size_t{entry.rows} + 1) * AttentionMask::block);
  }
  const Transposed transposed = transpose(mask);
  Image image;
  const std::size_t bits = image.append(std::span(words == 0 ? nullptr : mask.bits_of(0), words));
  const std::size_t first = image.append(std::span(mask.first_entry()));
  const std::size_t blocks_at = image.append(std::span<const MaskBlock>(blocks));
  const std::size_t transposed_first = image.append(std::span<const std::uint32_t>(transposed.first));
  const std::size_t transposed_blocks = image.append(std::span<const MaskBlock>(transposed.blocks));

  // Kernels that still read the memory of an older mask come before this one's copy in the stream.
  Kept& kept = oldest_or_new();
  kept.id = 0;
  if (image.bytes().size() > kept.room) {
    kept.memory.reset();
    kept.room = 0;
    // Growing masks (those of generation) seldom need more.
    const std::size_t room = std::bit_ceil(std::max<std::size_t>(image.bytes().size(), 1024));
    kept.memory = runtime_.pool().allocate(room, Use::data);
    kept.room = room;
  }
  const std::byte* memory = kept.memory.get();
  runtime_.upload(kept.memory.get(), image.bytes());
  kept.mask.queries = mask.queries();
  kept.mask.keys = mask.keys();
  kept.mask.bits = at<std::uint64_t>(memory, bits);
  kept.mask.keys_of_queries = {at<std::uint32_t>(memory, first), at<MaskBlock>(memory, blocks_at)};
  kept.mask.queries_of_keys = {at<std::uint32_t>(memory, transposed_first), at<MaskBlock>(memory, transposed_blocks)};
  kept.id = mask.id();
  kept.last_use = uses_;
  return kept.mask;
}

}  // namespace bitloom::nn::cuda
