// GGUF files byte by byte, and the types of their tensors. What the package gguf reads in them is tested by
// tests/peers/test_gguf.py.
#include "core/gguf.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using namespace std::string_literals;

namespace {

std::string as_text(const std::vector<std::byte>& bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// A text as the format has it: 8 bytes of length, then the characters.
std::string string_of(const std::string& text) {
  return std::string(1, static_cast<char>(text.size())) + "\0\0\0\0\0\0\0"s + text;
}

}  // namespace

TEST_CASE("a GGUF file has header, keys, descriptions of tensors and tensors where the format wants them", "[gguf]") {
  GgufFile file;
  file.set("flag", true);
  file.set("count", std::uint32_t{258});
  file.set("small", 0.5F);
  file.set("name", "\xC3\xA9"s);
  file.set("raw", std::vector<std::uint8_t>{7, 255});
  file.set("kinds", std::vector<std::int32_t>{-1});
  file.set("scores", std::vector<float>{1.0F});
  file.set("words", std::vector<std::string>{"a", ""});
  file.set("none", std::vector<std::string>{});
  file.add("m", GgufType::f32, {2, 3}, [] { return std::vector<float>{1, 2, 3, 4, 5, 6}; });
  file.add("h", GgufType::f16, {1}, [] { return std::vector<float>{-2}; });
  TempDir folder;
  file.save(folder / "file.gguf");
  std::string expected = "GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0"s;
  expected += string_of("flag") + "\x07\0\0\0\x01"s;
  expected += string_of("count") + "\x04\0\0\0\x02\x01\0\0"s;
  expected += string_of("small") + "\x06\0\0\0\0\0\0\x3F"s;
  expected += string_of("name") + "\x08\0\0\0"s + string_of("\xC3\xA9");
  expected += string_of("raw") + "\x09\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x07\xFF"s;
  expected += string_of("kinds") + "\x09\0\0\0\x05\0\0\0\x01\0\0\0\0\0\0\0\xFF\xFF\xFF\xFF"s;
  expected += string_of("scores") + "\x09\0\0\0\x06\0\0\0\x01\0\0\0\0\0\0\0\0\0\x80\x3F"s;
  expected += string_of("words") + "\x09\0\0\0\x08\0\0\0\x02\0\0\0\0\0\0\0"s + string_of("a") + string_of("");
  expected += string_of("none") + "\x09\0\0\0\x08\0\0\0\0\0\0\0\0\0\0\0"s;
  expected += string_of("m") + "\x02\0\0\0\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"s;
  expected += string_of("h") + "\x01\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\x20\0\0\0\0\0\0\0"s;
  expected.resize((expected.size() + 31) / 32 * 32);
  expected += "\0\0\x80\x3F\0\0\0\x40\0\0\x40\x40\0\0\x80\x40\0\0\xA0\x40\0\0\xC0\x40"s + std::string(8, '\0');
  expected += "\0\xC0"s + std::string(30, '\0');
  CHECK(read_file(folder / "file.gguf") == expected);
}

TEST_CASE("q8_0 has the scale and the integers of ggml's reference", "[gguf]") {
  std::vector<float> row(64, 0);
  row[0] = -254;  // scale 2, which is 0x4000 in f16
  row[1] = 3;     // 1.5, away from 0
  row[2] = -3;
  row[3] = 2.9F;
  row[31] = 254;
  std::string expected = "\0\x40\x81\x02\xFE\x01"s + std::string(27, '\0') + "\x7F";
  expected += std::string(34, '\0');  // a block of zeros has the scale 0
  CHECK(as_text(to_gguf(GgufType::q8_0, row)) == expected);

  // The integers come from the scale in f32: in f16 it is 0.1 / 127 rounded, by which 0.1 would not be 127.
  const std::vector<float> tenths(32, 0.1F);
  const std::string bytes = as_text(to_gguf(GgufType::q8_0, tenths));
  CHECK(bytes.substr(2) == std::string(32, '\x7F'));

  // Blocks whose scale is 0 in f16 keep their integers in ggml; an inverse that overflows must not be converted.
  for (const float tiny : {1e-10F, 1e-37F, std::numeric_limits<float>::denorm_min()}) {
    const std::string small = as_text(to_gguf(GgufType::q8_0, std::vector<float>(32, tiny)));
    CHECK(small.size() == 34);
    CHECK(small.substr(0, 2) == "\0\0"s);
  }
}

TEST_CASE("numbers that a GGUF type does not have are refused with value and tensor", "[gguf]") {
  const float infinite = std::numeric_limits<float>::infinity();
  for (const float value : {1e5F, -infinite, std::nanf("")}) {
    CHECK(has(message_of(ErrorKind::data,
                         [&] {
                           to_gguf(GgufType::f16, std::vector<float>{1, value});
                         }),
              "has no f16; expected numbers of at most 65504 in size"));
  }
  std::vector<float> block(32, 1);
  for (const float value : {infinite, std::nanf("")}) {
    block[5] = value;
    CHECK(has(message_of(ErrorKind::data, [&] { to_gguf(GgufType::q8_0, block); }), "is not finite"));
  }
  block[5] = 1e9F;
  CHECK(has(message_of(ErrorKind::data, [&] { to_gguf(GgufType::q8_0, block); }), "has no f16"));

  TempDir folder;
  write_file(folder / "file.gguf", "old");
  GgufFile file;
  file.add("weight", GgufType::q8_0, {1, 32}, [&] { return block; });
  CHECK(has(message_of(ErrorKind::data, [&] { file.save(folder / "file.gguf"); }), "the tensor 'weight': "));
  CHECK(read_file(folder / "file.gguf") == "old");
  CHECK(temporaries_in(folder.path()) == 0);
}

TEST_CASE("what no GGUF file can hold is a bug of the caller", "[gguf]") {
  GgufFile file;
  const auto none = [] { return std::vector<float>(); };
  file.set("key", true);
  CHECK(has(message_of(ErrorKind::internal, [&] { file.set("key", false); }), "the key 'key' twice"));
  file.add("a", GgufType::f32, {2}, none);
  CHECK(has(message_of(ErrorKind::internal, [&] { file.add("a", GgufType::f32, {2}, none); }), "the tensor 'a' twice"));
  CHECK(has(message_of(ErrorKind::internal,
                       [&] {
                         file.add("b", GgufType::q8_0, {32, 33}, none);
                       }),
            "'b' of shape [32, 33] cannot have the type q8_0"));
  CHECK(has(message_of(ErrorKind::internal, [&] { file.add("b", GgufType::f32, {}, none); }), "cannot have the type f32"));
  TempDir folder;
  CHECK(has(message_of(ErrorKind::internal, [&] { file.save(folder / "x"); }), "'a' of shape [2] was given 0 elements"));
  CHECK(has(message_of(ErrorKind::io, [&] { GgufFile().save(folder / "none" / "x"); }), "No such file or directory"));
}
