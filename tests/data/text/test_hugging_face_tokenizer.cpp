// Tokenizers in files for transformers. What other programs read in them is tested by tests/peers/test_tokenizers.py.
#include "data/text/hugging_face_tokenizer.h"

#include <nlohmann/json.hpp>

#include "data/text/sentencepiece_model.h"
#include "data/text/tokenizer_tables.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;
using Json = nlohmann::json;
using Names = std::vector<std::string>;

namespace {

Json json_in(const TempDir& folder, const char* name) { return Json::parse(read_file(folder / name)); }

}  // namespace

TEST_CASE("bytes are byte pairs that never merge", "[hugging_face]") {
  const TempDir folder;
  const WrittenTokenizer written = write_hugging_face_tokenizer(*load_tokenizer("bytes"), 37, folder.path());
  CHECK(written.files == Names{"tokenizer.json", "tokenizer_config.json"});
  CHECK(written.reason.empty());
  const Json json = json_in(folder, "tokenizer.json");
  CHECK(json["model"]["type"] == "BPE");
  CHECK(json["model"]["vocab"].size() == 257);
  for (int byte = 0; byte < 256; ++byte) CHECK(json["model"]["vocab"][gpt2_spelling(byte)] == byte);
  CHECK(json["model"]["merges"].empty());
  CHECK(json["pre_tokenizer"]["use_regex"] == false);
  CHECK(json["added_tokens"].size() == 1);
  CHECK(json["added_tokens"][0]["id"] == 256);
  const Json config = json_in(folder, "tokenizer_config.json");
  CHECK(config["eos_token"] == "<|endoftext|>");
  CHECK(config["model_max_length"] == 37);
}

TEST_CASE("tokens of gpt2 that are not spelt in bytes were added", "[hugging_face]") {
  const TempDir folder;
  write_gpt2(folder.path(), {"t h", "th e"});
  Json vocabulary = json_in(folder, "vocab.json");
  vocabulary["<|the mark|>"] = vocabulary.size();
  write_file(folder / "vocab.json", vocabulary.dump());
  const auto tokenizer = load_tokenizer(folder.path().string());
  const ByteLevelTables tables = byte_level_tables(*tokenizer);
  CHECK(tables.merges == Names{"t h", "th e"});
  CHECK(tables.tokens.size() == 260);
  CHECK(tables.tokens[257] == "the");
  CHECK(std::vector<bool>(tables.is_added.begin() + 256, tables.is_added.end()) == std::vector<bool>{false, false, true, true});
  const TempDir out;
  CHECK(write_hugging_face_tokenizer(*tokenizer, 37, out.path()).files ==
        Names{"vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json"});
  CHECK(json_in(out, "tokenizer.json")["added_tokens"].size() == 2);
  CHECK(json_in(out, "tokenizer.json")["pre_tokenizer"]["use_regex"] == true);
  CHECK(load_tokenizer(out.path().string())->serialize() == tokenizer->serialize());
}

TEST_CASE("merges of a sentencepiece model go by its scores", "[hugging_face]") {
  SentencepieceModel model;
  model.kind = SentencepieceModel::Kind::bpe;
  using enum SentencepieceModel::PieceKind;
  model.pieces = {{"<unk>", 0, unknown}, {"abb", -2, normal}, {"ab", -1, normal},  {"bb", -1, normal},
                  {"a", -4, normal},     {"b", -5, normal},   {"aab", -3, control}};
  const std::vector<PieceMerge> merges = piece_merges(model);
  std::vector<std::string> shown;
  for (const PieceMerge& merge : merges) {
    shown.push_back(fmt::format("{}+{}={}", model.pieces[merge.left].text, model.pieces[merge.right].text, merge.whole));
  }
  CHECK(shown == Names{"a+b=2", "b+b=3", "a+bb=1", "ab+b=1"});
  model.kind = SentencepieceModel::Kind::unigram;
  CHECK(piece_merges(model).empty());
}

TEST_CASE("a sentencepiece model goes as it is, with tokenizer.json where that can say it", "[hugging_face]") {
  const TempDir folder;
  const auto tokenizer = small_sentencepiece(340);
  const WrittenTokenizer written = write_hugging_face_tokenizer(*tokenizer, 37, folder.path());
  CHECK(written.files == Names{"tokenizer.model", "tokenizer.json", "tokenizer_config.json"});
  CHECK(read_file(folder / "tokenizer.model") == sentencepiece_file(*tokenizer));
  const Json json = json_in(folder, "tokenizer.json");
  CHECK(json["model"]["vocab"].size() == 340);
  CHECK(json["model"]["byte_fallback"] == true);
  CHECK(json_in(folder, "tokenizer_config.json")["eos_token"] == "</s>");

  // Later fields of a protocol buffer replace earlier ones: here white space comes after words.
  write_file(folder / "t.model", sentencepiece_file(*tokenizer) + "\x12\x03\xC0\x01\x01");
  const TempDir other;
  write_file(other / "tokenizer.json", "of another tokenizer");
  const WrittenTokenizer some = write_hugging_face_tokenizer(*load_tokenizer((folder / "t.model").string()), 37, other.path());
  CHECK(other_tokenizer_files(some, other.path()) == std::vector<std::filesystem::path>{other / "tokenizer.json"});
  CHECK(some.files == Names{"tokenizer.model"});
  CHECK(has(some.reason, "treat_whitespace_as_suffix is true"));
}

TEST_CASE("tables are asked of the kinds that have them", "[hugging_face]") {
  const auto pieces = small_sentencepiece(340);
  CHECK(has(message_of(ErrorKind::usage, [&] { byte_level_tables(*pieces); }), "of kind 'sentencepiece' does not merge bytes"));
  CHECK(has(message_of(ErrorKind::usage, [] { sentencepiece_file(*load_tokenizer("bytes")); }), "is no sentencepiece model"));
}
