// Collectives on floats: in the order of ranks, with the same bits everywhere, blocking and started.
#include "mpi/float_collectives.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/half.h"
#include "core/narrow.h"
#include "core/random.h"
#include "mpi/float_terms.h"
#include "mpi/grid.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"

namespace bitloom::mpi {
namespace {

// Numbers of many sizes: sums of double depend on the order, those of shorter types on being rounded once.
template <typename T>
std::vector<T> numbers_of(int rank, std::size_t n, std::uint64_t seed = 0) {
  constexpr int exponents = std::is_same_v<T, f16> ? 16 : std::is_same_v<T, f1_6_9> ? 8 : 64;
  Random random(static_cast<std::uint64_t>(rank) + 1 + 100 * seed, Stream::test);
  std::vector<T> numbers(n);
  for (T& x : numbers) {
    const std::uint64_t bits = random.next();
    const double significand = static_cast<double>(static_cast<std::int64_t>(bits) >> 11U);  // 53 bits, sign included
    x = narrow<T>(std::ldexp(significand, static_cast<int>(bits % exponents) - exponents / 2 - 52));
  }
  return numbers;
}

// The sum of all ranks' numbers, by this rank alone.
template <typename T>
std::vector<T> expected_sum(int ranks, std::size_t n, std::uint64_t seed = 0) {
  std::vector<double> sums(n, 0.0);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<T> terms = numbers_of<T>(rank, n, seed);
    for (std::size_t i = 0; i < n; ++i) sums[i] += wide(terms[i]);
  }
  std::vector<T> expected(n);
  std::ranges::transform(sums, expected.begin(), &narrow<T>);
  return expected;
}

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}
template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return same_bits(std::span<const T>(a), std::span<const T>(b));
}

// Counts that differ by rank; the second has none.
std::vector<std::size_t> uneven_counts(int ranks, std::size_t scale) {
  std::vector<std::size_t> counts;
  for (int r = 0; r < ranks; ++r) counts.push_back(r == 1 ? 0 : scale * static_cast<std::size_t>(r + 1) + 3);
  return counts;
}

std::size_t total_of(const std::vector<std::size_t>& counts) {
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  return total;
}

template <typename T>
std::span<T> part_of(std::vector<T>& all, const std::vector<std::size_t>& counts, int rank) {
  std::size_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += counts[static_cast<std::size_t>(r)];
  return std::span(all).subspan(begin, counts[static_cast<std::size_t>(rank)]);
}

std::vector<float> payload_of(int rank, std::size_t n) {
  std::vector<float> values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<float>(rank) + static_cast<float>(i) / 1024;
  return values;
}

}  // namespace

TEMPLATE_TEST_CASE("floats are summed in the order of ranks", "[comm]", float, double, bf16, f16, f1_6_9) {
  Comm& world = test::world();
  // Whole to everybody, in parts of some ranks and of all, in several rounds.
  for (const std::size_t n : {0U, 1U, 2U, 3U, 7U, 1000U, 3000U, 40001U, 2500001U}) {
    CAPTURE(n);
    std::vector<TestType> values = numbers_of<TestType>(world.rank(), n);
    const std::vector<TestType> own = values;
    sum_in_order(world, std::span(values));
    CHECK(same_bits(values, world.size() == 1 ? own : expected_sum<TestType>(world.size(), n)));
  }
}

// Run with 20 ranks, too, which send few values to few of them.
TEST_CASE("few floats are summed in the order of ranks, however many these are", "[comm][few]") {
  Comm& world = test::world();
  for (const std::size_t n : {1U, 5U, 1000U, 3000U, 9000U, 30000U}) {
    CAPTURE(n);
    std::vector<float> values = numbers_of<float>(world.rank(), n);
    const std::vector<float> own = values;
    sum_in_order(world, std::span(values));
    CHECK(same_bits(values, world.size() == 1 ? own : expected_sum<float>(world.size(), n)));
    std::vector<double> ranks(n, world.rank());
    max_of(world, std::span(ranks));
    CHECK(ranks == std::vector<double>(n, world.size() - 1));
  }
}

TEMPLATE_TEST_CASE("a reduce-scatter has the bits of parts of a sum", "[comm]", float, double, bf16, f16, f1_6_9) {
  Comm& world = test::world();
  for (const std::size_t elements_per_message : {0U, 1000U}) {
    const test::Configured configured(world, {.elements_per_message = elements_per_message});
    for (const std::size_t scale : {0U, 1U, 5000U}) {
      CAPTURE(scale, elements_per_message);
      const std::vector<std::size_t> counts = uneven_counts(world.size(), scale);
      const std::size_t n = total_of(counts);
      std::vector<TestType> sum = numbers_of<TestType>(world.rank(), n);
      std::vector<TestType> all = sum;
      const std::vector<TestType> before = all;
      sum_in_order(world, std::span(sum));

      std::vector<TestType> mine(counts[static_cast<std::size_t>(world.rank())]);
      start_reduce_scatter<TestType>(world, all, mine, counts).wait();
      const std::span<const TestType> expected = part_of(sum, counts, world.rank());
      CHECK(same_bits(std::span<const TestType>(mine), expected));
      CHECK(same_bits(all, before));

      // Into the part itself.
      const std::span<TestType> own = part_of(all, counts, world.rank());
      start_reduce_scatter<TestType>(world, all, own, counts).wait();
      CHECK(same_bits(std::span<const TestType>(own), expected));
    }
  }
}

TEST_CASE("an all-gather brings every part everywhere", "[comm]") {
  Comm& world = test::world();
  for (const std::size_t elements_per_message : {0U, 777U}) {
    const test::Configured configured(world, {.elements_per_message = elements_per_message});
    for (const std::size_t scale : {0U, 1U, 100000U}) {
      CAPTURE(scale, elements_per_message);
      const std::vector<std::size_t> counts = uneven_counts(world.size(), scale);
      std::vector<float> expected(total_of(counts));
      for (int r = 0; r < world.size(); ++r) {
        std::ranges::copy(payload_of(r, counts[static_cast<std::size_t>(r)]), part_of(expected, counts, r).begin());
      }
      std::vector<float> all(expected.size(), -1);
      std::ranges::copy(part_of(expected, counts, world.rank()), part_of(all, counts, world.rank()).begin());
      start_all_gather(world, std::span(all), counts).wait();
      CHECK(same_bits(all, expected));
    }
  }
}

TEMPLATE_TEST_CASE("the maximum of floats is over ranks, and NaN wins", "[comm]", float, double, bf16, f16, f1_6_9) {
  Comm& world = test::world();
  for (const std::size_t n : {1U, 100U, 50000U}) {
    std::vector<TestType> expected = numbers_of<TestType>(0, n);
    for (int r = 1; r < world.size(); ++r) {
      const std::vector<TestType> theirs = numbers_of<TestType>(r, n);
      for (std::size_t i = 0; i < n; ++i) {
        if (wide(theirs[i]) > wide(expected[i])) expected[i] = theirs[i];
      }
    }
    std::vector<TestType> values = numbers_of<TestType>(world.rank(), n);
    max_of(world, std::span(values));
    CHECK(same_bits(values, expected));
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const bool is_last = world.rank() == world.size() - 1;
  std::vector<TestType> values{narrow<TestType>(world.is_root() ? nan : 1), narrow<TestType>(is_last ? nan : infinity),
                               narrow<TestType>(is_last ? -3.0 : -infinity), narrow<TestType>(-infinity)};
  max_of(world, std::span(values));
  CHECK(std::isnan(wide(values[0])));
  CHECK(std::isnan(wide(values[1])));
  CHECK(wide(values[2]) == -3);
  CHECK(wide(values[3]) == -infinity);
}

// A sum in double precision that went through float was rounded twice.
TEST_CASE("sums are rounded to 16 bits once", "[comm]") {
  CHECK(to_float(to_bf16(static_cast<float>(1 + 0x1p-8 + 0x1p-40))) == 1);
  CHECK(to_float(narrow<bf16>(1 + 0x1p-8 + 0x1p-40)) == 1 + 0x1p-7);
  CHECK(to_float(narrow<bf16>(1 + 0x1p-8)) == 1);
  CHECK(to_float(narrow<bf16>(-1 - 0x1p-8 - 0x1p-40)) == -1 - 0x1p-7);
  CHECK(to_float(narrow<bf16>(1 + 0x3p-8 - 0x1p-40)) == 1 + 0x1p-7);
  CHECK(to_float(narrow<f16>(1 + 0x1p-11 + 0x1p-40)) == 1 + 0x1p-10);
  CHECK(to_float(narrow<f16>(0x1p-25 + 0x1p-60)) == 0x1p-24);
  CHECK(to_float(narrow<f16>(0x1p-25)) == 0);
  CHECK(to_float(narrow<f16>(65519.999)) == 65504);
  CHECK(std::isinf(to_float(narrow<f16>(65520))));
  CHECK(std::isinf(to_float(narrow<bf16>(1e300))));
  CHECK(std::isnan(to_float(narrow<bf16>(std::nan("")))));
  CHECK(narrow<bf16>(-0.0).bits == 0x8000);
  CHECK(to_float(narrow<f1_6_9>(1 + 0x1p-10)) == 1);
  CHECK(to_float(narrow<f1_6_9>(1 + 0x1p-10 + 0x1p-40)) == 1 + 0x1p-9);
  CHECK(to_float(narrow<f1_6_9>(0x1p-68 + 0x1p-100)) == 0x1p-67);
  CHECK(std::isinf(to_float(narrow<f1_6_9>(15.9921875))));

  // No 16-bit number is nearer than the one chosen.
  Random random(5, Stream::test);
  for (int i = 0; i < 20000; ++i) {
    const double x = std::exp(3 * random.normal()) * random.normal();
    const auto check = [&](auto chosen) {
      using T = decltype(chosen);
      const double distance = std::abs(wide(chosen) - x);
      const T above{static_cast<std::uint16_t>(chosen.bits + 1)}, below{static_cast<std::uint16_t>(chosen.bits - 1)};
      return distance <= std::abs(wide(above) - x) && distance <= std::abs(wide(below) - x);
    };
    REQUIRE(check(narrow<bf16>(x)));
    if (std::abs(x) > 1e-6 && std::abs(x) < 60000) REQUIRE(check(narrow<f16>(x)));
    if (std::abs(x) < 15.97) REQUIRE(check(narrow<f1_6_9>(x)));
  }
}

TEST_CASE("collectives on floats are counted by kind, not as messages", "[comm]") {
  Comm& world = test::world();
  const std::uint64_t several = world.size() > 1 ? 1 : 0;
  const std::vector<std::size_t> counts = uneven_counts(world.size(), 10);
  const std::size_t own = counts[static_cast<std::size_t>(world.rank())];
  std::vector<float> all(total_of(counts)), mine(own);
  std::vector<bf16> halves(1000);
  const auto counted = [&](Collective kind, auto&& f) {
    const Traffic before = world.traffic(kind);
    const Traffic total = world.traffic();
    f();
    CHECK(world.traffic(kind).calls == before.calls + 1);
    CHECK(world.traffic(kind).seconds >= before.seconds);
    CHECK(world.traffic().calls == total.calls + 1);
    CHECK(world.traffic().bytes_sent - total.bytes_sent == world.traffic(kind).bytes_sent - before.bytes_sent);
    return world.traffic(kind).bytes_sent - before.bytes_sent;
  };
  CHECK(counted(Collective::float_sum, [&] { sum_in_order(world, std::span(halves)); }) == 2000 * several);
  CHECK(counted(Collective::float_max, [&] { max_of(world, std::span(halves)); }) == 2000 * several);
  CHECK(counted(Collective::float_sum, [&] { start_sum(world, std::span(halves)).wait(); }) == 2000 * several);
  CHECK(counted(Collective::reduce_scatter, [&] { start_reduce_scatter<float>(world, all, mine, counts).wait(); }) ==
        4 * all.size() * several);
  CHECK(counted(Collective::all_gather, [&] { start_all_gather<float>(world, all, counts).wait(); }) == 4 * own * several);
}

TEST_CASE("counts that fit nothing are errors of the caller", "[comm]") {
  Comm& world = test::world();
  std::vector<float> all(10), mine(10);
  const std::vector<std::size_t> none;
  const std::vector<std::size_t> too_many(static_cast<std::size_t>(world.size()), 100);
  std::vector<std::size_t> root_has_all(static_cast<std::size_t>(world.size()), 0);
  root_has_all[0] = 10;
  CHECK_THROWS_AS(start_all_gather<float>(world, all, none), Error);
  CHECK_THROWS_AS(start_all_gather<float>(world, all, too_many), Error);
  CHECK_THROWS_AS(start_reduce_scatter<float>(world, all, std::span(mine).first(9), root_has_all), Error);
  world.barrier();
}

TEST_CASE("sums of floats do not mix with messages around them", "[comm]") {
  Comm& world = test::world();
  if (world.size() == 1) return;
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  for (int i = 0; i < 3; ++i) {
    world.send(next, {static_cast<std::byte>(i)});
    CHECK(world.receive(before) == std::vector<std::byte>{static_cast<std::byte>(i)});
    std::vector<float> ones(100, 1.0F);
    sum_in_order(world, std::span(ones));
    CHECK(ones == std::vector<float>(100, static_cast<float>(world.size())));
  }
}

TEST_CASE("what was started gives the bits of what blocks", "[comm][pending]") {
  Comm& world = test::world();
  for (const bool with_thread : {true, false}) {
    const test::Configured configured(world, {.progress_thread = with_thread});
    CAPTURE(with_thread);
    CHECK((!with_thread || world.size() == 1 || world.has_progress_thread()));
    // Several at once, of all kinds and sizes, some of them in rounds.
    const std::vector<std::size_t> counts = uneven_counts(world.size(), 300000);
    const std::size_t n = total_of(counts);
    std::vector<std::vector<float>> sums;
    for (const std::size_t size : {3U, 70000U, 3000000U, 0U})
      sums.push_back(numbers_of<float>(world.rank(), size, sums.size()));
    const std::vector<double> terms = numbers_of<double>(world.rank(), n);
    std::vector<double> part(counts[static_cast<std::size_t>(world.rank())]);
    std::vector<float> gathered(n, 0);
    std::ranges::fill(part_of(gathered, counts, world.rank()), static_cast<float>(world.rank() + 1));
    std::vector<bf16> between = numbers_of<bf16>(world.rank(), 5000);

    std::vector<Pending> pending;
    for (std::vector<float>& sum : sums) pending.push_back(start_sum(world, std::span(sum)));
    Pending scatter = start_reduce_scatter<double>(world, terms, part, counts);
    Pending gather = start_all_gather(world, std::span(gathered), counts);
    sum_in_order(world, std::span(between));
    CHECK(same_bits(between, expected_sum<bf16>(world.size(), 5000)));
    // Not in the order in which they were started.
    gather.wait();
    std::vector<float> everything(n);
    for (int r = 0; r < world.size(); ++r) std::ranges::fill(part_of(everything, counts, r), static_cast<float>(r + 1));
    CHECK(same_bits(gathered, everything));
    scatter.wait();
    scatter.wait();  // a second time there is nothing to wait for
    CHECK(scatter.done());
    std::vector<double> sum = expected_sum<double>(world.size(), n);
    CHECK(same_bits(part,
                    std::vector<double>(part_of(sum, counts, world.rank()).begin(), part_of(sum, counts, world.rank()).end())));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      while (!pending[i].done()) std::this_thread::yield();
      pending[i].wait();
      CHECK(same_bits(sums[i], world.size() == 1 ? numbers_of<float>(0, sums[i].size(), i)
                                                 : expected_sum<float>(world.size(), sums[i].size(), i)));
    }
  }
}

TEST_CASE("what was started on one communicator does not wait for another", "[comm][pending]") {
  Comm& world = test::world();
  for (const bool with_thread : {true, false}) {
    const test::Configured configured(world, {.progress_thread = with_thread});
    Comm first = world.split(0, 0, "first");
    Comm second = world.split(0, 0, "second");
    std::vector<float> a(50000, 1), b(50000, 2);
    // Half of the ranks start one first, the others the other.
    Pending on_first, on_second;
    if (world.rank() % 2 == 0) {
      on_first = start_sum(first, std::span(a));
      sum_in_order(second, std::span(b));
    } else {
      on_second = start_sum(second, std::span(b));
      sum_in_order(first, std::span(a));
    }
    on_first.wait();
    on_second.wait();
    CHECK(a == std::vector<float>(a.size(), static_cast<float>(world.size())));
    CHECK(b == std::vector<float>(b.size(), static_cast<float>(2 * world.size())));
  }
}

TEST_CASE("messages to and from the caller's memory", "[comm][pending]") {
  Comm& world = test::world();
  if (world.size() == 1) {
    CHECK_THROWS_AS(start_send(world, 0, {}), Error);
    return;
  }
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  const Traffic traffic = world.traffic(Collective::message);
  const std::vector<float> short_one = payload_of(world.rank(), 3), long_one = payload_of(world.rank() + 10, 500000);
  std::vector<float> short_back(3), long_back(500000);
  {
    // Both are waited for when they go out of scope.
    const Pending first = start_send(world, next, std::as_bytes(std::span(short_one)));
    const Pending second = start_send(world, next, std::as_bytes(std::span(long_one)));
    world.send(next, {std::byte{9}});
    CHECK(world.receive(before) == std::vector<std::byte>{std::byte{9}});
    Pending third = start_receive(world, before, std::as_writable_bytes(std::span(short_back)));
    Pending fourth = start_receive(world, before, std::as_writable_bytes(std::span(long_back)));
    fourth.wait();
    third.wait();
  }
  CHECK(same_bits(short_back, payload_of(before, 3)));
  CHECK(same_bits(long_back, payload_of(before + 10, 500000)));
  CHECK(world.traffic(Collective::message).bytes_sent == traffic.bytes_sent + 4 * 500003 + 1);
  CHECK(world.traffic(Collective::message).calls == traffic.calls + 3);
}

// MPI moves nothing while nobody calls it: a sum used to stand still while its ranks computed. Where there is a thread of its
// own done() does not call MPI.
TEST_CASE("what was started goes on while the process computes", "[comm][pending]") {
  Comm& world = test::world();
  constexpr std::size_t n = std::size_t{4} << 20U;
  std::vector<float> values(n, static_cast<float>(world.rank() + 1));
  Pending pending = start_sum(world, std::span(values));
  CHECK((world.size() == 1 || world.has_progress_thread()));
  const Clock::time_point start = Clock::now();
  double x = 1;
  while (!pending.done() && seconds_since(start) < 60) {
    for (int i = 0; i < 1000; ++i) x = std::sqrt(x + i);
  }
  CHECK(x > 0);
  CHECK(pending.done());
  pending.wait();
  const int ranks = world.size();
  CHECK(values == std::vector<float>(n, static_cast<float>(ranks * (ranks + 1) / 2)));
}

}  // namespace bitloom::mpi
