// Every collective against a serial calculation, at however many ranks mpirun started. A wrong result on any rank fails the
// run.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <string>
#include <vector>

#include "mpi/comm.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"

namespace bitloom::mpi {
namespace {

const std::vector<std::size_t> sizes{0, 1, 3, 1000003};

// Contribution of rank `rank` at place i: all bits are in use, so that sums over ranks wrap around.
std::uint64_t contribution(int rank, std::size_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) + 1) * 0x9e3779b97f4a7c15U + i * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 30)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

template <typename T>
std::vector<T> contributions(int rank, std::size_t size) {
  std::vector<T> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = static_cast<T>(contribution(rank, i));
  return values;
}

template <typename T>
std::vector<T> serial_sum(int ranks, std::size_t size) {
  std::vector<T> total(size);
  for (int rank = 0; rank < ranks; ++rank) {
    for (std::size_t i = 0; i < size; ++i) {
      total[i] = static_cast<T>(static_cast<std::uint64_t>(total[i]) + contribution(rank, i));
    }
  }
  return total;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEMPLATE_TEST_CASE("sum is exact and wraps around", "", std::int32_t, std::int64_t) {
  Comm& comm = test::world();
  // A message length of 0 stands for MPI's own limit; the other one splits the longest array into pieces, the last one short.
  for (const std::size_t elements_per_message : {std::size_t{0}, std::size_t{65536}}) {
    const test::Configured configured(comm, {.watchdog_seconds = 60, .elements_per_message = elements_per_message});
    for (const std::size_t size : sizes) {
      CAPTURE(size, elements_per_message);
      const std::vector<TestType> expected = serial_sum<TestType>(comm.size(), size);
      std::vector<TestType> values = contributions<TestType>(comm.rank(), size);
      comm.sum(std::span(values));
      REQUIRE((values == expected));
    }
  }
}

TEST_CASE("max is over signed numbers") {
  Comm& comm = test::world();
  for (const std::size_t size : sizes) {
    CAPTURE(size);
    std::vector<std::int64_t> expected(size, std::numeric_limits<std::int64_t>::min());
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto values = contributions<std::int64_t>(rank, size);
      for (std::size_t i = 0; i < size; ++i) expected[i] = std::max(expected[i], values[i]);
    }
    auto values = contributions<std::int64_t>(comm.rank(), size);
    comm.max(values);
    REQUIRE((values == expected));
  }
}

TEST_CASE("broadcast reaches every rank from every root") {
  Comm& comm = test::world();
  for (const std::size_t elements_per_message : {std::size_t{0}, std::size_t{100000}}) {
    const test::Configured configured(comm, {.watchdog_seconds = 60, .elements_per_message = elements_per_message});
    for (int root = 0; root < comm.size(); ++root) {
      for (const std::size_t size : sizes) {
        CAPTURE(root, size);
        const auto expected = contributions<std::uint16_t>(root, size);
        auto values = contributions<std::uint16_t>(comm.rank(), size);
        comm.broadcast(std::span(values), root);
        REQUIRE((values == expected));

        // The others' bytes, of whatever length, are replaced.
        std::vector<std::byte> mine(comm.rank() == root ? size : 5);
        for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = static_cast<std::byte>(contribution(comm.rank(), i));
        REQUIRE(comm.broadcast_text(fmt::format("rank {}", comm.rank()), root) == fmt::format("rank {}", root));
        const std::vector<std::byte> received = comm.broadcast_bytes(std::move(mine), root);
        std::vector<std::byte> roots(size);
        for (std::size_t i = 0; i < size; ++i) roots[i] = static_cast<std::byte>(contribution(root, i));
        REQUIRE((received == roots));
      }
    }
  }
}

TEST_CASE("gather_bytes collects different lengths at any root") {
  Comm& comm = test::world();
  for (const std::size_t elements_per_message : {std::size_t{0}, std::size_t{100000}}) {
    const test::Configured configured(comm, {.watchdog_seconds = 60, .elements_per_message = elements_per_message});
    for (int root = 0; root < comm.size(); ++root) {
      for (const std::size_t size : sizes) {
        CAPTURE(root, size);
        const auto of_rank = [&](int rank) {
          // Rank 1 has nothing to say.
          std::vector<std::byte> bytes(rank == 1 ? 0 : size + static_cast<std::size_t>(rank));
          for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(contribution(rank, i));
          return bytes;
        };
        const std::vector<std::vector<std::byte>> gathered = comm.gather_bytes(of_rank(comm.rank()), root);
        if (comm.rank() != root) {
          REQUIRE(gathered.empty());
          continue;
        }
        REQUIRE(gathered.size() == static_cast<std::size_t>(comm.size()));
        for (int rank = 0; rank < comm.size(); ++rank) {
          REQUIRE((gathered[static_cast<std::size_t>(rank)] == of_rank(rank)));
        }
      }
    }
  }
}

TEST_CASE("flag_any is raised by one rank") {
  Comm& comm = test::world();
  REQUIRE_FALSE(comm.flag_any(false));
  for (int who = 0; who < comm.size(); ++who) REQUIRE(comm.flag_any(comm.rank() == who));
  REQUIRE(comm.flag_any(true));
}

TEST_CASE("check passes when nobody failed") {
  Comm& comm = test::world();
  REQUIRE_NOTHROW(comm.check(""));
  REQUIRE(comm.together([&] { return comm.rank() + 1; }) == comm.rank() + 1);
}

TEST_CASE("an error on one rank reaches all with its kind and message") {
  Comm& comm = test::world();
  for (int who = 0; who < comm.size(); ++who) {
    const std::string expected = comm.size() == 1 ? "no batch 7" : fmt::format("rank {}: no batch 7", who);
    try {
      comm.together([&] {
        if (comm.rank() == who) fail(ErrorKind::data, "no batch {}", 7);
      });
      FAIL("together() returned");
    } catch (const SharedError& error) {
      REQUIRE(error.what() == expected);
      REQUIRE(error.kind() == ErrorKind::data);
    }
  }
  // The communicator is as good as before.
  REQUIRE_NOTHROW(comm.barrier());
  REQUIRE_FALSE(comm.broken());
}

TEST_CASE("of several errors the lowest rank's is reported") {
  Comm& comm = test::world();
  const std::string local = comm.rank() == 0 && comm.size() > 1 ? "" : fmt::format("error of {}", comm.rank());
  const std::string expected = comm.size() == 1 ? "error of 0" : "rank 1: error of 1";
  try {
    comm.check(local, comm.rank() == 1 ? ErrorKind::busy : ErrorKind::usage);
    FAIL("check() returned");
  } catch (const SharedError& error) {
    REQUIRE(error.what() == expected);
    REQUIRE(error.kind() == (comm.size() == 1 ? ErrorKind::usage : ErrorKind::busy));
  }
}

TEST_CASE("errors of the standard library and errors without a message are shared too") {
  Comm& comm = test::world();
  const int last = comm.size() - 1;
  try {
    comm.together([&]() -> std::string {
      if (comm.rank() == last) throw std::bad_alloc();
      return "fine";
    });
    FAIL("together() returned");
  } catch (const SharedError& error) {
    REQUIRE(std::string(error.what()).find("bad_alloc") != std::string::npos);
    REQUIRE(error.kind() == ErrorKind::internal);
  }
  REQUIRE_THROWS_AS(comm.together([&] {
    if (comm.rank() == last) throw Error(ErrorKind::io, "");
  }),
                    SharedError);
}

TEST_CASE("an error shared inside together() is not shared twice") {
  Comm& comm = test::world();
  try {
    comm.together([&] { comm.check(comm.is_root() ? "inner" : "", ErrorKind::usage); });
    FAIL("together() returned");
  } catch (const SharedError& error) {
    REQUIRE(error.what() == std::string(comm.size() == 1 ? "inner" : "rank 0: inner"));
  }
  REQUIRE_NOTHROW(comm.barrier());
}

TEST_CASE("traffic counts calls, payload and time of each kind") {
  Comm& comm = test::world();
  const Traffic sums = comm.traffic(Collective::sum);
  const Traffic broadcasts = comm.traffic(Collective::broadcast);
  const Traffic all = comm.traffic();
  std::vector<std::int32_t> values(1000);
  comm.sum(std::span(values));
  comm.sum(std::span(values));
  comm.broadcast(std::span(values), 0);
  const std::uint64_t several = comm.size() > 1 ? 1 : 0;
  REQUIRE(comm.traffic(Collective::sum).calls == sums.calls + 2);
  REQUIRE(comm.traffic(Collective::sum).bytes_sent == sums.bytes_sent + 8000 * several);
  REQUIRE(comm.traffic(Collective::sum).seconds >= sums.seconds);
  REQUIRE(comm.traffic(Collective::broadcast).calls == broadcasts.calls + 1);
  REQUIRE(comm.traffic(Collective::broadcast).bytes_sent == broadcasts.bytes_sent + (comm.is_root() ? 4000 * several : 0));
  REQUIRE(comm.traffic().calls == all.calls + 3);
}

TEST_CASE("messages arrive whole, in the order of their sender") {
  Comm& comm = test::world();
  // Everybody to everybody else, short and long in turn; long ones need the receiver's help to leave.
  constexpr int messages = 6;
  const auto text = [](int from, int to, int k) {
    return bytes_of(std::string(k % 2 == 0 ? 3 : 300000, static_cast<char>('a' + k)) + std::to_string(10 * from + to));
  };
  const Traffic before = comm.traffic(Collective::message);
  std::uint64_t bytes = 0;
  for (int k = 0; k < messages; ++k) {
    for (int to = 0; to < comm.size(); ++to) {
      if (to == comm.rank()) continue;
      bytes += text(comm.rank(), to, k).size();
      comm.send(to, text(comm.rank(), to, k));
    }
  }
  for (int k = 0; k < messages; ++k) {
    for (int from = 0; from < comm.size(); ++from) {
      if (from != comm.rank()) REQUIRE((comm.receive(from) == text(from, comm.rank(), k)));
    }
  }
  comm.wait_until([&] { return comm.sends_finished(); }, "test");
  REQUIRE(comm.traffic(Collective::message).bytes_sent == before.bytes_sent + bytes);
  REQUIRE_THROWS_AS(comm.send(comm.rank(), {}), Error);
  REQUIRE_THROWS_AS(comm.send(comm.size(), {}), Error);
  REQUIRE_THROWS_AS(comm.receive(-1), Error);
}

// Memory was taken for whatever a peer announced.
TEST_CASE("lengths that others announce are bounded before there is memory for them") {
  Comm& comm = test::world();
  if (comm.size() == 1) {
    REQUIRE(comm.is_root());
    return;
  }
  constexpr std::uint64_t absurd = std::uint64_t{1} << 60U;
  const auto message_of_error = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const Error& error) {
      REQUIRE(error.kind() == ErrorKind::data);
      return error.what();
    }
    return "";
  };
  // A root that says so and sends nothing.
  std::uint64_t length = absurd;
  if (comm.is_root()) {
    comm.broadcast(std::span(&length, 1));
  } else {
    REQUIRE(message_of_error([&] {
              (void)comm.broadcast_bytes({});
            }).starts_with(fmt::format("broadcast: rank 0 announces {} bytes; rank {} takes at most ", absurd, comm.rank())));
  }
  // All ranks learn of it: nobody waits for the others.
  const int last = comm.size() - 1;
  const std::vector<std::byte> few(600);
  for (const std::uint64_t more : {absurd, ~std::uint64_t{0}}) {
    const std::span<const std::byte> nowhere(few.data(), comm.rank() == last ? more : few.size());
    REQUIRE(message_of_error([&] { (void)comm.gather_bytes(nowhere); })
                .starts_with(fmt::format("gather: rank {} announces {} bytes, and those before it {}; rank 0 takes at most ",
                                         last, more, 600 * last)));
  }
  {
    const test::Configured configured(comm, {.most_bytes = 1000});
    REQUIRE(message_of_error([&] { (void)comm.gather_bytes(few); }) ==
            "gather: rank 1 announces 600 bytes, and those before it 600; rank 0 takes at most 1000");
    REQUIRE(message_of_error([&] { comm.require_length("images", 1, 1001); }) ==
            fmt::format("images: rank 1 announces 1001 bytes; rank {} takes at most 1000", comm.rank()));
    REQUIRE_NOTHROW(comm.require_length("images", 1, 1000));
  }
  if (comm.rank() == 1) {
    for (const std::size_t size : {std::size_t{1000}, std::size_t{100}, std::size_t{99}}) {
      comm.send(0, std::vector<std::byte>(size));
    }
  }
  if (comm.is_root()) {
    const test::Configured configured(comm, {.most_bytes = 999});
    REQUIRE(message_of_error([&] { (void)comm.receive(1); }) ==
            "receive: rank 1 sends a message of 1000 bytes; expected at most 999");
    REQUIRE(message_of_error([&] { (void)comm.receive(1, 99); }) ==
            "receive: rank 1 sends a message of 100 bytes; expected at most 99");
    REQUIRE(comm.receive(1, 99).size() == 99);
  }
  comm.barrier();
}

// MPI sends a long message when it is received: the sender of one that was refused used to wait for the watchdog.
TEST_CASE("a message that is refused for its length does not keep its sender waiting", "[comm]") {
  Comm& comm = test::world();
  if (comm.size() == 1) return;
  const test::Configured configured(comm, {.watchdog_seconds = 60});
  if (comm.rank() == 1) {
    comm.send(0, std::vector<std::byte>(20'000'000));
    comm.send(0, {std::byte{5}});
    comm.wait_until([&] { return comm.sends_finished(); }, "messages");
  }
  if (comm.is_root()) {
    REQUIRE(test::message_of(ErrorKind::data, [&] { (void)comm.receive(1, 1000); }) ==
            "receive: rank 1 sends a message of 20000000 bytes; expected at most 1000");
    REQUIRE(comm.receive(1) == std::vector<std::byte>{std::byte{5}});
  }
  comm.barrier();
}

// Ranks that got a checkpoint over a slow link were taken for hanging.
TEST_CASE("long broadcasts arrive whole, and give a sign of life after every piece") {
  Comm& comm = test::world();
  constexpr std::size_t size = (std::size_t{64} << 20U) + 5;  // 8 pieces and a bit
  int signs = 0;
  std::vector<std::byte> mine(comm.is_root() ? size : 0);
  for (std::size_t i = 0; i < mine.size(); i += 4096) mine[i] = static_cast<std::byte>(contribution(0, i));
  if (comm.is_root()) mine.back() = std::byte{7};
  const std::vector<std::byte> all = comm.broadcast_bytes(std::move(mine), 0, [&] { ++signs; });
  REQUIRE(signs == 9);
  REQUIRE(all.size() == size);
  REQUIRE(all.back() == std::byte{7});
  bool same = true;
  for (std::size_t i = 0; i + 1 < size; i += 4096) same = same && all[i] == static_cast<std::byte>(contribution(0, i));
  REQUIRE(same);
}

TEST_CASE("wrong arguments are errors of the caller") {
  Comm& comm = test::world();
  std::vector<std::int32_t> values(3);
  REQUIRE_THROWS_AS(comm.broadcast(std::span(values), comm.size()), Error);
  REQUIRE_THROWS_AS(comm.gather_bytes({}, -1), Error);
  REQUIRE_THROWS_AS(comm.configure({.watchdog_seconds = -1}), Error);
  REQUIRE_THROWS_AS(comm.configure({.watchdog_seconds = std::numeric_limits<double>::quiet_NaN()}), Error);
  REQUIRE_THROWS_AS(comm.configure({.elements_per_message = std::size_t{1} << 31}), Error);
  REQUIRE_THROWS_AS(Environment(), Error);
  REQUIRE_NOTHROW(comm.barrier());
}

TEST_CASE("a communicator of one rank needs no MPI") {
  Comm alone;
  REQUIRE(alone.rank() == 0);
  REQUIRE(alone.size() == 1);
  REQUIRE(alone.is_root());
  std::vector<std::int64_t> values{-1, 2};
  alone.sum(std::span(values));
  alone.max(std::span(values));
  alone.broadcast(std::span(values));
  REQUIRE(values == std::vector<std::int64_t>{-1, 2});
  REQUIRE(alone.broadcast_bytes(bytes_of("abc")) == bytes_of("abc"));
  REQUIRE(alone.broadcast_text("abc") == "abc");
  REQUIRE(alone.gather_bytes(bytes_of("abc")) == std::vector<std::vector<std::byte>>{bytes_of("abc")});
  REQUIRE_NOTHROW(alone.barrier());
  REQUIRE_THROWS_AS(alone.receive(0), Error);
  REQUIRE(alone.sends_finished());
  REQUIRE(alone.traffic().bytes_sent == 0);
}

}  // namespace
}  // namespace bitloom::mpi
