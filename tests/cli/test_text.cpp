// The commands that read text.
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/text/token_file.h"
#include "data/text/tokenizer.h"
#include "tests/cli/program.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

std::vector<Json> lines_of(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(Json::parse(line));
  return lines;
}

}  // namespace

TEST_CASE("a tokenizer is trained, shown and used", "[text]") {
  const TempDir folder;
  write_file(folder / "a.txt", some_text(150, 1));
  write_file(folder / "b.txt", some_text(150, 2));
  const Args train{"tokenizer", "train", "--input", "a.txt", "b.txt", "--vocabulary", "330", "--out", "words"};
  const Outcome trained = run_program(folder.path(), train);
  CHECK(trained.code == 0);
  INFO(trained.err);
  CHECK(has(trained.out, "words: sentencepiece, 330 tokens, end of text 1, hash "));
  CHECK(trained.err.empty());  // the trainer's own log is long
  const std::string bytes = read_file(folder / "words");
  const Outcome again = run_program(folder.path(), train);
  CHECK(again.code == 2);
  CHECK(has(again.err, "--out: words is there already; --force replaces it"));
  CHECK(run_program(folder.path(), with(train, {"--force"})).code == 0);
  CHECK(read_file(folder / "words") == bytes);
  const Outcome impossible =
      run_program(folder.path(), {"tokenizer", "train", "--input", "a.txt", "--vocabulary", "100000", "--out", "more"});
  CHECK(impossible.code == 2);
  CHECK(
      has(impossible.err, "--vocabulary: a vocabulary of 100000 tokens is impossible for this text: Vocabulary size too high"));

  const Outcome shown = run_program(folder.path(), {"tokenizer", "info", "words", "--text", "the king\n"});
  CHECK(shown.code == 0);
  CHECK(has(shown.out, "decoded: the same text"));
  CHECK(has(shown.out, "\"\\n\""));
  const Json json =
      Json::parse(run_program(folder.path(), {"tokenizer", "info", "bytes", "--json", "--text", "a\xC3\xA9"}).out);
  CHECK(json["kind"] == "bytes");
  CHECK(json["size"] == 257);
  CHECK(json["tokens"] == Json{97, 195, 169});
  CHECK(json["decoded"] == "a\xC3\xA9");

  const Outcome data = run_program(folder.path(), {"data", "text", "--input", "a.txt", "--input", "b.txt", "--tokenizer",
                                                   "words", "--out", "tokens", "--validation", "9:1"});
  CHECK(data.code == 0);
  CHECK(has(data.out, "tokens: sentencepiece tokenizer of 330 tokens"));
  const auto file = data::TokenFile::open(folder / "tokens" / "train.tokens");
  const auto validation = data::TokenFile::open(folder / "tokens" / "validation.tokens");
  const auto tokenizer = data::load_tokenizer((folder / "tokens").string());
  CHECK(tokenizer->serialize() == bytes);
  CHECK(file.tokenizer_hash() == data::tokenizer_hash(*tokenizer));
  CHECK(file.documents() == 2);
  CHECK(validation.documents() == 1);
  CHECK(file.words() + validation.words() == 2 * 150 * 9);
  std::vector<std::int32_t> first(file.size());
  std::vector<std::int32_t> rest(validation.size());
  file.read(0, first);
  validation.read(0, rest);
  CHECK(tokenizer->decode(first) + tokenizer->decode(rest) == some_text(150, 1) + some_text(150, 2));
  CHECK(has(run_program(folder.path(), {"data", "text", "--input", "a.txt", "--tokenizer", "bytes", "--out", "tokens"}).err,
            "--out: tokens is there already and not an empty folder"));
  // Stopped between the files, it left tokens for training of the split before.
  std::filesystem::remove(folder / "tokens/validation.tokens");
  std::filesystem::create_directory(folder / "tokens/validation.tokens");
  CHECK(run_program(folder.path(), {"data", "text", "--input", "a.txt", "--tokenizer", "bytes", "--out", "tokens", "--force"})
            .code == 5);
  CHECK_FALSE(std::filesystem::exists(folder / "tokens/train.tokens"));
  write_file(folder / "bad.txt", "fine\n\xFF\n");
  const Outcome bad = run_program(folder.path(), {"data", "text", "--input", "bad.txt", "--tokenizer", "bytes", "--out", "x"});
  CHECK(bad.code == 3);
  CHECK(has(bad.err, "'bad.txt', line 2: not UTF-8"));
  CHECK_FALSE(std::filesystem::exists(folder / "x"));
}

TEST_CASE("a corpus is cleaned and the report says why", "[text]") {
  const TempDir folder;
  const std::string first = some_text(30, 1);
  const std::string second = some_text(30, 2);
  std::string input;
  for (const std::string& text : {first, std::string("too short"), second, first + "One more line.\n"}) {
    input += Json{{"text", text}}.dump() + "\n";
  }
  write_file(folder / "in.jsonl", input);
  write_file(folder / "test.txt", second);
  write_file(folder / "none.txt", "Eight words that stand nowhere else, not here.\n");
  const Args args{"data",   "clean",    "--input",  "in.jsonl",  "--out", "out.jsonl",
                  "--test", "test.txt", "none.txt", "--jaccard", "0.9"};
  const Outcome cleaned = run_program(folder.path(), args);
  INFO(cleaned.err);
  CHECK(cleaned.code == 0);
  CHECK(has(cleaned.out, "4 documents\n  1 dropped: fewer than 128 words\n  1 dropped: Jaccard similarity above 0.9"));
  CHECK(has(cleaned.out, "test.txt: 100.00 % of "));
  CHECK(has(cleaned.out, "none.txt: 0.00 % of 1 8-grams"));
  const auto kept = lines_of(read_file(folder / "out.jsonl"));
  REQUIRE(kept.size() == 2);
  CHECK(kept[0] == Json{{"id", "in.jsonl:1"}, {"text", first}});
  CHECK(kept[1] == Json{{"id", "in.jsonl:3"}, {"text", second}});
  const auto report = lines_of(read_file(folder / "out.report.jsonl"));
  REQUIRE(report.size() == 4);
  CHECK(report[0] == Json{{"document", "in.jsonl:2"}, {"reason", "short"}, {"tokens", 2}});
  CHECK(report[1]["document"] == "in.jsonl:4");
  CHECK(report[1]["reason"] == "duplicate");
  CHECK(report[1]["twin"] == "in.jsonl:1");
  CHECK(report[1]["jaccard"] > 0.9);
  CHECK(report[2]["test"] == "test.txt");
  CHECK(report[2]["found"] == report[2]["ngrams"]);
  CHECK(has(run_program(folder.path(), args).err, "--out: out.jsonl is there already; --force replaces it"));
  std::filesystem::remove(folder / "out.jsonl");
  CHECK(has(run_program(folder.path(), args).err, "--out: out.report.jsonl is there already"));
  CHECK(run_program(folder.path(), with(args, {"--force", "--tokenizer", "bytes", "--min-tokens", "5"})).code == 0);
  CHECK(lines_of(read_file(folder / "out.jsonl")).size() == 3);
}
