// Which keys a query sees, as data: a map of blocks of 64 x 64, of which empty ones cost nothing and full ones need no look at
// single elements.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bitloom::nn {

class AttentionMask {
 public:
  static constexpr std::size_t block = 64;

  // A block of keys that some query of a block of queries sees.
  struct Entry {
    std::uint32_t keys = 0;  // block of keys
    std::uint32_t rows = 0;  // partial blocks: bits_of(rows) are those of its queries
    bool is_full = false;    // every query in it sees every key in it
  };

  AttentionMask() = default;
  // sees(query, key) is asked about all pairs. Throws Error(usage) if a query sees no key: its softmax would be empty.
  AttentionMask(std::size_t queries, std::size_t keys, const std::function<bool(std::size_t, std::size_t)>& sees);

  // Every query sees every key.
  static AttentionMask full(std::size_t queries, std::size_t keys);
  // Query q is at position first + q and sees the keys up to it. keys >= first + queries.
  static AttentionMask causal(std::size_t queries, std::size_t keys, std::size_t first = 0);
  // Zero-shot text-to-image generation, Figure 11: `text` tokens that see the text before them, then grid x grid image tokens
  // in raster order that see all text and, of the image up to themselves: those of the row mask the `grid` before; of the
  // column mask those of their own column; of the convolutional mask those of a window of extent x extent around them, extent
  // odd and at most `grid`. A row's neighbours are what is next in raster order, also across the border, as in the row mask.
  static AttentionMask row(std::size_t text, std::size_t grid);
  static AttentionMask column(std::size_t text, std::size_t grid);
  static AttentionMask convolutional(std::size_t text, std::size_t grid, std::size_t extent);

  // Queries first .. first + count - 1 of a mask, which becomes queries 0 .. count - 1, and all its keys. Takes time by blocks,
  // not by pairs. Throws Error(usage) if the mask has not as many.
  static AttentionMask rows(const AttentionMask& mask, std::size_t first, std::size_t count);

  // Identifies the content, not this object: copies have the same, other masks have others. For backends that keep masks.
  std::uint64_t id() const { return id_; }
  std::size_t queries() const { return queries_; }
  std::size_t keys() const { return keys_; }
  std::size_t query_blocks() const { return first_entry_.empty() ? 0 : first_entry_.size() - 1; }
  // Entries of block i of queries, by ascending keys: entries()[first_entry()[i]] up to first_entry()[i + 1].
  const std::vector<std::uint32_t>& first_entry() const { return first_entry_; }
  const std::vector<Entry>& entries() const { return entries_; }
  // 64 words, one per query of the block; bit k: it sees the block's key k. Bits beyond the last query or key are 0.
  const std::uint64_t* bits_of(std::uint32_t rows) const { return bits_.data() + std::size_t{rows} * block; }
  bool sees(std::size_t query, std::size_t key) const;
  // Pairs that are seen.
  std::uint64_t size() const;

 private:
  using Words = std::array<std::uint64_t, block>;  // one per query of a block
  // The pairs of the block of queries under way with a block of keys, if there are any.
  void add_entry(std::size_t key_block, std::size_t rows, const Words& words);

  std::uint64_t id_ = 0;
  std::size_t queries_ = 0, keys_ = 0;
  std::vector<std::uint32_t> first_entry_;
  std::vector<Entry> entries_;
  std::vector<std::uint64_t> bits_;
};

}  // namespace bitloom::nn
