#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/hash.h"
#include "core/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using test::has;
using test::message_of;

namespace {

// A small file with an empty tensor, a scalar, several element types and an odd number of bytes.
TensorFile example() {
  TensorFile file;
  file.metadata = {{"kind", "example"}, {"net", "tiny \"quoted\"\n\xC3\xA4"}};
  file.put("bits", {2, 1}, std::vector<std::uint64_t>{0x0123456789abcdefU, 7});
  file.put("bytes", {3}, std::vector<std::uint8_t>{1, 2, 3});
  file.put("counts", {2, 0, 5}, std::vector<std::int16_t>{});
  file.put("scale", {}, std::vector<float>{0.5F});
  return file;
}

bool same(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.bytes.size() == b.bytes.size() &&
         std::equal(a.bytes.begin(), a.bytes.end(), b.bytes.begin());
}

bool same_tensors(const TensorFile& a, const TensorFile& b) {
  return a.tensors.size() == b.tensors.size() &&
         std::equal(a.tensors.begin(), a.tensors.end(), b.tensors.begin(),
                    [](const auto& x, const auto& y) { return x.first == y.first && same(x.second, y.second); });
}

// A file of this header (padded as the format wants) and `data_size` bytes of data.
std::vector<std::byte> file_of(std::string header, std::size_t data_size) {
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::vector<std::byte> bytes(8 + header.size() + data_size);
  const std::uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

// The message with which `bytes` are refused, or "" if they are taken.
std::string refusal(std::span<const std::byte> bytes, Checksum checksum = Checksum::if_present) {
  try {
    TensorFile::parse(bytes, "some.file", checksum);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    CHECK(std::string_view(error.what()).find("'some.file'") != std::string_view::npos);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("tensors and metadata survive a file", "[safetensors]") {
  const test::TempDir folder;
  const TensorFile file = example();
  file.save(folder / "model.safetensors");
  const TensorFile loaded = TensorFile::load(folder / "model.safetensors", Checksum::required);
  CHECK(same_tensors(file, loaded));
  CHECK(loaded.metadata == file.metadata);
  CHECK(loaded.get("bits").as<std::uint64_t>()[0] == 0x0123456789abcdefU);
  CHECK(loaded.get("scale").as<float>()[0] == 0.5F);
  CHECK(loaded.get("counts").as<std::int16_t>().empty());
  CHECK(loaded.get("bits", DType::u64, {2, 1}).size() == 2);
  CHECK(loaded.get_metadata("kind") == "example");
  CHECK(loaded.contains("bytes"));
  CHECK_FALSE(loaded.contains("byte"));
  // Loading and saving again changes no byte.
  CHECK(loaded.serialize() == file.serialize());
}

TEST_CASE("every element type survives a file", "[safetensors]") {
  TensorFile file;
  const auto put = [&](auto smallest, auto largest) {
    const std::vector<decltype(smallest)> values{smallest, largest};
    file.put(std::string(dtype_name(dtype_of<decltype(smallest)>())), {2}, values);
  };
  const auto put_limits = [&]<typename T>(T) { put(std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()); };
  put_limits(std::uint8_t{}), put_limits(std::int8_t{}), put_limits(std::uint16_t{}), put_limits(std::int16_t{});
  put_limits(std::uint32_t{}), put_limits(std::int32_t{}), put_limits(std::uint64_t{}), put_limits(std::int64_t{});
  put_limits(0.0F), put_limits(0.0);
  REQUIRE(file.tensors.size() == 10);
  const std::vector<std::byte> bytes = file.serialize();
  const TensorFile loaded = TensorFile::parse(bytes, "memory");
  CHECK(same_tensors(file, loaded));
  for (const auto& [name, tensor] : loaded.tensors) CHECK(dtype_name(tensor.dtype) == name);
  CHECK(loaded.get("I8").as<std::int8_t>()[0] == -128);
  CHECK(loaded.get("F64").as<double>()[1] == std::numeric_limits<double>::max());
}

// Other programs read them as whole numbers of 16 bits.
TEST_CASE("numbers that the format has no name for are stored as U16 and named in the metadata", "[safetensors]") {
  TensorFile file;
  file.metadata["kind"] = "example";
  file.put("mean", {2}, std::vector<f1_6_9>{{0x8001}, {0x7DFF}});
  file.put("variance", {1, 3}, std::vector<f0_6_10>{{0}, {0xFBFF}, {7}});
  file.put("count", {1}, std::vector<std::uint16_t>{5});
  const std::vector<std::byte> bytes = file.serialize();
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  const auto header = nlohmann::json::parse(std::string(reinterpret_cast<const char*>(bytes.data()) + 8, length));
  for (const char* name : {"mean", "variance", "count"}) CHECK(header[name]["dtype"] == "U16");
  CHECK(header["__metadata__"]["bitloom.dtype.mean"] == "1-6-9");
  CHECK(header["__metadata__"]["bitloom.dtype.variance"] == "0-6-10");
  CHECK_FALSE(header["__metadata__"].contains("bitloom.dtype.count"));

  const TensorFile loaded = TensorFile::parse(bytes, "memory", Checksum::required);
  CHECK(same_tensors(file, loaded));
  CHECK(loaded.metadata == file.metadata);
  CHECK(loaded.get("mean").as<f1_6_9>()[1] == f1_6_9{0x7DFF});
  CHECK(loaded.serialize() == bytes);
  const test::TempDir folder;
  file.save(folder / "file");
  const TensorReader reader = TensorReader::open(folder / "file", Checksum::required);
  CHECK(reader.describe("variance").dtype == DType::f0_6_10);
  CHECK(reader.metadata == file.metadata);
  CHECK(TensorMapping::open(folder / "file").tensors.at("mean").dtype == DType::f1_6_9);
  // Which of the formats it is belongs to what the checksum is of.
  TensorFile other = file;
  other.tensors.at("mean").dtype = DType::u16;
  CHECK(other.serialize().size() != bytes.size());
  CHECK(has(message_of(ErrorKind::data, [&] { loaded.get("mean", DType::f32, {2}); }), "is 1-6-9[2], expected F32[2]"));
}

TEST_CASE("the layout is the published one", "[safetensors]") {
  const std::vector<std::byte> bytes = example().serialize();
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  REQUIRE(length < bytes.size());
  const auto header = nlohmann::json::parse(std::string(reinterpret_cast<const char*>(bytes.data()) + 8, length));
  CHECK(header["bits"] == nlohmann::json::parse(R"({"dtype":"U64","shape":[2,1],"data_offsets":[0,16]})"));
  // Behind the wider elements, so that all are aligned.
  CHECK(header["scale"] == nlohmann::json::parse(R"({"dtype":"F32","shape":[],"data_offsets":[16,20]})"));
  CHECK(header["counts"] == nlohmann::json::parse(R"({"dtype":"I16","shape":[2,0,5],"data_offsets":[20,20]})"));
  CHECK(header["bytes"] == nlohmann::json::parse(R"({"dtype":"U8","shape":[3],"data_offsets":[20,23]})"));
  CHECK(header["__metadata__"]["kind"] == "example");
  CHECK(header["__metadata__"]["bitloom.xxh3"].get<std::string>().size() == 32);
  CHECK(bytes.size() == 8 + length + 23);
  // Files of the same content are the same in all versions of the program.
  CHECK(hash_bytes(bytes).hex() == "ef7e0a1ce1ae5e92d47a6fc5d9997b41");
}

TEST_CASE("a file of another program needs no checksum unless one is required", "[safetensors]") {
  const auto bytes = file_of(R"({"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}})", 8);
  const TensorFile file = TensorFile::parse(bytes, "some.file");
  CHECK(file.get("a").as<std::int32_t>().size() == 2);
  CHECK(file.metadata.empty());
  CHECK(has(refusal(bytes, Checksum::required), "no checksum"));
  CHECK(refusal(file_of("{}", 0)) == "");
}

TEST_CASE("a file cut off at any byte is refused", "[safetensors]") {
  const std::vector<std::byte> bytes = example().serialize();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    INFO("size " << size);
    CHECK_FALSE(refusal(std::span(bytes).first(size)).empty());
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  CHECK(has(refusal(longer), "1 bytes follow"));
}

TEST_CASE("a change of any byte is noticed or harmless", "[safetensors]") {
  const TensorFile original = example();
  const std::vector<std::byte> bytes = original.serialize();
  std::size_t refused = 0;
  std::size_t taken = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int change : {0x01, 0x02, 0x20, 0x80, 0xff}) {
      std::vector<std::byte> damaged = bytes;
      damaged[i] ^= static_cast<std::byte>(change);
      for (const Checksum checksum : {Checksum::required, Checksum::if_present}) {
        try {
          const TensorFile file = TensorFile::parse(damaged, "some.file", checksum);
          ++taken;
          // Where the checksum's own name is damaged, nothing tells: there is one string more than before.
          const std::size_t unknown = checksum == Checksum::required ? 0 : 1;
          bool harmless = same_tensors(file, original) && file.metadata.size() <= original.metadata.size() + unknown;
          for (const auto& [key, value] : original.metadata) {
            harmless = harmless && file.metadata.contains(key) && file.get_metadata(key) == value;
          }
          INFO("byte " << i << ", change " << change);
          CHECK(harmless);
        } catch (const Error& error) {
          ++refused;
          if (error.kind() != ErrorKind::data) FAIL("byte " << i << ": " << error.what());
        }
      }
    }
  }
  CHECK(refused > 9 * taken);
}

TEST_CASE("malformed headers are refused with the reason", "[safetensors]") {
  struct Case {
    const char* header;
    std::size_t data_size;
    const char* reason;
  };
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  const std::string deep_member = "{\"a\":" + deep + "}";
  const Case cases[] = {
      {"", 0, "not valid JSON"},
      {"{", 0, "not valid JSON"},
      {"{} {}", 0, "not valid JSON"},
      {"{\"\xff\":1}", 0, "not valid JSON"},
      {"[]", 0, "not a JSON object"},
      {"7", 0, "not a JSON object"},
      {deep.c_str(), 0, "nested too deeply"},
      {deep_member.c_str(), 0, "nested too deeply"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not a JSON object"},
      {R"({"__metadata__":{"a":1}})", 0, "metadata 'a' is not a string"},
      {R"({"a":1})", 0, "'a' is not described by a JSON object"},
      {R"({"a":{}})", 0, "has no 'dtype'"},
      {R"({"a":{"dtype":"U8"}})", 0, "has no 'shape'"},
      {R"({"a":{"dtype":"U8","shape":[]}})", 0, "has no 'data_offsets'"},
      {R"({"a":{"dtype":"U8","shape":[],"data_offsets":[0,1],"b":1}})", 1, "unknown 'b'"},
      {R"({"a":{"dtype":"X9","shape":[],"data_offsets":[0,1]}})", 1, "unknown element type 'X9'"},
      {R"({"a":{"dtype":"F8_E4M3","shape":[],"data_offsets":[0,2]}})", 2, "unknown element type 'F8_E4M3'"},
      {R"({"a":{"dtype":"1-6-9","shape":[],"data_offsets":[0,2]}})", 2, "unknown element type '1-6-9'"},
      {R"({"__metadata__":{"bitloom.dtype.b":"1-6-9"},"a":{"dtype":"U16","shape":[],"data_offsets":[0,2]}})", 2,
       "'bitloom.dtype.b' is '1-6-9', which fits no tensor"},
      {R"({"__metadata__":{"bitloom.dtype.a":"1-6-9"},"a":{"dtype":"I16","shape":[],"data_offsets":[0,2]}})", 2,
       "'bitloom.dtype.a' is '1-6-9', which fits no tensor"},
      {R"({"__metadata__":{"bitloom.dtype.a":"U8"},"a":{"dtype":"U16","shape":[],"data_offsets":[0,2]}})", 2,
       "'bitloom.dtype.a' is 'U8', which fits no tensor"},
      {R"({"a":{"dtype":8,"shape":[],"data_offsets":[0,1]}})", 1, "unknown element type '8'"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "'shape' of the tensor 'a' is not an array"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "something else than sizes"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "something else than sizes"},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999],"data_offsets":[0,1]}})", 1, "something else than sizes"},
      {R"({"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}})", 1, "something else than sizes"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "expected two ascending ones"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", 1, "expected two ascending ones"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "expected two ascending ones"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "up to 1"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[18446744073709551615,18446744073709551615]}})", 1, "up to 1"},
      {R"({"a":{"dtype":"U16","shape":[1],"data_offsets":[0,1]}})", 1, "type U16 and shape [1] cannot have 1 bytes"},
      {R"({"a":{"dtype":"U8","shape":[2,3],"data_offsets":[0,5]}})", 5, "cannot have 5 bytes"},
      // These products are 0 modulo 2^64.
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0, "cannot have 0 bytes"},
      {R"({"a":{"dtype":"U64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0, "cannot have 0 bytes"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", 3,
       "'b' overlaps"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 2,
       "overlaps"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})", 3,
       "covers the 1 bytes before 'b'"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2, "covers the 1 bytes before 'a'"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3, "2 bytes follow"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1,
       "'a' stands there twice"},
      {R"({"__metadata__":{"k":"1","k":"2"}})", 0, "'k' stands there twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "'dtype' stands there twice"},
  };
  for (const Case& bad : cases) {
    INFO(std::string_view(bad.header).substr(0, 100));
    const std::string message = refusal(file_of(bad.header, bad.data_size));
    INFO(message.substr(0, 300));
    CHECK(has(message, bad.reason));
  }
}

TEST_CASE("absurd header lengths are refused", "[safetensors]") {
  for (const std::uint64_t length : {std::uint64_t{9}, std::uint64_t{1} << 40, ~std::uint64_t{0}, ~std::uint64_t{0} - 7}) {
    std::vector<std::byte> bytes = file_of("{}", 0);
    std::memcpy(bytes.data(), &length, 8);
    CHECK(has(refusal(bytes), "but only 8 follow"));
  }
}

TEST_CASE("damage to a file is told from its checksum", "[safetensors]") {
  const test::TempDir folder;
  std::vector<std::byte> bytes = example().serialize();
  bytes.back() ^= std::byte{1};
  write_atomically(folder / "file", bytes);
  const std::string message = message_of(ErrorKind::data, [&] { TensorFile::load(folder / "file"); });
  CHECK(has(message, (folder / "file").string()));
  CHECK(has(message, "checksum does not match: the file is damaged"));
  CHECK(has(message_of(ErrorKind::data, [&] { TensorFile::load(folder / "missing"); }), "No such file"));
  test::write_file(folder / "empty", "");
  CHECK(has(message_of(ErrorKind::data, [&] { TensorFile::load(folder / "empty"); }), "too few"));
}

TEST_CASE("what is missing or of another form is named", "[safetensors]") {
  const TensorFile file = TensorFile::parse(example().serialize(), "some.file");
  CHECK(message_of(ErrorKind::data, [&] { file.get("weights"); }) ==
        "'some.file' has no tensor 'weights'; it has: bits, bytes, counts, scale");
  CHECK(has(message_of(ErrorKind::data, [] { TensorFile().get("a"); }), "it has: none"));
  CHECK(message_of(ErrorKind::data, [&] {
          file.get("bits", DType::u64, {1, 2});
        }) == "'some.file': the tensor 'bits' is U64[2, 1], expected U64[1, 2]");
  CHECK(has(message_of(ErrorKind::data, [&] { file.get("bits", DType::i64, {2, 1}); }), "expected I64[2, 1]"));
  CHECK(has(message_of(ErrorKind::data, [&] { file.get("bits").as<float>(); }), "type U64, expected F32"));
  CHECK(has(message_of(ErrorKind::data, [&] { file.get_metadata("version"); }), "no metadata 'version'"));
}

TEST_CASE("tensors that make no sense are not written", "[safetensors]") {
  TensorFile file;
  const std::vector<float> three(3);
  CHECK(has(message_of(ErrorKind::internal, [&] { file.put("a", {2, 2}, three); }), "shape [2, 2] was given 3 elements"));
  message_of(ErrorKind::internal, [&] { file.put("__metadata__", {3}, three); });
  CHECK(file.tensors.empty());
  file.put("a", {3}, three);
  file.tensors["a"].shape = {4};
  message_of(ErrorKind::internal, [&] { file.serialize(); });
  file.tensors["a"].shape = {3};
  file.metadata["\xff"] = "";
  CHECK(has(message_of(ErrorKind::internal, [&] { file.serialize(); }), "not UTF-8"));
}

TEST_CASE("putting a tensor again replaces it", "[safetensors]") {
  TensorFile file;
  file.put("a", {1}, std::vector<float>{1.0F});
  Buffer<std::int32_t> values(2);
  values[1] = 5;
  file.put("a", {2}, values);
  CHECK(file.get("a").as<std::int32_t>()[1] == 5);
}

TEST_CASE("a mapped file has the tensors of the loaded one, and no less is checked but the checksum", "[safetensors]") {
  const test::TempDir folder;
  TensorFile file;
  file.metadata["key"] = "value";
  file.put("bytes", {3}, std::vector<std::uint8_t>{1, 2, 3});
  file.put("numbers", {2, 2}, std::vector<double>{1, 2, 3, 4});
  file.save(folder / "a.safetensors");
  TensorMapping mapping = TensorMapping::open(folder / "a.safetensors");
  const TensorMapping moved = std::move(mapping);
  CHECK(moved.metadata == file.metadata);
  REQUIRE(moved.tensors.size() == 2);
  for (const auto& [name, view] : moved.tensors) {
    const Tensor& tensor = file.get(name);
    CHECK(view.dtype == tensor.dtype);
    CHECK(view.shape == tensor.shape);
    CHECK(std::equal(view.bytes.begin(), view.bytes.end(), tensor.bytes.begin(), tensor.bytes.end()));
  }
  const std::string bytes = test::read_file(folder / "a.safetensors");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    test::write_file(folder / "b.safetensors", std::string_view(bytes).substr(0, length));
    CHECK(has(message_of(ErrorKind::data, [&] { TensorMapping::open(folder / "b.safetensors"); }),
              "is not a good safetensors file"));
  }
}

TEST_CASE("a file that is read in pieces has the tensors of the loaded one, and is refused as that is", "[safetensors]") {
  const test::TempDir folder;
  const std::filesystem::path path = folder / "file";
  const TensorFile file = example();
  file.save(path);
  {
    const TensorReader reader = TensorReader::open(path, Checksum::required);
    std::filesystem::rename(path, folder / "elsewhere");
    CHECK(reader.metadata == file.metadata);
    CHECK(reader.get_metadata("kind") == "example");
    for (const auto& [name, tensor] : file.tensors) {
      INFO(name);
      CHECK(reader.describe(name).dtype == tensor.dtype);
      CHECK(reader.describe(name).shape == tensor.shape);
      CHECK(same(reader.read(name, tensor.dtype, tensor.shape), tensor));
      CHECK(same(file.read(name, tensor.dtype, tensor.shape), tensor));
      for (const TensorSource* source : {static_cast<const TensorSource*>(&reader), static_cast<const TensorSource*>(&file)}) {
        if (tensor.bytes.size() < 3) continue;
        std::vector<std::byte> part(tensor.bytes.size() - 2);
        source->read(name, 1, part);
        CHECK(std::ranges::equal(part, tensor.bytes.span().subspan(1, part.size())));
      }
    }
    std::vector<std::byte> part(3);
    CHECK_NOTHROW(reader.read("bytes", 0, part));
    CHECK(has(message_of(ErrorKind::internal, [&] { reader.read("bytes", 1, part); }), "3 bytes from number 1"));
    CHECK(has(message_of(ErrorKind::data, [&] { reader.describe("byte"); }), "has no tensor 'byte'; it has: bits, bytes"));
    CHECK(has(message_of(ErrorKind::data, [&] { reader.read("scale", DType::f32, {1}); }),
              "the tensor 'scale' is F32 [], expected F32 [1]"));
    CHECK(has(message_of(ErrorKind::data, [&] { (void)reader.get_metadata("age"); }), "has no metadata 'age'"));
    std::filesystem::resize_file(folder / "elsewhere", 100);
    CHECK(has(message_of(ErrorKind::io, [&] { reader.read("bytes", 0, part); }), "cannot read '" + path.string() + "'"));
  }
  const std::string bytes = test::read_file(folder / "elsewhere");
  const auto same_refusal = [&](std::string_view content, Checksum checksum) {
    test::write_file(path, content);
    const auto message = [&](auto open) -> std::string {
      try {
        open(path, checksum);
      } catch (const Error& error) {
        CHECK(error.kind() == ErrorKind::data);
        return error.what();
      }
      return "";
    };
    const std::string expected = message([](const auto& p, Checksum c) { TensorFile::load(p, c); });
    CHECK(message([](const auto& p, Checksum c) { TensorReader::open(p, c); }) == expected);
    return !expected.empty();
  };
  const std::vector<std::byte> serialized = file.serialize();
  const std::string whole(reinterpret_cast<const char*>(serialized.data()), serialized.size());
  CHECK_FALSE(same_refusal(whole, Checksum::required));
  for (std::size_t at = 0; at < whole.size(); ++at) {
    INFO(at);
    CHECK(same_refusal(whole.substr(0, at), Checksum::if_present));
    std::string altered = whole;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    const bool in_data = at >= whole.size() - 23;
    CHECK(same_refusal(altered, Checksum::required) >= in_data);
  }
  CHECK(has(message_of(ErrorKind::data, [&] { TensorReader::open(folder / "missing"); }), "No such file"));
  CHECK(has(message_of(ErrorKind::data, [&] { TensorReader::open(folder.path()); }), "Is a directory"));
}

TEST_CASE("a file that is read in pieces is never in memory", "[safetensors]") {
  const test::TempDir folder;
  constexpr std::size_t pieces = 64;
  std::vector<std::uint32_t> piece(std::size_t{1} << 18U);  // 1 MiB
  std::uint32_t next = 0;
  const auto make = [&](const TakeBytes& take) {
    for (std::size_t p = 0; p < pieces; ++p) {
      for (std::uint32_t& number : piece) number = next++;
      take(std::as_bytes(std::span(piece)));
    }
  };
  const auto peak_memory = [] {  // KiB
    const std::string status = read_text("/proc/self/status");
    return std::stoul(status.substr(status.find("VmHWM:") + 6));
  };
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak becomes what there is now: proc(5)
  const std::size_t before = peak_memory();
  save_streamed(folder / "large", {}, {{"large", {DType::u32, {pieces * piece.size()}, make}}});
  const TensorReader reader = TensorReader::open(folder / "large", Checksum::required);
  std::uint32_t expected = 0;
  bool is_same = true;
  for (std::size_t p = 0; p < pieces; ++p) {
    reader.read("large", p * piece.size() * sizeof(std::uint32_t), std::as_writable_bytes(std::span(piece)));
    for (const std::uint32_t number : piece) is_same = is_same && number == expected++;
  }
  CHECK(is_same);
  CHECK(peak_memory() - before < pieces * 1024 / 4);
}

TEST_CASE("what is streamed gives the file that a whole one does", "[safetensors]") {
  const test::TempDir folder;
  const std::vector<std::int16_t> wide = {1, -2, 3};
  const std::vector<std::uint8_t> bytes = {4, 5, 6, 7, 8};
  TensorFile file;
  file.metadata = {{"kind", "test"}};
  file.put("a", {5}, bytes);
  file.put("b", {3}, wide);
  file.save(folder / "whole");
  std::string asked;  // each once: they may come from far away
  const auto in_parts = [&](const TakeBytes& take) {
    asked += "a";
    take(std::as_bytes(std::span(bytes).first(2)));
    take({});
    take(std::as_bytes(std::span(bytes).subspan(2)));
  };
  const auto at_once = [&](const TakeBytes& take) {
    asked += "b";
    take(std::as_bytes(std::span(wide)));
  };
  save_streamed(folder / "parts", file.metadata, {{"a", {DType::u8, {5}, in_parts}}, {"b", {DType::i16, {3}, at_once}}});
  CHECK(asked == "ab");
  CHECK(test::read_file(folder / "parts") == test::read_file(folder / "whole"));
  for (const std::size_t size : {4, 6}) {
    INFO(size);
    const auto save = [&] { save_streamed(folder / "bad", {}, {{"a", {DType::u8, {size}, in_parts}}}); };
    CHECK(has(message_of(ErrorKind::internal, save), fmt::format("the tensor 'a' of shape [{}] has 5 bytes", size)));
    CHECK_FALSE(std::filesystem::exists(folder / "bad"));
  }
  constexpr std::size_t most = std::numeric_limits<std::size_t>::max();
  const auto endless = [&] { save_streamed(folder / "bad", {}, {{"a", {DType::u16, {most}, in_parts}}}); };
  CHECK(has(message_of(ErrorKind::internal, endless), "is too large for a file"));
}
