// Tokenised documents in a file that is mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
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
    std::uint64_t bytes = 0;  // bytes of text
  };

  TokenFile() = default;
  // In memory.
  explicit TokenFile(Content content);
  // Maps a file. Throws Error(data) that names the path and what is wrong: not such a file, cut off, document ends that do not
  // ascend to the number of tokens. Tokens are checked when they are read.
  static TokenFile open(const std::filesystem::path& path);
  std::size_t size() const;  // tokens
  std::size_t documents() const;
  std::size_t vocabulary() const;
  const std::string& tokenizer_hash() const;
  std::uint64_t words() const;
  std::uint64_t bytes() const;
  // First token of document i, and the one after its last.
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

// Takes documents one by one.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  // Adds tokens of the document under way, without the end of text.
  virtual void add(std::span<const std::int32_t> tokens) = 0;
  // `words` and `bytes`: of its text.
  virtual void end_document(std::int32_t end_of_text, std::uint64_t words, std::uint64_t bytes) = 0;
};

// Into memory.
class ContentSink final : public TokenSink {
 public:
  // content: not null, outlives this.
  explicit ContentSink(TokenFile::Content* content) : content_(content) {}
  void add(std::span<const std::int32_t> tokens) override;
  void end_document(std::int32_t end_of_text, std::uint64_t words, std::uint64_t bytes) override;

 private:
  TokenFile::Content* content_;
};

// Into a file. Until finish() tokens go to a file without a name in the same folder, so that 8 bytes per document are in
// memory, no more.
class TokenFileWriter final : public TokenSink {
 public:
  // Throws Error(io), here and in all that follows, for what cannot be written.
  TokenFileWriter(std::filesystem::path path, std::size_t vocabulary, std::string tokenizer_hash);

  void add(std::span<const std::int32_t> tokens) override;
  void end_document(std::int32_t end_of_text, std::uint64_t words, std::uint64_t bytes) override;
  // Writes the file, atomically. To be called once, behind the last document.
  void finish();

  std::uint64_t size() const { return size_; }  // tokens
  std::size_t documents() const { return document_ends_.size(); }
  std::uint64_t words() const { return words_; }
  std::uint64_t bytes() const { return bytes_; }

 private:
  std::filesystem::path path_;
  std::fstream tokens_;
  std::size_t vocabulary_;
  std::string tokenizer_hash_;
  std::vector<std::uint64_t> document_ends_;
  std::uint64_t size_ = 0, words_ = 0, bytes_ = 0;
};

}  // namespace bitloom::data
