// GPT-2's tokenizer, against segmentations worked out by hand.
#include "core/error.h"
#include "data/text/gpt2_words.h"
#include "data/text/tokenizer.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

using Strings = std::vector<std::string>;

Strings words_of(const std::string& text) {
  Strings words;
  Gpt2Words().cut(text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

// Each token as text.
Strings pieces(const Tokenizer& tokenizer, const std::string& text) {
  Strings parts;
  for (const std::int32_t token : encode(tokenizer, text)) parts.push_back(tokenizer.decode(std::vector<std::int32_t>{token}));
  return parts;
}

const std::string space = "\xC4\xA0";  // how a space is spelt: U+0120

}  // namespace

TEST_CASE("text is cut into words as GPT-2 does", "[gpt2]") {
  CHECK(words_of("").empty());
  CHECK(words_of("Hello world") == Strings{"Hello", " world"});
  CHECK(words_of("it's we've I'll they'd you're I'm don't") ==
        Strings{"it", "'s", " we", "'ve", " I", "'ll", " they", "'d", " you", "'re", " I", "'m", " don", "'t"});
  CHECK(words_of("IT'S") == Strings{"IT", "'", "S"});
  CHECK(words_of("a  b") == Strings{"a", " ", " b"});
  CHECK(words_of("a   \n b  ") == Strings{"a", "   \n", " b", "  "});
  CHECK(words_of("x1234 56.7!?") == Strings{"x", "1234", " 56", ".", "7", "!?"});
  CHECK(words_of(" $5 (or)") == Strings{" $", "5", " (", "or", ")"});
  // Letters, numbers and white space of other scripts.
  CHECK(words_of("\xC3\xA9t\xC3\xA9\xC2\xBD\xD9\xA3") == Strings{"\xC3\xA9t\xC3\xA9", "\xC2\xBD\xD9\xA3"});
  CHECK(words_of("a\xE3\x80\x80"
                 "b") == Strings{"a", "\xE3\x80\x80", "b"});
  CHECK(words_of("a\xC2\x85"
                 "b") == Strings{"a", "\xC2\x85", "b"});
  CHECK(words_of("a\xE1\xA0\x8E"
                 "b") == Strings{"a", "\xE1\xA0\x8E", "b"});  // U+180E is no white space
  CHECK(words_of(" \xE1\xA0\x8E") == Strings{" \xE1\xA0\x8E"});
  CHECK(has(message_of(ErrorKind::data, [] { words_of("\xFF"); }), "not UTF-8"));
}

TEST_CASE("bytes merge by rank within words", "[gpt2]") {
  const TempDir folder;
  write_gpt2(folder.path(),
             {"l o", "lo w", "e r", space + " lo", "w er", space + " low", "n e", "ne w", "s t", "e st", "1 2", "' s"});
  const auto tokenizer = load_tokenizer(folder.path().string());
  CHECK(tokenizer->kind() == "gpt2");
  CHECK(tokenizer->size() == 256 + 12 + 1);
  CHECK(tokenizer->end_of_text() == 268);
  // "er" (rank 2) comes before "w er" (4), but "lo w" (1) before both.
  CHECK(pieces(*tokenizer, "lower") == Strings{"low", "er"});
  CHECK(pieces(*tokenizer, "wer") == Strings{"wer"});
  CHECK(pieces(*tokenizer, "newest") == Strings{"new", "est"});
  // "lo w" (1) takes its "lo" before " lo" (3) could; then " low" (5).
  CHECK(pieces(*tokenizer, " low") == Strings{" low"});
  CHECK(pieces(*tokenizer, " lot") == Strings{" lo", "t"});
  CHECK(pieces(*tokenizer, "12 123's") == Strings{"12", " ", "12", "3", "'s"});
  // The leftmost of equal pairs first.
  CHECK(pieces(*tokenizer, "lolo") == Strings{"lo", "lo"});
  CHECK(encode(*tokenizer, "lo\n") == std::vector<std::int32_t>{256, 10});
  CHECK(pieces(*tokenizer, "<|endoftext|>").size() == 13);  // never the special token
}

TEST_CASE("long words take no more than n log n", "[gpt2]") {
  const TempDir folder;
  Strings merges;
  std::string left = "a";
  for (int i = 0; i < 10; ++i, left += left) merges.push_back(left + " " + left);
  write_gpt2(folder.path(), merges);
  const auto tokenizer = load_tokenizer(folder.path().string());
  const std::string text(1 << 20, 'a');  // a quadratic algorithm would not come back
  const auto tokens = encode(*tokenizer, text);
  CHECK(tokens.size() == (1 << 10));
  CHECK(tokenizer->decode(tokens) == text);
}

TEST_CASE("damaged files of GPT-2 are refused", "[gpt2]") {
  const TempDir folder;
  const auto complaint = [&] { return message_of(ErrorKind::data, [&] { load_tokenizer(folder.path().string()); }); };
  write_gpt2(folder.path(), {"a b"});
  const std::string vocab = read_file(folder / "vocab.json");
  write_file(folder / "merges.txt", "#version: 0.2\na b c\n");
  CHECK(has(complaint(), "merge 1 is 'a b c', expected two tokens with a space between"));
  write_file(folder / "merges.txt", "a b\nb c\n");
  CHECK(has(complaint(), "merge 2 ('b c') needs the token 'bc'"));
  write_file(folder / "merges.txt", "a b\r\n");
  CHECK(load_tokenizer(folder.path().string())->size() == 258);
  write_file(folder / "vocab.json", "{");
  CHECK(has(complaint(), "vocab.json' is not valid JSON"));
  write_file(folder / "vocab.json", "[]");
  CHECK(has(complaint(), "expected a JSON object"));
  write_file(folder / "vocab.json", "{\"a\": " + std::string(200000, '[') + std::string(200000, ']') + "}");
  CHECK(has(complaint(), "expected a JSON object"));
  write_file(folder / "vocab.json", R"({"a": 0, "b": 2})");
  CHECK(has(complaint(), "the token 'b' has the number 2, expected each of 0 to 1 once"));
  write_file(folder / "vocab.json", R"({"a": 0, "b": 0})");
  CHECK(has(complaint(), "has the number 0"));
  write_file(folder / "vocab.json", R"({"a": 0, "b": 1})");
  CHECK(has(complaint(), "no token for the byte 0"));
  // Without an end of text, it comes behind the vocabulary.
  std::string without = vocab;
  const std::size_t at = without.rfind(", \"<|endoftext|>\"");
  REQUIRE(at != std::string::npos);
  write_file(folder / "vocab.json", without.substr(0, at) + "}");
  write_file(folder / "merges.txt", "a b\n");
  const auto tokenizer = load_tokenizer(folder.path().string());
  CHECK(tokenizer->end_of_text() == 257);
  CHECK(tokenizer->size() == 258);
}
