// All kinds of tokenizers: what goes in comes out.
#include "data/text/tokenizer.h"

#include <set>
#include <thread>

#include "core/error.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

std::vector<std::unique_ptr<Tokenizer>> one_of_each() {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(load_tokenizer("bytes"));
  all.push_back(small_sentencepiece());
  const TempDir folder;
  write_gpt2(folder.path(), {"h e", "l l", "he ll", "hell o", "\xC4\xA0 t", "\xC4\xA0t h"});
  all.push_back(load_tokenizer(folder.path().string()));
  return all;
}

}  // namespace

TEST_CASE("decoding gives the bytes that were encoded", "[tokenizer]") {
  for (const auto& tokenizer : one_of_each()) {
    INFO(tokenizer->kind());
    std::vector<std::string> texts = nasty_texts();
    texts.push_back(some_text(20));
    if (tokenizer->kind() == "bytes") texts.emplace_back("\xFF\xFE\xC0\x80 broken \xE2\x82");
    for (const std::string& text : texts) {
      CAPTURE(text);
      std::vector<std::int32_t> tokens = encode(*tokenizer, text);
      CHECK(tokenizer->decode(tokens) == text);
      for (const std::int32_t token : tokens) {
        REQUIRE(token >= 0);
        REQUIRE(static_cast<std::size_t>(token) < tokenizer->size());
        REQUIRE(token != tokenizer->end_of_text());
      }
      // End of text is nothing, wherever it stands; encode() appends.
      tokens.insert(tokens.begin(), tokenizer->end_of_text());
      const std::size_t before = tokens.size();
      tokenizer->encode(text, tokens);
      CHECK(tokens.size() == 2 * before - 1);
      CHECK(tokenizer->decode(tokens) == text + text);
    }
  }
}

TEST_CASE("tokenizers come back from what they serialize", "[tokenizer]") {
  std::set<std::string> hashes;
  for (const auto& tokenizer : one_of_each()) {
    INFO(tokenizer->kind());
    const std::string bytes = tokenizer->serialize();
    const auto back = parse_tokenizer(bytes, "test");
    CHECK(back->kind() == tokenizer->kind());
    CHECK(back->size() == tokenizer->size());
    CHECK(back->serialize() == bytes);
    CHECK(encode(*back, some_text(5)) == encode(*tokenizer, some_text(5)));
    CHECK(tokenizer_hash(*back) == tokenizer_hash(*tokenizer));
    hashes.insert(tokenizer_hash(*tokenizer));

    const TempDir folder;
    write_file(folder / "tokenizer", bytes);
    CHECK(load_tokenizer(folder.path().string())->serialize() == bytes);
    CHECK(load_tokenizer((folder / "tokenizer").string())->serialize() == bytes);

    // A damaged byte anywhere, or a missing one, is noticed.
    const std::size_t step = bytes.size() < 1000 ? 1 : 97;
    for (std::size_t i = 0; i < bytes.size(); i += step) {
      std::string broken = bytes;
      broken[i] = static_cast<char>(broken[i] ^ 0x11);
      CHECK_THROWS_AS(parse_tokenizer(broken, "test"), Error);
    }
    CHECK_THROWS_AS(parse_tokenizer(bytes.substr(0, bytes.size() - 1), "test"), Error);
  }
  CHECK(hashes.size() == 3);
}

TEST_CASE("merge dropout follows from seed and text, in any thread", "[tokenizer]") {
  const std::string text = some_text(40);
  for (const auto& tokenizer : one_of_each()) {
    INFO(tokenizer->kind());
    const auto tokens_of = [&](const MergeDropout& dropout) {
      std::vector<std::int32_t> tokens;
      tokenizer->encode(text, tokens, dropout);
      return tokens;
    };
    if (tokenizer->kind() == "bytes") {
      CHECK(message_of(ErrorKind::usage, [&] {
              tokens_of({0.1, 1});
            }) == "merge dropout 0.1 does not go with a tokenizer of kind bytes, which merges nothing");
      continue;
    }
    const auto plain = tokens_of({});
    CHECK(tokens_of({0, 5}) == plain);
    const auto dropped = tokens_of({0.3, 5});
    CHECK(dropped != plain);
    CHECK(dropped.size() > plain.size());
    CHECK(tokens_of({0.3, 6}) != dropped);
    CHECK(tokenizer->decode(dropped) == text);
    // Everything is left out: no token has more than a character.
    for (const std::int32_t token : tokens_of({1, 5})) REQUIRE(tokenizer->decode(std::vector<std::int32_t>{token}).size() == 1);
    CHECK(tokens_of({1, 5}).size() == text.size());

    std::vector<std::vector<std::int32_t>> found(4);
    std::vector<std::thread> threads;
    for (auto& each : found) {
      threads.emplace_back([&tokens_of, &each] {
        for (int i = 0; i < 5; ++i) each = tokens_of({0.3, 5});
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& each : found) CHECK(each == dropped);
    CHECK(has(message_of(ErrorKind::usage, [&] { tokens_of({1.5, 1}); }), "a merge dropout of 1.5 is no probability"));
  }
}

TEST_CASE("dropout leaves out about as many merges as it says", "[tokenizer]") {
  const TempDir folder;
  write_gpt2(folder.path(), {"a b"});
  const auto tokenizer = load_tokenizer(folder.path().string());
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "ab.";
  std::vector<std::int32_t> tokens;
  tokenizer->encode(text, tokens, {0.25, 3});
  // 40000 tokens without dropout, one more for each of 20000 merges that is left out: 5000 expected, standard deviation 61.
  CHECK(tokens.size() > 44700);
  CHECK(tokens.size() < 45300);
}

TEST_CASE("tokenizers say which token is not there", "[tokenizer]") {
  for (const auto& tokenizer : one_of_each()) {
    const auto size = static_cast<std::int32_t>(tokenizer->size());
    for (const std::int32_t token : {size, -1, 1 << 30}) {
      CHECK(message_of(ErrorKind::usage, [&] {
              tokenizer->decode(std::vector<std::int32_t>{1, token});
            }) == "there is no token " + std::to_string(token) + "; expected 0 to " + std::to_string(size - 1));
    }
  }
}

TEST_CASE("a tokenizer that cannot be found or read says why", "[tokenizer]") {
  const TempDir folder;
  const auto complaint = [&](ErrorKind kind, const std::string& name) {
    return message_of(kind, [&] { load_tokenizer((folder / name).string()); });
  };
  CHECK(has(message_of(ErrorKind::usage, [] { load_tokenizer("byts"); }), "tokenizer 'byts': there is no such file or folder"));
  CHECK(has(complaint(ErrorKind::data, "."), "holds no tokenizer: expected vocab.json and merges.txt"));
  write_file(folder / "text", "just text");
  CHECK(has(complaint(ErrorKind::data, "text"), "is no tokenizer"));
  for (const std::string& bytes : {std::string(), std::string("\n\x05hello"), std::string("\xFF\xFF\xFF"), some_text(3)}) {
    write_file(folder / "bad.model", bytes);
    CHECK(has(complaint(ErrorKind::data, "bad.model"), "bad.model"));
  }
  write_file(folder / "half", load_tokenizer("bytes")->serialize() + "x");
  CHECK(has(complaint(ErrorKind::data, "half"), "it is cut off, or something follows its end"));
}

TEST_CASE("where a tokenizer says that text divides, the parts have the tokens of the whole", "[tokenizer]") {
  std::size_t divided = 0;
  for (const auto& tokenizer : one_of_each()) {
    CAPTURE(tokenizer->kind());
    std::vector<std::string> texts = nasty_texts();
    for (const std::string space : {" ", "\n", "\t", "\r\n", "\xC2\xA0", "\xE2\x80\x83", "'s", "a", ""}) {
      texts.push_back("one two" + space + "\n" + space + "three" + space + space + "\n");
      texts.push_back(space + "\nthree \n" + space);
    }
    for (const std::string& text : texts) {
      for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) {
        if (!tokenizer->divides_at(text, at + 1)) continue;
        std::vector<std::int32_t> parts = encode(*tokenizer, text.substr(0, at + 1));
        const std::vector<std::int32_t> rest = encode(*tokenizer, text.substr(at + 1));
        parts.insert(parts.end(), rest.begin(), rest.end());
        CAPTURE(text, at);
        CHECK(parts == encode(*tokenizer, text));
        ++divided;
      }
    }
  }
  CHECK(divided > 50);
}
