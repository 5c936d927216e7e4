// Byte-level byte-pair encoding as in GPT-2 (Radford et al. 2019, section 2.2; github.com/openai/gpt-2, encoder.py).
#include <algorithm>
#include <array>

#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "data/text/gpt2_words.h"
#include "data/text/tokenizer_kinds.h"
#include "data/text/words.h"

namespace bitloom::data {
namespace {

using Json = nlohmann::json;

constexpr std::size_t gpt2_bytes = 256;

std::string utf8(std::uint32_t code) {  // below 0x800
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | code >> 6U), static_cast<char>(0x80U | (code & 0x3FU))};
}

// vocab.json spells each byte as a character that can be printed: bytes that are such characters in Latin-1 stand for
// themselves, the others follow from U+0100 on.
struct ByteSpelling {
  ByteSpelling() {
    std::uint32_t next = 0x100;
    for (std::uint32_t byte = 0; byte < gpt2_bytes; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
      character[byte] = utf8(printable ? byte : next++);
      bytes.emplace(character[byte], static_cast<char>(byte));
    }
  }

  // The bytes that a token is made of; nothing if it has other characters.
  std::optional<std::string> read(std::string_view token) const {
    std::string text;
    while (!token.empty()) {
      const std::size_t length = static_cast<unsigned char>(token.front()) < 0x80 ? 1 : 2;
      const auto found = bytes.find(std::string(token.substr(0, length)));
      if (found == bytes.end()) return std::nullopt;
      text.push_back(found->second);
      token.remove_prefix(length);
    }
    return text;
  }

  std::array<std::string, gpt2_bytes> character;
  std::unordered_map<std::string, char> bytes;
};

const ByteSpelling& spelling() {
  static const ByteSpelling table;
  return table;
}

struct Names {
  std::string_view vocab, merges;
};

class Gpt2Tokenizer final : public Tokenizer {
 public:
  // tokens: as spelt in vocab.json, by number. merges: "left right", by rank.
  Gpt2Tokenizer(std::vector<std::string> tokens, std::vector<std::string> merges, const Names& names)
      : spelt_(std::move(tokens)), merges_(std::move(merges)) {
    std::unordered_map<std::string_view, std::int32_t> numbers;
    for (std::size_t i = 0; i < spelt_.size(); ++i) numbers.emplace(spelt_[i], static_cast<std::int32_t>(i));
    find_special(numbers, names);
    for (std::size_t i = 0; i < spelt_.size(); ++i) {
      // Tokens not spelt in bytes were added by hand: encode() never gives them.
      texts_.push_back(spelling().read(spelt_[i]).value_or(spelt_[i]));
    }
    texts_[static_cast<std::size_t>(end_of_text_)].clear();
    for (std::size_t rank = 0; rank < merges_.size(); ++rank) add_merge(rank, numbers, names);
  }

  std::string_view kind() const override { return "gpt2"; }
  std::size_t size() const override { return spelt_.size(); }
  std::int32_t end_of_text() const override { return end_of_text_; }

  void encode(std::string_view text, std::vector<std::int32_t>& tokens, const MergeDropout& dropout) const override {
    DropoutDraws draws = dropout_draws(dropout, text);
    MergeTable::Scratch scratch;
    std::vector<std::int32_t> word_tokens;
    words_.cut(text, [&](std::string_view word) {
      word_tokens.clear();
      for (const char c : word) word_tokens.push_back(byte_tokens_[static_cast<unsigned char>(c)]);
      table_.merge(word_tokens, scratch, dropout.rate > 0 ? &draws : nullptr);
      tokens.insert(tokens.end(), word_tokens.begin(), word_tokens.end());
    });
  }

  // A single line end between other things is a word of its own. Among several spaces the last goes with what follows; and
  // beyond ASCII there are more kinds of spaces.
  bool divides_at(std::string_view text, std::size_t size) const override {
    const auto is_plain = [](char c) { return static_cast<unsigned char>(c) < 0x80 && !is_space(c); };
    return size >= 2 && size < text.size() && is_plain(text[size - 2]) && is_plain(text[size]);
  }

  std::string decode(std::span<const std::int32_t> tokens) const override {
    std::string text;
    for (const std::int32_t token : tokens) text += texts_[checked_token(token, size())];
    return text;
  }

  std::string serialize() const override { return envelope(kind(), Json{{"merges", merges_}, {"tokens", spelt_}}.dump()); }

 private:
  void find_special(const std::unordered_map<std::string_view, std::int32_t>& numbers, const Names& names) {
    for (std::size_t byte = 0; byte < gpt2_bytes; ++byte) {
      const auto found = numbers.find(spelling().character[byte]);
      if (found == numbers.end()) {
        fail(ErrorKind::data, "'{}': no token for the byte {} ('{}')", names.vocab, byte, spelling().character[byte]);
      }
      byte_tokens_[byte] = found->second;
    }
    const auto found = numbers.find(gpt2_end_of_text);
    if (found == numbers.end()) {
      fail(ErrorKind::data, "'{}': no token '{}', which ends every document", names.vocab, gpt2_end_of_text);
    }
    end_of_text_ = found->second;
  }

  void add_merge(std::size_t rank, const std::unordered_map<std::string_view, std::int32_t>& numbers, const Names& names) {
    const std::string_view line = merges_[rank];
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      fail(ErrorKind::data, "'{}': merge {} is '{}', expected two tokens with a space between", names.merges, rank + 1, line);
    }
    const auto number = [&](std::string_view token) {
      const auto found = numbers.find(token);
      if (found == numbers.end()) {
        fail(ErrorKind::data, "'{}': merge {} ('{}') needs the token '{}', which '{}' does not have", names.merges, rank + 1,
             line, token, names.vocab);
      }
      return found->second;
    };
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(space + 1);
    const std::string merged = std::string(left) + std::string(right);
    table_.add(number(left), number(right), number(merged), static_cast<double>(rank));
  }

  std::vector<std::string> spelt_;   // by token
  std::vector<std::string> merges_;  // by rank
  std::vector<std::string> texts_;   // by token: what it decodes to
  std::array<std::int32_t, gpt2_bytes> byte_tokens_{};
  std::int32_t end_of_text_ = 0;
  MergeTable table_;
  Gpt2Words words_;
};

std::vector<std::string> read_vocab(std::string_view text, std::string_view name) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {
    fail(ErrorKind::data, "'{}' is not valid JSON ({})", name, error.what());
  }
  if (!json.is_object() || json.empty() || json_depth(text) > deepest_json) {
    fail(ErrorKind::data, "'{}': expected a JSON object of tokens and numbers", name);
  }
  std::vector<std::string> tokens(json.size());
  std::vector<bool> seen(json.size(), false);
  for (const auto& [token, number] : json.items()) {
    if (!number.is_number_unsigned() || number.get<std::uint64_t>() >= tokens.size() || seen[number.get<std::size_t>()]) {
      fail(ErrorKind::data, "'{}': the token '{}' has the number {}, expected each of 0 to {} once", name, token, number.dump(),
           tokens.size() - 1);
    }
    tokens[number.get<std::size_t>()] = token;
    seen[number.get<std::size_t>()] = true;
  }
  return tokens;
}

std::vector<std::string> read_merges(std::string_view text) {
  std::vector<std::string> merges;
  for (bool first = true; !text.empty(); first = false) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    // Only the first line can be a comment: '#' begins tokens as well.
    if (line.empty() || (first && line.starts_with("#version"))) continue;
    merges.emplace_back(line);
  }
  return merges;
}

}  // namespace

const std::string& gpt2_spelling(unsigned char byte) { return spelling().character[byte]; }

bool is_gpt2_spelling(std::string_view token) { return spelling().read(token).has_value(); }

std::unique_ptr<Tokenizer> parse_gpt2(std::string_view body, std::string_view name) {
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  try {
    const Json json = Json::parse(body);
    json.at("tokens").get_to(tokens);
    json.at("merges").get_to(merges);
  } catch (const Json::exception& error) {
    fail(ErrorKind::data, "'{}' is no good gpt2 tokenizer ({})", name, error.what());
  }
  return std::make_unique<Gpt2Tokenizer>(std::move(tokens), std::move(merges), Names{name, name});
}

std::unique_ptr<Tokenizer> read_gpt2(std::string_view vocab_json, std::string_view vocab_name, std::string_view merges_text,
                                     std::string_view merges_name) {
  std::vector<std::string> tokens = read_vocab(vocab_json, vocab_name);
  // Trained without special tokens: the end of a document comes behind the vocabulary.
  if (std::find(tokens.begin(), tokens.end(), gpt2_end_of_text) == tokens.end()) tokens.emplace_back(gpt2_end_of_text);
  return std::make_unique<Gpt2Tokenizer>(std::move(tokens), read_merges(merges_text), Names{vocab_name, merges_name});
}

}  // namespace bitloom::data
