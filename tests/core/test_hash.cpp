#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/hash.h"
#include "tests/support/catch.h"

using namespace bitloom;

namespace {

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

}  // namespace

TEST_CASE("XXH3-128 of known inputs", "[hash]") {
  // `printf '' | xxhsum -H2` and `printf abc | xxhsum -H2`.
  CHECK(hash_bytes({}).hex() == "99aa06d3014798d86001c324468d497f");
  CHECK(hash_bytes(bytes_of("abc")).hex() == "06b05ab6733a618578af5f94892f3950");
}

TEST_CASE("a hash's digits, the high half first", "[hash]") {
  const Hash128 hash{0x0123456789abcdefU, 0x1U};
  CHECK(hash.hex() == "00000000000000010123456789abcdef");
}

TEST_CASE("bytes may be hashed in pieces", "[hash]") {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  for (const std::size_t piece : {1, 63, 64, 240, 999}) {
    Hasher hasher;
    for (std::size_t begin = 0; begin < text.size(); begin += piece) hasher.update(bytes_of(text.substr(begin, piece)));
    CHECK(hasher.finish() == hash_bytes(bytes_of(text)));
  }
}

TEST_CASE("different sequences of fields have different hashes", "[hash]") {
  const auto strings = [](std::string_view a, std::string_view b) { return Hasher().update(a).update(b).finish(); };
  CHECK(strings("ab", "c") != strings("a", "bc"));
  CHECK(strings("", "a") != strings("a", ""));
  CHECK(Hasher().update(0.0).finish() != Hasher().update(-0.0).finish());
  CHECK(Hasher().update(1).finish() != Hasher().update(2).finish());
}

TEST_CASE("a number hashes alike whatever its type", "[hash]") {
  CHECK(Hasher().update(7).finish() == Hasher().update(std::uint64_t{7}).finish());
  CHECK(Hasher().update(std::int8_t{-7}).finish() == Hasher().update(std::int64_t{-7}).finish());
  CHECK(Hasher().update(0.5F).finish() == Hasher().update(0.5).finish());
  CHECK(Hasher().update("text").finish() == Hasher().update(std::string("text")).finish());
}

TEST_CASE("a hasher can go on after finish and be moved", "[hash]") {
  Hasher hasher;
  hasher.update("a");
  const Hash128 early = hasher.finish();
  CHECK(hasher.finish() == early);
  Hasher moved = std::move(hasher);
  CHECK(moved.update("b").finish() == Hasher().update("a").update("b").finish());
}
