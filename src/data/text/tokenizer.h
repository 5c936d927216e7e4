// Text to tokens and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace bitloom::data {

// BPE dropout (Provilkov et al. 2020): a merge is left out with this probability, so that the same text becomes other tokens.
// The draws follow from seed and text alone.
struct MergeDropout {
  double rate = 0;  // 0 <= rate <= 1
  std::uint64_t seed = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // "bytes", "sentencepiece" or "gpt2".
  virtual std::string_view kind() const = 0;
  // Tokens are 0 .. size() - 1.
  virtual std::size_t size() const = 0;
  // Token after every document.
  virtual std::int32_t end_of_text() const = 0;

  // Appends the tokens of `text`, which is UTF-8 (bytes: anything). Throws Error(usage) for dropout where nothing merges.
  virtual void encode(std::string_view text, std::vector<std::int32_t>& tokens, const MergeDropout& dropout = {}) const = 0;
  // Whether the tokens of `text` are those of its first `size` bytes and then those of the rest; false where that is not known.
  // A line end stands before: text[size - 1].
  virtual bool divides_at(std::string_view text, std::size_t size) const = 0;
  // Throws Error(usage) that names a token which is not there. Of tokens that encode() gave: the text itself, byte by byte.
  // end_of_text is "".
  virtual std::string decode(std::span<const std::int32_t> tokens) const = 0;

  // All of it; parse_tokenizer() makes the same from it.
  virtual std::string serialize() const = 0;
};

// `spec`: "bytes"; a file of serialize() or of sentencepiece (*.model); a folder with GPT-2's vocab.json and merges.txt, or
// with a file "tokenizer" of serialize(). Throws Error(usage) for anything else and Error(data) that names what is wrong in the
// file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& spec);
// `name` stands for the text in messages.
std::unique_ptr<Tokenizer> parse_tokenizer(std::string_view serialized, std::string_view name);

// Hash of serialize(), in hexadecimal digits: token files and models name the tokenizer that they are for by it.
std::string tokenizer_hash(const Tokenizer& tokenizer);

std::vector<std::int32_t> encode(const Tokenizer& tokenizer, std::string_view text);

}  // namespace bitloom::data
