#include "nn/attention_mask.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>

#include "core/error.h"

namespace bitloom::nn {

namespace {

std::uint64_t next_id() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

AttentionMask::AttentionMask(std::size_t queries, std::size_t keys, const std::function<bool(std::size_t, std::size_t)>& sees)
    : id_(next_id()), queries_(queries), keys_(keys), first_entry_(1, 0) {
  const std::size_t key_blocks = (keys + block - 1) / block;
  for (std::size_t first = 0; first < queries; first += block) {
    const std::size_t rows = std::min(block, queries - first);
    std::array<bool, block> sees_any = {};
    for (std::size_t j = 0; j < key_blocks; ++j) {
      const std::size_t columns = std::min(block, keys - j * block);
      Words words = {};
      for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t column = 0; column < columns; ++column) {
          if (sees(first + row, j * block + column)) words[row] |= std::uint64_t{1} << column;
        }
        sees_any[row] |= words[row] != 0;
      }
      add_entry(j, rows, words);
    }
    first_entry_.push_back(static_cast<std::uint32_t>(entries_.size()));
    for (std::size_t row = 0; row < rows; ++row) {
      if (!sees_any[row])
        fail(ErrorKind::usage, "attention mask: query {} of {} sees none of {} keys", first + row, queries, keys);
    }
  }
}

void AttentionMask::add_entry(std::size_t key_block, std::size_t rows, const Words& words) {
  std::size_t seen = 0;
  for (const std::uint64_t word : words) seen += static_cast<std::size_t>(std::popcount(word));
  if (seen == 0) return;
  Entry entry{static_cast<std::uint32_t>(key_block), 0, seen == rows * std::min(block, keys_ - key_block * block)};
  if (!entry.is_full) {
    entry.rows = static_cast<std::uint32_t>(bits_.size() / block);
    bits_.insert(bits_.end(), words.begin(), words.end());
  }
  entries_.push_back(entry);
}

AttentionMask AttentionMask::rows(const AttentionMask& mask, std::size_t first, std::size_t count) {
  if (first > mask.queries_ || count > mask.queries_ - first) {
    fail(ErrorKind::usage, "rows of an attention mask: {} from {} on; it has {}", count, first, mask.queries_);
  }
  AttentionMask part;
  part.id_ = next_id();
  part.queries_ = count;
  part.keys_ = mask.keys_;
  part.first_entry_.assign(1, 0);
  std::vector<Words> words_of((mask.keys_ + block - 1) / block);  // by blocks of keys
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t rows = std::min(block, count - begin);
    std::ranges::fill(words_of, Words{});
    for (std::size_t row = 0; row < rows; ++row) {
      const std::size_t query = first + begin + row;
      for (std::size_t e = mask.first_entry_[query / block]; e < mask.first_entry_[query / block + 1]; ++e) {
        const Entry& entry = mask.entries_[e];
        const std::size_t columns = std::min(block, mask.keys_ - entry.keys * block);
        words_of[entry.keys][row] =
            entry.is_full ? ~std::uint64_t{0} >> (block - columns) : mask.bits_of(entry.rows)[query % block];
      }
    }
    for (std::size_t j = 0; j < words_of.size(); ++j) part.add_entry(j, rows, words_of[j]);
    part.first_entry_.push_back(static_cast<std::uint32_t>(part.entries_.size()));
  }
  return part;
}

AttentionMask AttentionMask::full(std::size_t queries, std::size_t keys) {
  return {queries, keys, [](std::size_t, std::size_t) { return true; }};
}

AttentionMask AttentionMask::causal(std::size_t queries, std::size_t keys, std::size_t first) {
  if (keys < first + queries) {
    fail(ErrorKind::usage, "causal mask: {} keys for {} queries from {} on; expected at least {}", keys, queries, first,
         first + queries);
  }
  // By blocks: contexts of 100,000 tokens have too many pairs to be asked about one by one.
  AttentionMask mask;
  mask.id_ = next_id();
  mask.queries_ = queries;
  mask.keys_ = keys;
  mask.first_entry_.assign(1, 0);
  for (std::size_t begin = 0; begin < queries; begin += block) {
    const std::size_t rows = std::min(block, queries - begin);
    const std::size_t seen = first + begin + rows;  // keys that the last query sees
    for (std::size_t key = 0; key < seen; key += block) {
      Words words = {};
      for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t last = first + begin + row;
        if (last < key) continue;
        const std::size_t count = std::min({block, last - key + 1, keys - key});
        words[row] = ~std::uint64_t{0} >> (block - count);
      }
      mask.add_entry(key / block, rows, words);
    }
    mask.first_entry_.push_back(static_cast<std::uint32_t>(mask.entries_.size()));
  }
  return mask;
}

namespace {

// Mask of text, then an image: seen(q, k) is asked about image tokens up to the query's own.
template <typename Seen>
AttentionMask over_image(std::size_t text, std::size_t grid, Seen seen) {
  const std::size_t tokens = text + grid * grid;
  return {tokens, tokens, [=](std::size_t query, std::size_t key) {
            if (key > query) return false;
            return key < text || (query >= text && seen(query - text, key - text));
          }};
}

}  // namespace

AttentionMask AttentionMask::row(std::size_t text, std::size_t grid) {
  return over_image(text, grid, [grid](std::size_t query, std::size_t key) { return query - key <= grid; });
}

AttentionMask AttentionMask::column(std::size_t text, std::size_t grid) {
  return over_image(text, grid, [grid](std::size_t query, std::size_t key) { return query % grid == key % grid; });
}

AttentionMask AttentionMask::convolutional(std::size_t text, std::size_t grid, std::size_t extent) {
  if (extent % 2 == 0 || extent > grid) {
    fail(ErrorKind::usage, "convolutional mask: extent {}; expected an odd one, at most the grid's {}", extent, grid);
  }
  const std::size_t reach = extent / 2;
  return over_image(text, grid, [=](std::size_t query, std::size_t key) {
    const std::size_t distance = query - key + reach;  // in raster order, from the rightmost of the query's own row
    return distance / grid <= reach && distance % grid <= 2 * reach;
  });
}

bool AttentionMask::sees(std::size_t query, std::size_t key) const {
  if (query >= queries_ || key >= keys_) return false;
  const std::size_t i = query / block;
  for (std::size_t e = first_entry_[i]; e < first_entry_[i + 1]; ++e) {
    if (entries_[e].keys != key / block) continue;
    return entries_[e].is_full || ((bits_of(entries_[e].rows)[query % block] >> (key % block)) & 1U) != 0;
  }
  return false;
}

std::uint64_t AttentionMask::size() const {
  std::uint64_t size = 0;
  for (std::size_t i = 0; i < query_blocks(); ++i) {
    const std::size_t rows = std::min(block, queries_ - i * block);
    for (std::size_t e = first_entry_[i]; e < first_entry_[i + 1]; ++e) {
      const std::size_t columns = std::min(block, keys_ - entries_[e].keys * block);
      if (entries_[e].is_full) {
        size += rows * columns;
      } else {
        const std::uint64_t* words = bits_of(entries_[e].rows);
        for (std::size_t row = 0; row < rows; ++row) size += static_cast<std::uint64_t>(std::popcount(words[row]));
      }
    }
  }
  return size;
}

}  // namespace bitloom::nn
