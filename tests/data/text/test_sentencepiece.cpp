// Training through sentencepiece, and what its models tell.
#include "core/error.h"
#include "core/file.h"
#include "data/text/sentencepiece_model.h"
#include "data/text/tokenizer_training.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

TextInput text_file(const TempDir& folder, const std::string& text) {
  write_file(folder / "text.txt", text);
  TextInput input;
  input.files = {(folder / "text.txt").string()};
  return input;
}

std::string model_bytes(const Tokenizer& tokenizer) {
  const std::string all = tokenizer.serialize();
  return all.substr(all.find('\n') + 1);
}

}  // namespace

TEST_CASE("training gives the size that was asked for, and the same bytes again", "[sentencepiece]") {
  const auto tokenizer = small_sentencepiece(340);
  CHECK(tokenizer->kind() == "sentencepiece");
  CHECK(tokenizer->size() == 340);
  CHECK(tokenizer->end_of_text() == 1);
  CHECK(small_sentencepiece(340)->serialize() == tokenizer->serialize());
  const std::string text = some_text(10, 7);
  CHECK(encode(*tokenizer, text).size() < text.size() / 2);
  const SentencepieceModel model = read_sentencepiece_model(model_bytes(*tokenizer), "test");
  CHECK(model.kind == SentencepieceModel::Kind::bpe);
  CHECK(model.pieces.size() == 340);
  CHECK(model.is_exact());
  CHECK(model.pieces[2].kind == SentencepieceModel::PieceKind::byte);
  CHECK(model.pieces[2].text == "<0x00>");
  // A file of the library itself does too.
  const TempDir folder;
  write_file(folder / "m.model", model_bytes(*tokenizer));
  CHECK(load_tokenizer((folder / "m.model").string())->serialize() == tokenizer->serialize());
}

TEST_CASE("vocabularies that cannot be are refused with the bound", "[sentencepiece]") {
  const TempDir folder;
  const TextInput input = text_file(folder, some_text(5));
  const auto complaint = [&](std::size_t size) { return message_of(ErrorKind::usage, [&] { train_tokenizer(input, size); }); };
  CHECK(has(complaint(258), "a vocabulary of 258 tokens is impossible; expected 259"));
  CHECK(has(complaint(0), "a vocabulary of 0 tokens is impossible"));
  CHECK(has(complaint(std::size_t{1} << 40U), "is impossible; expected 259"));
  CHECK(has(complaint(262), "a vocabulary of 262 tokens is impossible for this text: Vocabulary size is smaller than"));
  CHECK(has(complaint(30000), "a vocabulary of 30000 tokens is impossible for this text: Vocabulary size too high (30000)"));
  CHECK(has(message_of(ErrorKind::usage, [&] { train_tokenizer(text_file(folder, " \n\n"), 300); }), "there is no text"));
}

TEST_CASE("long lines and odd characters train as well", "[sentencepiece]") {
  const TempDir folder;
  std::string text = some_text(300);
  for (char& c : text) c = c == '\n' ? ' ' : c;
  text += std::string(20000, 'x') + "\t\xE2\x96\x81\xE2\x96\x85 \xF0\x9F\x98\x80";
  for (int i = 0; i < 3000; ++i) text += "\xE6\x97\xA5";
  const auto tokenizer = train_tokenizer(text_file(folder, text), 330);
  CHECK(tokenizer->decode(encode(*tokenizer, text)) == text);
  CHECK(tokenizer->size() == 330);
}

TEST_CASE("a document that is too long for a model which takes it as a whole is refused", "[sentencepiece]") {
  const auto exact = small_sentencepiece(300);
  const std::string text(65U << 20U, 'a');
  std::string bytes = exact->serialize();
  const std::string no_prefix("\x18\x00", 2);  // of what is said of normalising text: add_dummy_prefix
  const std::size_t place = bytes.find(no_prefix, bytes.rfind("identity"));
  REQUIRE(place != std::string::npos);
  bytes[place + 1] = '\1';
  const TempDir folder;
  write_file(folder / "m.model", bytes.substr(bytes.find('\n') + 1));
  const auto tokenizer = load_tokenizer((folder / "m.model").string());
  CHECK(tokenizer->decode(encode(*tokenizer, "the king")) == "the king");
  CHECK(has(message_of(ErrorKind::data, [&] { encode(*tokenizer, text); }),
            "a document of 65.0 MiB; a sentencepiece model that changes white space takes one as a whole: expected at most "
            "64.0 MiB"));
}

TEST_CASE("models whose pieces are no UTF-8 are damaged", "[sentencepiece]") {
  std::string bytes = model_bytes(*small_sentencepiece(300));
  bytes.at(bytes.find("<0x0A>")) = '\xFF';
  CHECK(has(message_of(ErrorKind::data, [&] { read_sentencepiece_model(bytes, "m"); }), "'m' is no good sentencepiece model"));
}

TEST_CASE("damaged models never crash", "[sentencepiece]") {
  const std::string bytes = model_bytes(*small_sentencepiece(300));
  const TempDir folder;
  std::size_t refused = 0;
  for (std::size_t i = 0; i < bytes.size(); i += 7) {
    std::string broken = bytes;
    broken[i] = static_cast<char>(~broken[i]);
    try {
      read_sentencepiece_model(broken, "test");
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::data);
      ++refused;
    }
    CHECK_NOTHROW([&] {
      try {
        read_sentencepiece_model(std::string_view(bytes).substr(0, i), "test");
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::data) throw;
      }
    }());
  }
  CHECK(refused > 0);
}
