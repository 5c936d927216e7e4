// From text to the tokens of training and validation.
#include "data/text/prepare.h"

#include <omp.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

constexpr double one_in_thirty = 1.0 / 30;

TextInput file_with(const TempDir& folder, const std::string& text, const std::string& documents = "file") {
  write_file(folder / "text.txt", text);
  TextInput input;
  input.files = {(folder / "text.txt").string()};
  input.documents = documents;
  return input;
}

// The tokenizer of bytes, and a call where a document of more than 1 MiB is divided: the text is read for the second time then.
class CallingTokenizer final : public Tokenizer {
 public:
  explicit CallingTokenizer(std::function<void()> call) : call_(std::move(call)) {}

  std::string_view kind() const override { return bytes_->kind(); }
  std::size_t size() const override { return bytes_->size(); }
  std::int32_t end_of_text() const override { return bytes_->end_of_text(); }
  void encode(std::string_view text, std::vector<std::int32_t>& tokens, const MergeDropout& dropout) const override {
    bytes_->encode(text, tokens, dropout);
  }
  bool divides_at(std::string_view text, std::size_t place) const override {
    call_();
    return bytes_->divides_at(text, place);
  }
  std::string decode(std::span<const std::int32_t> tokens) const override { return bytes_->decode(tokens); }
  std::string serialize() const override { return bytes_->serialize(); }

 private:
  std::function<void()> call_;
  std::unique_ptr<Tokenizer> bytes_ = load_tokenizer("bytes");
};

// The documents as text again.
std::vector<std::string> texts(const TokenFile::Content& content, const Tokenizer& tokenizer) {
  const TokenFile file(content);
  std::vector<std::string> found;
  for (std::size_t i = 0; i < file.documents(); ++i) {
    std::vector<std::int32_t> tokens(file.document_end(i) - file.document_begin(i));
    file.read(file.document_begin(i), tokens);
    CHECK(tokens.back() == tokenizer.end_of_text());
    found.push_back(tokenizer.decode(tokens));
  }
  return found;
}

}  // namespace

TEST_CASE("documents for validation are drawn where the share is one of them at least", "[prepare]") {
  const TempDir folder;
  CHECK_FALSE(is_drawn(file_with(folder, "one"), 0.5));
  const TextInput two = file_with(folder, "one\n\ntwo\n", "blank-lines");
  CHECK_FALSE(is_drawn(two, 0.4));
  CHECK(is_drawn(two, 0.5));
  CHECK_FALSE(is_drawn(two, 0));
}

TEST_CASE("one of thirty documents is for validation", "[prepare]") {
  const TempDir folder;
  std::string text;
  for (int i = 0; i < 90; ++i) text += "document " + std::to_string(i) + "\n\n";
  const TextInput input = file_with(folder, text, "blank-lines");
  const auto tokenizer = load_tokenizer("bytes");
  const TokenSplits splits = prepare_text(input, *tokenizer, one_in_thirty, 1);
  const auto train = texts(splits.train, *tokenizer);
  const auto validation = texts(splits.validation, *tokenizer);
  CHECK(train.size() == 87);
  CHECK(validation.size() == 3);
  std::set<std::string> all(train.begin(), train.end());
  all.insert(validation.begin(), validation.end());
  CHECK(all.size() == 90);
  CHECK(all.contains("document 17\n"));
  CHECK(splits.train.words + splits.validation.words == 180);
  CHECK(splits.train.bytes + splits.validation.bytes == text.size() - 90);
  CHECK(splits.train.vocabulary == 257);
  CHECK(splits.train.tokenizer_hash == tokenizer_hash(*tokenizer));
  CHECK(prepare_text(input, *tokenizer, one_in_thirty, 1).validation.tokens == splits.validation.tokens);
  CHECK(prepare_text(input, *tokenizer, one_in_thirty, 2).validation.tokens != splits.validation.tokens);
  CHECK(prepare_text(input, *tokenizer, 0, 1).validation.tokens.empty());
  CHECK(texts(prepare_text(input, *tokenizer, 0.5, 1).validation, *tokenizer).size() == 45);
}

TEST_CASE("of few documents the end of the text is for validation, from a line on", "[prepare]") {
  const TempDir folder;
  const auto tokenizer = load_tokenizer("bytes");
  const std::string text = some_text(100);
  const TokenSplits splits = prepare_text(file_with(folder, text), *tokenizer, 0.1, 1);
  const auto train = texts(splits.train, *tokenizer);
  const auto validation = texts(splits.validation, *tokenizer);
  REQUIRE(train.size() == 1);
  REQUIRE(validation.size() == 1);
  CHECK(train[0] + validation[0] == text);
  CHECK(train[0].back() == '\n');
  CHECK(validation[0].size() > text.size() / 12);
  CHECK(validation[0].size() < text.size() / 9);

  // Several documents: those at the end, whole but for the first of them.
  std::string several;
  for (int i = 0; i < 5; ++i) several += "d" + std::to_string(i) + " " + some_text(20, 3) + "\n";
  const TokenSplits cut = prepare_text(file_with(folder, several, "blank-lines"), *tokenizer, 0.15, 1);
  CHECK(texts(cut.train, *tokenizer).size() == 5);
  REQUIRE(texts(cut.validation, *tokenizer).size() == 1);
  CHECK(several.ends_with(texts(cut.validation, *tokenizer)[0] + "\n"));

  // One line without an end: between characters.
  std::string line;
  for (int i = 0; i < 101; ++i) line += "\xE6\x97\xA5";
  const TokenSplits halves = prepare_text(file_with(folder, line), *tokenizer, 0.5, 1);
  CHECK(halves.train.bytes % 3 == 0);
  CHECK(halves.train.bytes + halves.validation.bytes == line.size());
  CHECK(halves.validation.bytes > 140);
  // A line that is longer than the share is cut as well; what cannot be divided is for training.
  CHECK(texts(prepare_text(file_with(folder, "abcdefghij\n"), *tokenizer, 0.5, 1).validation, *tokenizer) ==
        std::vector<std::string>{"fghij\n"});
  CHECK(prepare_text(file_with(folder, "a"), *tokenizer, 0.01, 1).train.tokens.size() == 2);
}

TEST_CASE("tokens do not depend on the number of threads", "[prepare]") {
  const TempDir folder;
  std::string text;
  for (unsigned i = 0; i < 300; ++i) text += some_text(3, i) + "\n";
  const TextInput input = file_with(folder, text, "blank-lines");
  const auto tokenizer = small_sentencepiece();
  const int threads = omp_get_max_threads();
  omp_set_num_threads(1);
  const TokenSplits one = prepare_text(input, *tokenizer, one_in_thirty, 1);
  omp_set_num_threads(4);
  const TokenSplits four = prepare_text(input, *tokenizer, one_in_thirty, 1);
  omp_set_num_threads(threads);
  CHECK(one.train.tokens == four.train.tokens);
  CHECK(one.train.document_ends == four.train.document_ends);
  CHECK(one.validation.tokens == four.validation.tokens);
  CHECK(one.train.document_ends.size() == 290);
}

TEST_CASE("a long document is tokenized in pieces, to the tokens of the whole", "[prepare]") {
  const TempDir folder;
  write_gpt2(folder.path(), {"t h", "th e", "i n", "a n", "\xC4\x8A \xC4\x8A"});  // two line ends as one token
  std::string text;
  while (text.size() < (std::size_t{5} << 19U)) text += some_text(3, static_cast<unsigned>(text.size())) + "\n\n";
  const TextInput input = file_with(folder, text);
  const auto sentencepiece = small_sentencepiece();
  const auto gpt2 = load_tokenizer(folder.path().string());
  const auto bytes = load_tokenizer("bytes");
  for (const Tokenizer* tokenizer : {sentencepiece.get(), gpt2.get(), bytes.get()}) {
    CAPTURE(tokenizer->kind());
    std::vector<std::int32_t> whole = encode(*tokenizer, text);
    whole.push_back(tokenizer->end_of_text());
    const TokenSplits splits = prepare_text(input, *tokenizer, 0, 1);
    CHECK(splits.train.tokens == whole);
    CHECK(splits.train.document_ends == std::vector<std::uint64_t>{whole.size()});
    CHECK(splits.train.bytes == text.size());
    // To a file: the same.
    TokenFileWriter train(folder / "train", tokenizer->size(), tokenizer_hash(*tokenizer));
    TokenFileWriter validation(folder / "validation", tokenizer->size(), tokenizer_hash(*tokenizer));
    prepare_text(input, *tokenizer, 0.1, 1, train, validation);
    train.finish();
    validation.finish();
    const TokenSplits cut = prepare_text(input, *tokenizer, 0.1, 1);
    for (const auto& [name, content] : {std::pair("train", &cut.train), std::pair("validation", &cut.validation)}) {
      const TokenFile file = TokenFile::open(folder / name);
      std::vector<std::int32_t> tokens(file.size());
      file.read(0, tokens);
      CHECK(tokens == content->tokens);
      CHECK(file.words() == content->words);
      CHECK(file.bytes() == content->bytes);
    }
    CHECK(train.size() == cut.train.tokens.size());
    CHECK(train.documents() == 1);
    CHECK(train.words() + validation.words() == splits.train.words);
  }
}

TEST_CASE("text that cannot be prepared is refused", "[prepare]") {
  const TempDir folder;
  const auto tokenizer = load_tokenizer("bytes");
  CHECK(has(message_of(ErrorKind::data, [&] { prepare_text(file_with(folder, "\n \n"), *tokenizer, 0, 1); }),
            "there is no text in"));
  for (const double share : {-0.1, 1.0, std::nan("")}) {
    CHECK(has(message_of(ErrorKind::usage, [&] { prepare_text(file_with(folder, "a"), *tokenizer, share, 1); }),
              "for validation"));
  }
  TextInput two;
  for (const char* name : {"a.txt", "b.txt"}) {
    write_file(folder / name, "text\n");
    two.files.push_back((folder / name).string());
  }
  CHECK(has(message_of(ErrorKind::usage, [&] { prepare_text(two, *tokenizer, 0.8, 1); }),
            "`validation`: 0.8 of 2 documents leaves none to train on"));
}

// More documents than at first were looked up beyond the end of the list of those for validation; other lengths moved the cut.
TEST_CASE("text that changes while it is read is refused", "[prepare]") {
  const TempDir folder;
  TextInput input;
  input.files = {(folder / "first.txt").string(), (folder / "second.txt").string()};
  input.documents = "blank-lines";
  std::string lines;
  while (lines.size() < (std::size_t{9} << 17U)) lines += "a line among many others, all of which are the same as this one\n";
  write_file(folder / "first.txt", lines);
  const std::string text = "one\n\ntwo\n";
  for (const double share : {0.0, 0.1, 0.5}) {  // none, the end of the text, documents
    for (const std::string other :
         {"one\n\ntwo\n", "one\n\ntwo and more\n", "one\n\ntw\n", "one\n\ntwo\n\nthree\n", "one\n", ""}) {
      INFO(share << ", then '" << other << "'");
      write_file(folder / "second.txt", text);
      std::size_t calls = 0;
      const CallingTokenizer tokenizer([&] {
        ++calls;
        write_file(folder / "second.txt", other);
      });
      const std::string message = message_of(ErrorKind::data, [&] { prepare_text(input, tokenizer, share, 1); });
      CHECK(calls > 0);
      if (other == text) {
        CHECK(message == "no error");
      } else {
        CHECK(has(message, "the text has changed while it was read"));
      }
    }
  }
}
