// Tokenised documents in a file that is mapped into memory, and the order in which training sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/safetensors.h"

namespace bitloom::data {

// Documents one behind the other, each with the end-of-text token at its end. On disk: a safetensors file with tensors "tokens"
// (u16, or i32 where 16 bits do not hold the vocabulary), "documents" (u64: where each ends) and metadata (vocabulary size,
// tokenizer hash, words).
class TokenFile {
 public:
  struct Content {
    std::vector<std::int32_t> tokens;
    std::vector<std::uint64_t> document_ends;  // in tokens, ascending; the last is the number of tokens
    std::size_t vocabulary = 0;
    std::string tokenizer_hash;
    // Tokens of the original tokenization, which perplexity is normalised by: what white space separates in the text.
    std::uint64_t words = 0;
    std::uint64_t bytes = 0;  // of text
  };

  TokenFile() = default;
  // In memory.
  explicit TokenFile(Content content);
  // Maps a file. Throws Error(data) that names the path and what is wrong: not such a file, cut off, document ends that do not
  // ascend to the number of tokens. Tokens are checked when they are read.
  static TokenFile open(const std::filesystem::path& path);
  // Atomically.
  static void write(const std::filesystem::path& path, const Content& content);

  std::size_t size() const;  // tokens
  std::size_t documents() const;
  std::size_t vocabulary() const;
  const std::string& tokenizer_hash() const;
  std::uint64_t words() const;
  std::uint64_t bytes() const;
  // Of document i: its first token, and the one behind its last.
  std::uint64_t document_begin(std::size_t i) const;
  std::uint64_t document_end(std::size_t i) const;
  // Copies tokens begin .. begin + out.size() - 1. Throws Error(data) that names file, place and token for one that is not in
  // the vocabulary.
  void read(std::uint64_t begin, std::span<std::int32_t> out) const;

 private:
  // Throws an error of that kind that names the source unless the ends ascend to the number of tokens.
  void check_ends(ErrorKind kind) const;

  std::string source_ = "tokens in memory";  // where this came from, for messages
  TensorMapping mapping_;
  std::vector<std::int32_t> owned_tokens_;
  std::span<const std::byte> tokens_;  // in either of these; aligned to nothing
  std::size_t token_bytes_ = sizeof(std::int32_t);
  std::vector<std::uint64_t> document_ends_;
  std::size_t vocabulary_ = 0;
  std::string tokenizer_hash_;
  std::uint64_t words_ = 0;
  std::uint64_t bytes_ = 0;
};

// The endless sequence of training examples of seed 002, section 4.2: documents are divided into shards of equal size, in an
// order that is drawn for every epoch, within a shard they are shuffled and flattened, the shard is cut into chunks of
// `context` tokens, and its chunks are shuffled once more. A shard is a circle that is cut first at a place drawn for the
// epoch, so that every token is the last of a context now and then also where there is one document alone.
//
// Documents are dealt to the shards once, by the seed, so that a file sorted by source does not make shards of one source each;
// shards are equal up to a document, and fewer where there are too few documents. Of a shard's circle of L tokens, L % context
// are the input of no chunk in an epoch; they are others in the next one.
class ChunkOrder {
 public:
  // The file outlives this. Throws Error(data) if it has fewer than context + 1 tokens or more than 2^32 - 1 documents, and
  // Error(usage) if context or shards are 0.
  ChunkOrder(const TokenFile& file, std::size_t context, std::uint64_t seed, std::size_t shards = 5);

  // In an epoch.
  std::uint64_t chunks() const;
  std::size_t context() const;
  // Chunk `index` of all epochs: inputs (context), and targets (context), the token behind each. A function of file, context,
  // seed, shards and index alone. May be called by several threads at once.
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;

 private:
  struct Shard {
    std::size_t first, last;  // its documents in dealt_, the last is excluded
    std::uint64_t tokens, chunks;
  };
  struct Circle;  // a shard as an epoch sees it
  struct Cache;   // the last ones, since reads come mostly in order

  void deal(std::size_t shards);
  std::shared_ptr<const Circle> circle(std::uint64_t epoch, std::size_t shard) const;
  std::shared_ptr<const Circle> make_circle(std::uint64_t epoch, std::size_t shard) const;

  const TokenFile* file_;
  std::size_t context_;
  std::uint64_t seed_;
  std::vector<std::uint32_t> dealt_;  // documents, shard behind shard
  std::vector<Shard> shards_;
  std::uint64_t chunks_ = 0;
  std::shared_ptr<Cache> cache_;
};

}  // namespace bitloom::data
