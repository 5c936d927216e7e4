#include <algorithm>
#include <cstdint>
#include <utility>

#include "core/buffer.h"
#include "tests/support/catch.h"

using namespace bitloom;

TEST_CASE("a buffer is aligned to 64 bytes and zeroed, its padding included", "[buffer]") {
  for (const std::size_t size : {1, 7, 63, 64, 65, 1000}) {
    Buffer<std::uint8_t> buffer(size);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    CHECK(buffer.size() == size);
    // Vector kernels may load 64 bytes past the end.
    CHECK(std::all_of(buffer.data(), buffer.data() + size + 64, [](std::uint8_t byte) { return byte == 0; }));
  }
}

TEST_CASE("empty buffers", "[buffer]") {
  Buffer<int> none;
  Buffer<int> zero(0);
  CHECK(none.empty());
  CHECK(zero.empty());
  CHECK(none.span().empty());
  const Buffer<int> copy = none;
  CHECK(copy.empty());
  none.fill_zero();
  CHECK(none.begin() == none.end());
}

TEST_CASE("copies of a buffer are independent, moves take the content along", "[buffer]") {
  Buffer<int> first(3);
  std::copy_n(std::begin({1, 2, 3}), 3, first.begin());
  Buffer<int> copy = first;
  copy[0] = 9;
  CHECK(first[0] == 1);
  CHECK(copy[2] == 3);

  const int* data = first.data();
  Buffer<int> moved = std::move(first);
  CHECK(moved.data() == data);
  CHECK(first.empty());

  copy = moved;
  CHECK(copy[0] == 1);
  CHECK(copy.data() != moved.data());
  copy = std::move(moved);
  CHECK(copy.data() == data);
  const Buffer<int>& same = copy;
  copy = same;
  CHECK(copy[1] == 2);
  copy.fill_zero();
  CHECK(copy[1] == 0);
}
