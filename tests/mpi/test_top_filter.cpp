// Which elements of every chunk are sent, how they are rounded, and that nothing is lost.
#include "mpi/top_filter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "mpi/sparse_filter.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::mpi;
using bitloom::test::message_of;

namespace {

std::vector<std::int32_t> random_elements(std::size_t size, double deviation, std::uint64_t seed) {
  Random random(seed, Stream::test);
  std::vector<std::int32_t> elements(size);
  for (std::int32_t& each : elements) each = static_cast<std::int32_t>(std::lrint(deviation * random.normal()));
  return elements;
}

// Numbers of the `count` largest of elements begin .. end - 1, of equal ones the first.
std::set<std::uint32_t> largest_places(const std::vector<std::int32_t>& all, std::size_t begin, std::size_t end,
                                       std::size_t count) {
  std::vector<std::uint32_t> places(end - begin);
  std::iota(places.begin(), places.end(), static_cast<std::uint32_t>(begin));
  std::ranges::stable_sort(places, [&](std::uint32_t a, std::uint32_t b) { return magnitude(all[a]) > magnitude(all[b]); });
  return {places.begin(), places.begin() + static_cast<std::ptrdiff_t>(std::min(count, places.size()))};
}

}  // namespace

TEST_CASE("the largest of every chunk are sent, as multiples of one power of two, and the rest is kept", "[top_filter]") {
  for (const std::size_t size : {1U, 7U, 64U, 100U, 1000U, 40000U}) {
    for (const unsigned bits : {1U, 2U, 4U, 8U, 0U}) {
      for (const std::size_t count : {1U, 5U, 64U}) {
        INFO(size << " elements, " << bits << " bits, " << count << " of 64");
        const TopFilter filter{64, count, bits};
        const std::vector<std::int32_t> before = random_elements(size, 500, 1), fresh = random_elements(size, 20000, 2);
        std::vector<std::int32_t> sum(size);
        for (std::size_t i = 0; i < size; ++i) sum[i] = before[i] + fresh[i];
        std::vector<std::int32_t> kept = before;
        const SparseVector sent = add_and_take_largest(fresh, kept, filter);
        REQUIRE(sent.size == size);
        REQUIRE(std::ranges::is_sorted(sent.index));
        std::vector<std::int64_t> whole(kept.begin(), kept.end());
        add_to(whole, sent);
        REQUIRE(std::equal(whole.begin(), whole.end(), sum.begin()));
        std::set<std::uint32_t> expected;
        for (std::size_t begin = 0; begin < size; begin += 64) {
          const std::size_t end = std::min(begin + 64, size);
          expected.merge(largest_places(sum, begin, end, ((end - begin) * count + 63) / 64));
        }
        std::set<std::uint64_t> magnitudes;
        for (std::size_t e = 0; e < sent.index.size(); ++e) {
          REQUIRE(expected.contains(sent.index[e]));
          REQUIRE((sent.value[e] < 0) == (sum[sent.index[e]] < 0));
          magnitudes.insert(magnitude(sent.value[e]));
        }
        if (bits == 0) {
          CHECK(std::ranges::all_of(expected, [&](std::uint32_t i) { return kept[i] == 0; }));
          continue;
        }
        if (count == 64 || sent.index.empty()) continue;  // small ones among them need not be sent
        CHECK(static_cast<double>(sent.index.size()) >= 0.99 * static_cast<double>(expected.size()));
        const std::uint64_t step = std::accumulate(magnitudes.begin(), magnitudes.end(), *magnitudes.begin(),
                                                   [](std::uint64_t a, std::uint64_t b) { return std::gcd(a, b); });
        CHECK(*magnitudes.rbegin() <= levels_of(bits) * step);
        if (bits <= 2) CHECK(std::has_single_bit(step));
      }
    }
  }
}

TEST_CASE("of equal elements the first are sent, zeros never", "[top_filter]") {
  std::vector<std::int32_t> kept(8, 0);
  const SparseVector sent = add_and_take_largest(std::vector<std::int32_t>{4, -4, 4, 0, 0, 0, 0, 4}, kept, {4, 2, 1});
  CHECK(sent.index == std::vector<std::uint32_t>{0, 1, 7});
  CHECK(sent.value == std::vector<std::int64_t>{4, -4, 4});
  CHECK(kept == std::vector<std::int32_t>{0, 0, 4, 0, 0, 0, 0, 0});
  std::vector<std::int32_t> zeros(8, 0);
  CHECK(add_and_take_largest(std::vector<std::int32_t>(8, 0), zeros, {4, 2, 1}).index.empty());
  CHECK(add_and_take_largest({}, {}, {4, 2, 1}).size == 0);
}

TEST_CASE("what is kept stays within its limit", "[top_filter]") {
  constexpr std::int32_t limit = largest_kept<std::int32_t>;
  std::vector<std::int32_t> kept = {limit, -limit, 1, 1};
  const std::vector<std::int32_t> fresh = {std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min(),
                                           0, 0};
  const SparseVector sent = add_and_take_largest(fresh, kept, {4, 2, 0});
  CHECK(sent.value == std::vector<std::int64_t>{limit, -limit});
  CHECK(kept == std::vector<std::int32_t>{0, 0, 1, 1});
}

TEST_CASE("messages of two bits take few bits an element", "[top_filter]") {
  const std::size_t size = 1U << 20U;
  std::vector<std::int32_t> kept(size);
  const SparseVector sent = add_and_take_largest(random_elements(size, 1e5, 3), kept, {4096, 64, 2});
  REQUIRE(sent.index.size() == size / 64);
  std::vector<std::byte> message;
  encode(sent, message);
  CHECK(8.0 * static_cast<double>(message.size()) / static_cast<double>(sent.index.size()) <
        10);  // 2 and about 7.5 for the place
}

TEST_CASE("the largest of a sum are as they are", "[top_filter]") {
  SparseVector sum;
  sum.size = 10;
  sum.index = {0, 1, 3, 4, 6, 9};
  sum.value = {5, -9, 7, 1, -2, 3};
  const SparseVector largest = largest_of(sum, 4, 2);
  CHECK(largest.size == 10);
  CHECK(largest.index == std::vector<std::uint32_t>{1, 3, 4, 6, 9});
  CHECK(largest.value == std::vector<std::int64_t>{-9, 7, 1, -2, 3});
  CHECK(largest_of(SparseVector{10, {}, {}}, 4, 2).index.empty());
}

TEST_CASE("filters that make no sense are refused", "[top_filter]") {
  const auto error = [](const TopFilter& filter) { return message_of(ErrorKind::usage, [&] { check(filter); }); };
  CHECK(error({0, 1, 2}) == "chunk: 0; expected at least 1");
  CHECK(error({4, 5, 2}) == "count: 5; expected 1 to the chunk, 4");
  CHECK(error({4, 0, 2}) == "count: 0; expected 1 to the chunk, 4");
  CHECK(error({4, 1, 3}).starts_with("value bits: 3"));
  std::vector<std::int32_t> kept(3);
  CHECK(message_of(ErrorKind::usage, [&] { add_and_take_largest(std::vector<std::int32_t>(2), kept, {}); }) ==
        "add_and_take_largest: 2 fresh elements; expected 3");
}
