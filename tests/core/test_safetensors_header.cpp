// Headers that other programs wrote, or that are made to do harm.
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using test::has;
using test::message_of;

namespace {

// A file of this header, with `data` behind it.
std::vector<std::byte> header_with_data(const std::string& header, const std::vector<std::uint8_t>& data = {}) {
  const std::uint64_t length = header.size();
  std::vector<std::byte> bytes(sizeof length + header.size());
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, header.data(), header.size());
  for (const std::uint8_t value : data) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// A header in which a text of the metadata is arrays in one another.
std::string nested_header(std::size_t depth, const std::string& key = "bitloom.net") {
  return R"({"__metadata__":{")" + key + R"(":")" + std::string(depth, '[') + std::string(depth, ']') + R"("}})";
}

}  // namespace

// Descriptions of nets are such texts, and to print or copy what they hold took all of the stack.
TEST_CASE("metadata that are nested too deeply are refused, however they are read", "[safetensors]") {
  const test::TempDir folder;
  const std::string expected = "the metadata 'bitloom.net' is nested too deeply";
  for (const std::size_t depth : {101U, 100000U}) {
    CAPTURE(depth);
    const std::vector<std::byte> bytes = header_with_data(nested_header(depth));
    write_atomically(folder / "file", bytes);
    CHECK(has(message_of(ErrorKind::data, [&] { TensorFile::parse(bytes, "memory"); }), expected));
    CHECK(has(message_of(ErrorKind::data, [&] { TensorReader::open(folder / "file"); }), expected));
    CHECK(has(message_of(ErrorKind::data, [&] { TensorMapping::open(folder / "file"); }), expected));
  }
  CHECK(TensorFile::parse(header_with_data(nested_header(100)), "memory").get_metadata("bitloom.net").size() == 200);
  // Those of other programs are any text.
  CHECK(TensorFile::parse(header_with_data(nested_header(1000, "note")), "memory").get_metadata("note").size() == 2000);
}

TEST_CASE("truth values are read as bytes", "[safetensors]") {
  const auto bytes = header_with_data(R"({"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]}})", {1, 0, 1});
  const TensorFile file = TensorFile::parse(bytes, "memory");
  const auto mask = file.get("mask", DType::u8, {3}).as<std::uint8_t>();
  CHECK(std::vector<std::uint8_t>(mask.begin(), mask.end()) == std::vector<std::uint8_t>{1, 0, 1});
  // And written as these.
  const std::vector<std::byte> again = file.serialize();
  const std::string text(reinterpret_cast<const char*>(again.data()), again.size());
  CHECK(has(text, "U8"));
  CHECK_FALSE(has(text, "BOOL"));
}
