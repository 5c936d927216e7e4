#include <cstdint>

#include "tests/support/catch.h"
#include "tests/support/guarded.h"

using bitloom::test::Guarded;

TEST_CASE("a guarded array notices a write just outside of it", "[guarded]") {
  for (const std::size_t size : {std::size_t{1}, std::size_t{7}, std::size_t{64}}) {
    Guarded<std::uint16_t> array(size);
    REQUIRE(array.guards_intact());
    REQUIRE(reinterpret_cast<std::uintptr_t>(array.data()) % 64 == 0);
    for (std::uint16_t& value : array.span()) value = 1;
    CHECK(array.guards_intact());
    unsigned char* bytes = reinterpret_cast<unsigned char*>(array.data());
    bytes[size * 2] ^= 1;
    CHECK_FALSE(array.guards_intact());
    bytes[size * 2] ^= 1;
    bytes[-1] ^= 1;
    CHECK_FALSE(array.guards_intact());
  }
}

TEST_CASE("a guarded array tells which elements were written", "[guarded]") {
  Guarded<std::uint64_t> array(3);
  array[1] = 0;
  CHECK(array.untouched(0));
  CHECK_FALSE(array.untouched(1));
  CHECK(array.untouched(2));
  array.refill();
  CHECK(array.untouched(1));
}
