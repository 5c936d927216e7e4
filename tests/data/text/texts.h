// Texts and tokenizers that the tests of this folder share.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "data/text/token_file.h"
#include "data/text/tokenizer.h"
#include "data/text/tokenizer_training.h"
#include "tests/support/files.h"

namespace bitloom::test {

// A byte as vocab.json of GPT-2 spells it, written from the description: 33 - 126, 161 - 172 and 174 - 255 are themselves in
// Unicode, the others 256, 257, ... in order.
inline std::string gpt2_spelling(int byte) {
  int code = 256;
  const auto itself = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
  for (int b = 0; b < byte; ++b) code += itself(b) ? 0 : 1;
  if (itself(byte)) code = byte;
  if (code < 128) return std::string(1, static_cast<char>(code));
  return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 63))};
}

// vocab.json and merges.txt in `folder`: the bytes in order, what `merges` ("left right") make, <|endoftext|>.
inline void write_gpt2(const std::filesystem::path& folder, const std::vector<std::string>& merges) {
  std::string vocab = "{";
  int next = 0;
  const auto add = [&](const std::string& token) {
    std::string escaped;
    for (const char c : token) escaped += (c == '"' || c == '\\') ? std::string("\\") + c : std::string(1, c);
    vocab += (next == 0 ? "\"" : ", \"") + escaped + "\": " + std::to_string(next);
    ++next;
  };
  for (int byte = 0; byte < 256; ++byte) add(gpt2_spelling(byte));
  std::string lines = "#version: 0.2\n";
  for (const std::string& merge : merges) {
    const std::size_t space = merge.find(' ');
    add(merge.substr(0, space) + merge.substr(space + 1));
    lines += merge + "\n";
  }
  add("<|endoftext|>");
  write_file(folder / "vocab.json", vocab + "}");
  write_file(folder / "merges.txt", lines);
}

// Text of every kind that is UTF-8 and has gone wrong somewhere.
inline std::vector<std::string> nasty_texts() {
  using namespace std::string_literals;
  return {
      "",
      "a",
      " ",
      "          ",
      "\n",
      "\n\n\n",
      "\r\n line\r\n\r\n",
      "\t\ttabs\tand  double  spaces   ",
      "Hello world! It's they've I'll we'd you're I'm CAN'T 'sup",
      "1234567890 3.14 1,000,000 \xC2\xBD \xD9\xA3",
      "\xC3\xA9t\xC3\xA9 na\xC3\xAFve \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E \xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82",
      "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7 emoji",
      "e\xCC\x81 combining, \xE2\x80\x83wide\xE2\x80\x83space, \xC2\xA0hard, \xE3\x80\x80ideographic",
      "the \xE2\x96\x81 that \xE2\x96\x81\xE2\x96\x81 stands for spaces, and \xE2\x96\x85 \xE2\x81\x87",
      "\x01\x02\x1F\x7F\xC2\x85 control \x1B[0m",
      "zero\0inside\0"s,
      "<|endoftext|> </s> <unk> <s> <0x41> <0x0A>",
      "\xEF\xBB\xBF marks order",
      std::string(5000, 'a') + std::string(3000, ' ') + "b",
      "\xF4\x8F\xBF\xBF\xEF\xBF\xBD\xED\x9F\xBF"};
}

inline void write_tokens(const std::filesystem::path& path, const data::TokenFile::Content& content) {
  data::TokenFileWriter writer(path, content.vocabulary, content.tokenizer_hash);
  std::uint64_t begin = 0;
  for (const std::uint64_t end : content.document_ends) {
    const bool last = end == content.document_ends.back();
    writer.add(std::span(content.tokens).subspan(begin, end - begin - 1));
    writer.end_document(content.tokens[end - 1], last ? content.words : 0, last ? content.bytes : 0);
    begin = end;
  }
  writer.finish();
}

// Some English, deterministic, of about `lines` lines.
inline std::string some_text(int lines, unsigned seed = 1) {
  static const std::vector<std::string> words{"the",  "king",   "of",    "and",   "shall", "speak", "now", "against", "Citizen",
                                              "love", "hearts", "never", "crown", "it's",  "I'll",  "to",  "in",      "night"};
  std::string text;
  for (int line = 0; line < lines; ++line) {
    for (int i = 0; i < 9; ++i) {
      seed = seed * 1664525U + 1013904223U;
      text += (i == 0 ? "" : " ") + words[(seed >> 16U) % words.size()];
    }
    text += ".\n";
  }
  return text;
}

// A sentencepiece tokenizer of that text.
inline std::unique_ptr<data::Tokenizer> small_sentencepiece(std::size_t vocabulary = 340) {
  const TempDir folder;
  write_file(folder / "text.txt", some_text(200));
  data::TextInput input;
  input.files = {(folder / "text.txt").string()};
  return data::train_tokenizer(input, vocabulary);
}

}  // namespace bitloom::test
