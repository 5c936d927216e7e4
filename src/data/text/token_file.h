// Tokenised documents in a file that is mapped into memory, and the order in which training sees them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"

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

  std::size_t size() const;       // tokens
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
};

// The endless sequence of training examples of seed 002, section 4.2: documents are divided into shards of equal size, in an
// order that is drawn for every epoch, within a shard they are shuffled and flattened, the shard is cut into chunks of
// `context` tokens, and its chunks are shuffled once more. A shard is a circle that is cut first at a place drawn for the
// epoch, so that every token is the last of a context now and then also where there is one document alone.
class ChunkOrder {
 public:
  // The file outlives this. Throws Error(data) if it has fewer than context + 1 tokens.
  ChunkOrder(const TokenFile& file, std::size_t context, std::uint64_t seed, std::size_t shards = 5);

  // In an epoch.
  std::uint64_t chunks() const;
  std::size_t context() const;
  // Chunk `index` of all epochs: inputs (context), and targets (context), the token behind each. A function of file, context,
  // seed, shards and index alone.
  void read(std::uint64_t index, std::span<std::int32_t> inputs, std::span<std::int32_t> targets) const;
};

}  // namespace bitloom::data
