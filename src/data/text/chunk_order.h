// The order in which training sees the documents of a token file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "data/text/token_file.h"
#include "data/text/tokenizer.h"

namespace bitloom::data {

// BPE dropout of training text (Provilkov et al. 2020): every epoch has other tokens of the same text.
struct TokenDropout {
  double rate = 0;                       // share of merges that are left out
  const Tokenizer* tokenizer = nullptr;  // tokenizer of the token file; needed for a rate above 0, and outlives the order
};

// The endless sequence of training examples of Shoeybi et al. 2019, section 4.2: documents are divided into shards of equal
// size, in an order that is drawn for every epoch, within a shard they are shuffled and flattened, the shard is cut into chunks
// of `context` tokens, and its chunks are shuffled once more. A shard is a circle that is cut first at a place drawn for the
// epoch, so that every token is the last of a context now and then also where there is one document alone.
//
// Documents are dealt to the shards once, by the seed, so that a file sorted by source does not make shards of one source each;
// shards are equal up to a document, and fewer where there are too few documents. Of a shard's circle of L tokens, L % context
// are the input of no chunk in an epoch; they are others in the next one.
//
// With merge dropout a shard is tokenised anew, from the text that its tokens decode to, when an epoch comes to it: two shards
// at most are in memory, in 4 bytes per token. Their lengths change a little from epoch to epoch, but the number of chunks is
// that of the first documents' length in epoch 0, so that a chunk's number alone says which epoch it is of. What a circle has
// more is left out, others every time; where it has less, its beginning comes twice.
class ChunkOrder {
 public:
  static constexpr std::size_t default_shards = 5;
  // The file outlives this. Throws Error(data) if it has fewer than context + 1 tokens or more than 2^32 - 1 documents, and
  // Error(usage) if context or shards are 0, or for dropout with another tokenizer than the file's, or with one that merges
  // nothing or does not give back the text as it was.
  ChunkOrder(const TokenFile& file, std::size_t context, std::uint64_t seed, std::size_t shards = default_shards,
             const TokenDropout& dropout = {});

  // In an epoch.
  std::uint64_t chunks() const;
  std::size_t context() const;
  // Chunk `index` of all epochs: inputs (context), and targets (context), the token behind each. A function of file, context,
  // seed, shards, dropout and index alone. May be called by several threads at once.
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

 private:
  struct Shard {
    std::size_t first, last;  // its documents in dealt_, the last is excluded
    std::uint64_t tokens, chunks;
  };
  struct Circle;  // a shard as an epoch sees it
  struct Cache;   // the last ones, since reads come mostly in order

  void deal(std::size_t shards);
  void check_dropout() const;
  double measure_expansion() const;
  std::vector<std::int32_t> stored_tokens(std::size_t document) const;
  std::vector<std::int32_t> drawn_tokens(std::uint64_t epoch, std::size_t document) const;
  void tokenise(Circle& circle) const;
  std::shared_ptr<const Circle> circle(std::uint64_t epoch, std::size_t shard) const;
  std::shared_ptr<const Circle> make_circle(std::uint64_t epoch, std::size_t shard) const;

  const TokenFile* file_;
  std::size_t context_;
  std::uint64_t seed_;
  TokenDropout dropout_;
  std::vector<std::uint32_t> dealt_;  // documents, shard behind shard
  std::vector<Shard> shards_;
  std::uint64_t chunks_ = 0;
  std::shared_ptr<Cache> cache_;
};

}  // namespace bitloom::data
