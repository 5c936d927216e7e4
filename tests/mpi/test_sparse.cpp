// Sparse vectors, their messages, and what a worker keeps of what it does not send.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "mpi/sparse.h"
#include "mpi/sparse_filter.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::mpi;
using bitloom::test::message_of;

namespace {

// Each element is there with probability `density`, with a magnitude of 1 to `largest`.
SparseVector random_vector(std::uint64_t size, double density, std::uint64_t largest, std::uint64_t seed) {
  Random random(seed, Stream::test);
  SparseVector vector;
  vector.size = size;
  for (std::uint64_t i = 0; i < size; ++i) {
    if (random.uniform() >= density) continue;
    const auto m = static_cast<std::int64_t>(1 + random.next() % largest);
    vector.index.push_back(static_cast<std::uint32_t>(i));
    vector.value.push_back(random.next() % 2 == 0 ? m : -m);
  }
  return vector;
}

std::vector<std::byte> message_for(const SparseVector& vector) {
  std::vector<std::byte> message;
  const std::size_t bytes = encode(vector, message);
  CHECK(bytes == message.size());
  CHECK(encoded_size(vector) == bytes);
  return message;
}

void check_round_trip(const SparseVector& vector) {
  const SparseVector back = decode(message_for(vector));
  REQUIRE(back.size == vector.size);
  REQUIRE(back.index == vector.index);
  REQUIRE(back.value == vector.value);
}

std::vector<std::int64_t> to_dense(const SparseVector& vector) {
  std::vector<std::int64_t> dense(vector.size, 0);
  add_to(dense, vector);
  return dense;
}

}  // namespace

TEST_CASE("sparse messages give back what went in, at any density and of any values", "[sparse]") {
  std::uint64_t seed = 1;
  for (const std::uint64_t size : {1U, 2U, 7U, 8U, 63U, 64U, 65U, 1000U, 70000U}) {
    for (const double density : {0.0, 0.0005, 0.01, 0.2, 0.9, 1.0}) {
      for (const std::uint64_t largest : {std::uint64_t{1}, std::uint64_t{8}, std::uint64_t{100000}, std::uint64_t{1} << 62U}) {
        check_round_trip(random_vector(size, density, largest, ++seed));
      }
    }
  }
  check_round_trip({0, {}, {}});
  constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
  check_round_trip({3, {0, 2}, {least, std::numeric_limits<std::int64_t>::max()}});
  check_round_trip({2, {0, 1}, {least, least}});
  check_round_trip({SparseVector::largest_size, {0, 0xFFFFFFFFU}, {-1, 1}});
  // One large value among small ones is written in full.
  SparseVector outlier = random_vector(5000, 0.1, 2, 99);
  outlier.value[7] = std::int64_t{1} << 50U;
  check_round_trip(outlier);
}

// Where a tenth of the values are so large that the mean is theirs, it is best to write these in full.
TEST_CASE("small values among large ones stay short", "[sparse]") {
  SparseVector vector;
  vector.size = 100000;  // too many for the dense form
  for (std::uint32_t i = 0; i < 1000; ++i) {
    vector.index.push_back(i);
    vector.value.push_back(i % 10 == 0 ? 6291456 : 1);
  }
  // 900 of a bit, 100 of 24 + 64, and a sign and a gap of a bit each.
  CHECK(message_for(vector).size() <= (900 + 100 * 88 + 2000) / 8 + 20);
  check_round_trip(vector);
}

TEST_CASE("values that share a divisor cost no more than without it", "[sparse]") {
  SparseVector vector = random_vector(20000, 0.01, 8, 5);
  vector.value[0] = 1;
  const std::size_t bytes = message_for(vector).size();
  for (std::int64_t& value : vector.value) value *= 1000003;
  check_round_trip(vector);
  CHECK(message_for(vector).size() <= bytes + 3);
}

TEST_CASE("a message is within a tenth of the entropy of its entries", "[sparse]") {
  for (const double density : {0.0001, 0.001, 0.01, 0.1, 0.3}) {
    const SparseVector signs = random_vector(1 << 20U, density, 1, 11);
    const auto entries = static_cast<double>(signs.index.size());
    const double p = entries / static_cast<double>(signs.size);
    const double entropy = static_cast<double>(signs.size) * (-p * std::log2(p) - (1 - p) * std::log2(1 - p)) + entries;
    const double bits = 8.0 * static_cast<double>(message_for(signs).size());
    CAPTURE(density, bits / entropy);
    CHECK(bits < 1.1 * entropy + 100);
  }
}

TEST_CASE("a full vector is sent densely", "[sparse]") {
  const SparseVector full = random_vector(4096, 1.0, 100, 3);
  const std::vector<std::byte> message = message_for(full);
  CHECK((message[2] & std::byte{1}) == std::byte{1});
  CHECK(message.size() <= 4096 + 12);  // 0 to 200 for -100 to 100
  check_round_trip(full);
}

TEST_CASE("merging adds, in any order and any grouping, and drops what cancels", "[sparse]") {
  std::vector<SparseVector> parts;
  std::vector<std::int64_t> expected(3000, 0);
  for (std::uint64_t k = 0; k < 9; ++k) {
    parts.push_back(random_vector(3000, 0.05 * static_cast<double>(k), 2, 40 + k));
    add_to(expected, parts.back());
  }
  const SparseVector all = merge(parts);
  CHECK(all == to_sparse(expected));
  CHECK(std::find(all.value.begin(), all.value.end(), 0) == all.value.end());
  std::rotate(parts.begin(), parts.begin() + 4, parts.end());
  std::vector<SparseVector> left(parts.begin(), parts.begin() + 5);
  std::vector<SparseVector> right(parts.begin() + 5, parts.end());
  std::vector<SparseVector> halves;
  halves.push_back(merge(std::move(left)));
  halves.push_back(decode(message_for(merge(std::move(right)))));
  CHECK(merge(std::move(halves)) == all);
  CHECK(merge(std::vector<SparseVector>{}).size == 0);
  CHECK(message_of(ErrorKind::usage, [] {
          merge(std::vector<SparseVector>{{3, {}, {}}, {4, {}, {}}});
        }) == "merge: a vector of 4 elements; expected 3 as in the first");
  std::vector<std::int64_t> three(3);
  CHECK(message_of(ErrorKind::usage, [&] { add_to(three, {4, {}, {}}); }) == "add_to: a vector of 4 elements; expected 3");
}

TEST_CASE("damaged messages are refused or are messages of their own", "[sparse]") {
  Random random(7, Stream::test);
  std::size_t refused = 0;
  std::size_t accepted = 0;
  for (std::uint64_t round = 0; round < 4000; ++round) {
    const double density = round % 3 == 0 ? 0.5 : 0.02;
    std::vector<std::byte> message = message_for(random_vector(1 + random.below(400), density, 1 + random.below(300), round));
    switch (round % 4) {
      case 0: message.resize(random.below(static_cast<std::uint32_t>(message.size()))); break;
      case 1: message.push_back(static_cast<std::byte>(random.next())); break;
      default:
        for (std::uint32_t k = random.below(4); k < 4; ++k) {
          message[random.below(static_cast<std::uint32_t>(message.size()))] = static_cast<std::byte>(random.next());
        }
    }
    try {
      const SparseVector vector = decode(message);
      ++accepted;
      REQUIRE(vector.index.size() == vector.value.size());
      REQUIRE(vector.index.size() <= vector.size);
      for (std::size_t i = 0; i < vector.index.size(); ++i) {
        REQUIRE(vector.index[i] < vector.size);
        REQUIRE((i == 0 || vector.index[i - 1] < vector.index[i]));
        REQUIRE(vector.value[i] != 0);
      }
      check_round_trip(vector);
    } catch (const Error& error) {
      ++refused;
      REQUIRE(error.kind() == ErrorKind::data);
      REQUIRE(std::string(error.what()).starts_with("sparse message: "));
    }
  }
  CHECK(refused > 1500);
  CHECK(accepted > 100);
}

TEST_CASE("a message cannot ask for more memory than it brings", "[sparse]") {
  const auto bytes = [](std::initializer_list<int> numbers) {
    std::vector<std::byte> message;
    for (const int number : numbers) message.push_back(static_cast<std::byte>(number));
    return message;
  };
  // 2^32 elements, 2^28 entries, of which none is there.
  const auto sparse = bytes({0xB5, 1, 2, 0, 0, 0x80, 0x80, 0x80, 0x80, 0x10, 0x80, 0x80, 0x80, 0x80, 0x01, 1, 0xFF});
  CHECK(message_of(ErrorKind::data, [&] { decode(sparse); }) ==
        "sparse message: 268435456 values of a vector of 4294967296 cannot be in 1 bytes");
  const auto dense = bytes({0xB5, 1, 1, 0, 0x80, 0x80, 0x80, 0x80, 0x10, 1});
  CHECK(message_of(ErrorKind::data, [&] { decode(dense); }) == "sparse message: 0 bits per value are out of range");
  CHECK(message_of(ErrorKind::data, [&] { decode(bytes({})); }) == "sparse message: it ends after 0 bytes, before its mark");
  CHECK(message_of(ErrorKind::data, [&] { decode(bytes({0x42})); }) ==
        "sparse message: it does not start with the mark of one");
  CHECK(message_of(ErrorKind::data, [&] { decode(bytes({0xB5, 9})); }) == "sparse message: version 9; expected 1");
  CHECK(message_of(ErrorKind::data, [&] { decode(bytes({0xB5, 1, 4})); }) == "sparse message: unknown flags 0x4");
}

TEST_CASE("what is sent and what is kept make what was there", "[sparse]") {
  for (const unsigned bits : {0U, 1U, 4U, 8U, 16U}) {
    for (const std::uint64_t threshold : {0U, 1U, 500U, 100000U}) {
      for (const std::uint64_t step : {1U, 3U, 64U}) {
        std::vector<std::int64_t> expected = to_dense(random_vector(2000, 0.7, 100000, 17 + bits));
        std::vector<std::int32_t> pending(expected.begin(), expected.end());
        const SparseFilter filter = {threshold, step, levels_of(bits)};
        const SparseVector sent = take(std::span(pending), filter);
        for (const std::int64_t value : sent.value) {
          REQUIRE(value % static_cast<std::int64_t>(step) == 0);
          if (bits != 0) REQUIRE(std::abs(value) <= static_cast<std::int64_t>(step * levels_of(bits)));
        }
        std::vector<std::int64_t> back(pending.begin(), pending.end());
        add_to(back, sent);
        REQUIRE(back == expected);
        for (std::size_t i = 0, next = 0; i < expected.size(); ++i) {
          const bool passes = static_cast<std::uint64_t>(std::abs(expected[i])) > threshold;
          REQUIRE((next < sent.index.size() && sent.index[next] == i) == passes);
          if (!passes) REQUIRE(pending[i] == expected[i]);
          next += passes ? 1 : 0;
        }
      }
    }
  }
  // The ends of the range.
  std::vector<std::int64_t> ends = {std::numeric_limits<std::int64_t>::min(), std::numeric_limits<std::int64_t>::max()};
  const std::vector<std::int64_t> before = ends;
  const SparseVector sent = take(std::span(ends), {0, 1U << 30U, 0});
  add_to(ends, sent);
  CHECK(ends == before);
}

TEST_CASE("exact values without a threshold are all sent, and nothing is kept", "[sparse]") {
  const SparseVector vector = random_vector(3000, 0.3, 1U << 20U, 23);
  std::vector<std::int64_t> pending = to_dense(vector);
  CHECK(take(std::span(pending), {}) == vector);
  CHECK(std::count(pending.begin(), pending.end(), 0) == 3000);
}

TEST_CASE("adding and taking in one pass gives what one after the other gives", "[sparse]") {
  for (const std::uint64_t size : {1U, 63U, 64U, 65U, 16384U, 16385U, 100000U}) {
    for (const SparseFilter& filter :
         {SparseFilter{0, 1, 0}, SparseFilter{900, 100, 8}, SparseFilter{~std::uint64_t{0}, 1, 0}}) {
      const std::vector<std::int64_t> fresh = to_dense(random_vector(size, 0.5, 1000, size));
      std::vector<std::int64_t> expected = to_dense(random_vector(size, 0.9, 1000, size + 1));
      std::vector<std::int64_t> wide = expected;
      std::vector<std::int32_t> narrow(expected.begin(), expected.end());
      for (std::size_t i = 0; i < size; ++i) expected[i] += fresh[i];
      const SparseVector sent = take(std::span(expected), filter);
      REQUIRE(add_and_take(std::span<const std::int64_t>(fresh), std::span(wide), filter) == sent);
      REQUIRE(wide == expected);
      const std::vector<std::int32_t> few(fresh.begin(), fresh.end());
      REQUIRE(add_and_take(std::span<const std::int32_t>(few), std::span(narrow), filter) == sent);
      REQUIRE(std::vector<std::int64_t>(narrow.begin(), narrow.end()) == expected);
    }
  }
  // At the ends of the range it stops, and says so.
  constexpr std::int32_t limit = std::numeric_limits<std::int32_t>::max() / 4;
  std::vector<std::int32_t> full = {limit, -limit, 5};
  const std::vector<std::int32_t> more = {std::numeric_limits<std::int32_t>::max(), std::numeric_limits<std::int32_t>::min(),
                                          1};
  std::uint64_t at_limit = 5;
  const SparseFilter nothing = {~std::uint64_t{0}, 1, 0};
  CHECK(add_and_take(std::span<const std::int32_t>(more), std::span(full), nothing, &at_limit).index.empty());
  CHECK(full == std::vector<std::int32_t>{limit, -limit, 6});
  CHECK(at_limit == 7);
  CHECK(add_and_take(std::span<const std::int32_t>(more).last(1), std::span(full).last(1), nothing, &at_limit).index.empty());
  CHECK(at_limit == 7);
  CHECK(message_of(ErrorKind::usage, [&] {
          add_and_take(std::span<const std::int32_t>(more).first(1), std::span(full), {});
        }) == "add_and_take: 1 fresh elements; expected 3");
  CHECK(message_of(ErrorKind::usage, [&] { take(std::span(full), {0, 0, 0}); }) == "step: 0; expected 1 to 1073741824");
  CHECK(message_of(ErrorKind::usage, [] { levels_of(5); }) ==
        "value bits: 5; expected 1, 2, 4, 8 or 16, or 0 for exact values");
}

TEST_CASE("a sum of what workers kept is divided among them without a rest", "[sparse]") {
  constexpr std::int64_t limit = largest_kept<std::int32_t>;
  for (const std::int64_t sum : {std::int64_t{0}, std::int64_t{7}, limit - 1, limit, limit + 1, 3 * limit, 7 * limit - 2}) {
    for (const std::int64_t sign : {1, -1}) {
      CAPTURE(sum, sign);
      std::int64_t total = 0;
      for (std::uint64_t worker = 0; worker < 7; ++worker) {
        const std::int64_t share = share_of_kept<std::int32_t>(sign * sum, worker);
        CHECK(std::abs(share) <= limit);
        if (worker == 0) CHECK(share == sign * std::min(sum, limit));
        total += share;
      }
      CHECK(total == sign * sum);
    }
  }
  CHECK(share_of_kept<std::int64_t>(std::numeric_limits<std::int64_t>::min(), 0) == -largest_kept<std::int64_t>);
  CHECK(share_of_kept<std::int32_t>(5, std::numeric_limits<std::uint64_t>::max()) == 0);
}
