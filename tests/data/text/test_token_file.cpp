// Token files: what is written comes back, and what is damaged is refused.
#include "data/text/token_file.h"

#include "core/error.h"
#include "core/safetensors.h"
#include "tests/data/text/texts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::data;
using namespace bitloom::test;

namespace {

TokenFile::Content some_content(std::size_t vocabulary = 257) {
  TokenFile::Content content;
  for (std::size_t i = 0; i < 60; ++i) content.tokens.push_back(static_cast<std::int32_t>(i * 7919 % vocabulary));
  content.document_ends = {1, 20, 59, 60};
  content.vocabulary = vocabulary;
  content.tokenizer_hash = "0123456789abcdef";
  content.words = 17;
  content.bytes = 90;
  return content;
}

void check_same(const TokenFile& file, const TokenFile::Content& content) {
  REQUIRE(file.size() == content.tokens.size());
  REQUIRE(file.documents() == content.document_ends.size());
  CHECK(file.vocabulary() == content.vocabulary);
  CHECK(file.tokenizer_hash() == content.tokenizer_hash);
  CHECK(file.words() == content.words);
  CHECK(file.bytes() == content.bytes);
  for (std::size_t i = 0; i < file.documents(); ++i) {
    CHECK(file.document_begin(i) == (i == 0 ? 0 : content.document_ends[i - 1]));
    CHECK(file.document_end(i) == content.document_ends[i]);
  }
  std::vector<std::int32_t> tokens(content.tokens.size());
  file.read(0, tokens);
  CHECK(tokens == content.tokens);
  std::vector<std::int32_t> part(7);
  file.read(13, part);
  CHECK(part == std::vector<std::int32_t>(content.tokens.begin() + 13, content.tokens.begin() + 20));
  file.read(60, {});
}

}  // namespace

TEST_CASE("token files come back as they were", "[token_file]") {
  const TempDir folder;
  // 16 bits hold 65536 tokens, no more.
  for (const std::size_t vocabulary : {2, 257, 65536, 65537, 300000}) {
    const TokenFile::Content content = some_content(vocabulary);
    check_same(TokenFile(content), content);
    write_tokens(folder / "t.tokens", content);
    TokenFile file = TokenFile::open(folder / "t.tokens");
    check_same(file, content);
    const TokenFile moved = std::move(file);
    check_same(moved, content);
    const TensorFile tensors = TensorFile::load(folder / "t.tokens", Checksum::required);
    CHECK(tensors.get("tokens").dtype == (vocabulary <= 65536 ? DType::u16 : DType::i32));
    CHECK(tensors.get("documents", DType::u64, {4}).as<std::uint64_t>()[1] == 20);
  }
  TokenFile::Content none;
  none.vocabulary = 5;
  write_tokens(folder / "empty.tokens", none);
  CHECK(TokenFile::open(folder / "empty.tokens").size() == 0);
  CHECK(TokenFile::open(folder / "empty.tokens").documents() == 0);
}

TEST_CASE("files that are no token files are refused", "[token_file]") {
  const TempDir folder;
  const auto path = folder / "t.tokens";
  const auto complaint = [&] { return message_of(ErrorKind::data, [&] { TokenFile::open(path); }); };
  CHECK(has(complaint(), "t.tokens"));
  write_file(path, "no such thing");
  CHECK(has(complaint(), "is not a good safetensors file"));
  TensorFile other;
  other.put("weights", {2}, std::vector<float>{1, 2});
  other.save(path);
  CHECK(has(complaint(), "is no token file: bitloom.format is '', expected 'tokens 1'"));

  const auto with = [&](auto change) {
    write_tokens(path, some_content());
    TensorFile file = TensorFile::load(path);
    change(file);
    file.save(path);
    return complaint();
  };
  const auto ends = [&](std::vector<std::uint64_t> values) {
    return with([&](TensorFile& file) { file.put("documents", {values.size()}, values); });
  };
  CHECK(has(ends({20, 20, 60}), "document 1 ends at token 20, expected more than 20 and at most 60"));
  CHECK(has(ends({0, 60}), "document 0 ends at token 0, expected more than 0"));
  CHECK(has(ends({20, 61}), "document 1 ends at token 61, expected more than 20 and at most 60"));
  CHECK(has(ends({20, 10, 60}), "document 1 ends at token 10"));
  CHECK(has(ends({20, ~std::uint64_t{0}}), "document 1 ends at token 18446744073709551615"));
  CHECK(has(ends({20, 59}), "the documents end at token 59, expected the number of tokens, 60"));
  CHECK(has(ends({}), "the documents end at token 0"));
  CHECK(has(with([](TensorFile& file) { file.tensors.erase("tokens"); }), "no tensor 'tokens'"));
  CHECK(has(with([](TensorFile& file) { file.put("tokens", {60}, std::vector<std::int32_t>(60)); }),
            "the tensor 'tokens' is I32 with 1 dimensions, expected U16"));
  CHECK(has(with([](TensorFile& file) { file.put("tokens", {6, 10}, std::vector<std::uint16_t>(60)); }), "with 2 dimensions"));
  CHECK(has(with([](TensorFile& file) { file.metadata.erase("bitloom.words"); }), "no metadata 'bitloom.words'"));
  for (const char* bad : {"", "0", "-1", "257x", "99999999999999999999"}) {
    CHECK(has(with([&](TensorFile& file) { file.metadata["bitloom.vocabulary"] = bad; }), "bitloom.vocabulary is '"));
  }
}

TEST_CASE("a token beyond the vocabulary is named when it is read", "[token_file]") {
  const TempDir folder;
  TokenFile::Content content = some_content();
  content.tokens[33] = 257;
  write_tokens(folder / "t.tokens", content);
  const TokenFile file = TokenFile::open(folder / "t.tokens");
  std::vector<std::int32_t> tokens(10);
  file.read(20, tokens);
  const std::string message = message_of(ErrorKind::data, [&] { file.read(30, tokens); });
  CHECK(has(message, "t.tokens': token 257 at place 33 is beyond the vocabulary of 257"));
  CHECK(has(message_of(ErrorKind::data, [&] { TokenFile(content).read(30, tokens); }), "token 257 at place 33"));
  CHECK(has(message_of(ErrorKind::internal, [&] { file.read(51, tokens); }), "there are no tokens 51 to 61 of 60"));
  content.tokens[33] = -1;
  CHECK(has(message_of(ErrorKind::data, [&] { TokenFile(content).read(30, tokens); }), "token -1 at place 33"));
  content.document_ends.pop_back();
  CHECK(has(message_of(ErrorKind::internal, [&] { TokenFile{content}; }), "the documents end at token 59"));
}

TEST_CASE("cut-off and garbled token files never crash", "[token_file]") {
  const TempDir folder;
  const auto path = folder / "t.tokens";
  write_tokens(path, some_content());
  const std::string bytes = read_file(path);
  std::vector<std::int32_t> tokens(60);
  std::size_t refused = 0;
  std::size_t accepted = 0;
  const auto attempt = [&](const std::string& content) {
    write_file(path, content);
    try {
      const TokenFile file = TokenFile::open(path);
      REQUIRE((file.documents() == 0 || file.document_end(file.documents() - 1) == file.size()));
      tokens.resize(file.size());
      file.read(0, tokens);
      ++accepted;
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::data);
      ++refused;
    }
  };
  for (std::size_t length = 0; length < bytes.size(); ++length) attempt(bytes.substr(0, length));
  CHECK(accepted == 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int value : {0, 0x20, 0x22, 0x2C, 0x30, 0x39, 0x5D, 0x7D, 0xFF, static_cast<unsigned char>(bytes[i]) ^ 1}) {
      std::string broken = bytes;
      broken[i] = static_cast<char>(value);
      attempt(broken);
    }
  }
  CHECK(refused > bytes.size());
  CHECK(accepted > 0);  // other tokens, another hash
}
