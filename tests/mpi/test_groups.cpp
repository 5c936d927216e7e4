// Communicators of some of the ranks: who is in them, that they meet neither each other nor the whole, and whom errors reach.
#include <string>
#include <vector>

#include "mpi/comm.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"

namespace bitloom::mpi {
namespace {

// Ranks of the same parity, backwards.
struct Halves {
  Comm& world = test::world();
  int parity = world.rank() % 2;
  Comm half = world.split(parity, -world.rank(), "parity");
  // Their numbers in the run.
  std::vector<int> members() const {
    std::vector<int> members;
    for (int r = world.size() - 1; r >= 0; --r) {
      if (r % 2 == parity) members.push_back(r);
    }
    return members;
  }
};

std::string message_of_group_error(auto&& f) {
  try {
    f();
  } catch (const GroupError& error) {
    return error.what();
  }
  return "no GroupError";
}

}  // namespace

TEST_CASE("a split makes groups in the order of keys", "[groups]") {
  Halves halves;
  const std::vector<int> members = halves.members();
  REQUIRE(halves.half.size() == static_cast<int>(members.size()));
  for (int r = 0; r < halves.half.size(); ++r) CHECK(halves.half.world_rank(r) == members[static_cast<std::size_t>(r)]);
  CHECK(halves.half.world_rank(halves.half.rank()) == halves.world.rank());
  CHECK_THROWS_AS(halves.half.world_rank(halves.half.size()), Error);

  // Equal keys leave the order.
  Comm same = halves.world.split(0, 0, "whole");
  CHECK(same.rank() == halves.world.rank());
  CHECK(same.size() == halves.world.size());

  // A group of a group knows the run's numbers.
  Comm alone = halves.half.split(halves.half.rank(), 0, "single");
  CHECK(alone.size() == 1);
  CHECK(alone.world_rank(0) == halves.world.rank());
  alone.barrier();
}

TEST_CASE("collectives of groups and of the whole do not meet", "[groups]") {
  Halves halves;
  std::int64_t expected = 0;
  for (const int member : halves.members()) expected += 1 << member;
  for (int i = 0; i < 3; ++i) {
    std::vector<std::int64_t> bits{1 << halves.world.rank()};
    halves.half.sum(std::span(bits));
    CHECK(bits.front() == expected);
    bits = {1};
    halves.world.sum(std::span(bits));
    CHECK(bits.front() == halves.world.size());
  }
  // Root of a group is the first in its order.
  CHECK(halves.half.broadcast_text(std::to_string(halves.world.rank())) == std::to_string(halves.members().front()));
  const std::int32_t mine = halves.world.rank();
  const auto gathered = halves.half.gather_bytes(std::as_bytes(std::span(&mine, 1)));
  CHECK(gathered.size() == (halves.half.is_root() ? halves.members().size() : 0));
}

TEST_CASE("messages of different communicators do not mix up", "[groups]") {
  Comm& world = test::world();
  if (world.size() == 1) {
    CHECK_THROWS_AS(world.split(0, 0, "whole").receive(0), Error);
    return;
  }
  Comm backwards = world.split(0, -world.rank(), "backwards");
  const int next = (world.rank() + 1) % world.size();
  const int before = (world.rank() + world.size() - 1) % world.size();
  const int last = world.size() - 1;
  // Sent in one order, received in the other.
  world.send(next, {std::byte{1}});
  world.send(next, {std::byte{2}}, Channel::state);
  backwards.send(last - next, {std::byte{3}});
  world.send(next, {std::byte{4}});
  CHECK(backwards.receive(last - before) == std::vector<std::byte>{std::byte{3}});
  CHECK(world.receive(before, 1, Channel::state) == std::vector<std::byte>{std::byte{2}});
  CHECK(world.receive(before) == std::vector<std::byte>{std::byte{1}});
  CHECK(world.receive(before) == std::vector<std::byte>{std::byte{4}});
  backwards.wait_until([&] { return world.sends_finished() && backwards.sends_finished(); }, "test");
}

TEST_CASE("groups share settings and count for themselves", "[groups]") {
  Halves halves;
  const Settings before = halves.world.settings();
  halves.world.configure({.watchdog_seconds = 77});
  CHECK(halves.half.settings().watchdog_seconds == 77);
  halves.half.configure(before);
  CHECK(halves.world.settings().watchdog_seconds == before.watchdog_seconds);

  const Traffic whole = halves.world.traffic();
  std::vector<std::int32_t> values(100);
  halves.half.sum(std::span(values));
  CHECK(halves.world.traffic().calls == whole.calls);
  CHECK(halves.half.traffic(Collective::sum).calls == 1);
  CHECK(halves.half.traffic(Collective::sum).bytes_sent == (halves.half.size() > 1 ? 400 : 0));
}

TEST_CASE("an error in a group names its rank in the run, and the whole can share it", "[groups]") {
  Halves halves;
  const auto fails = [&](int who) {
    return [&halves, who] {
      halves.half.together([&] {
        if (halves.world.rank() == who) fail(ErrorKind::data, "no batch");
      });
    };
  };
  const int last = halves.world.size() - 1;
  if (last == 0) {
    CHECK_THROWS_AS(fails(0)(), SharedError);
    return;
  }
  // Only the group of the last rank knows of it.
  const std::string text = fmt::format("rank {}: no batch", last);
  if (halves.parity == last % 2) {
    CHECK(message_of_group_error(fails(last)) == text);
  } else {
    CHECK_NOTHROW(fails(last)());
  }
  try {
    halves.world.together(fails(last));
    FAIL("together() returned");
  } catch (const SharedError& error) {
    CHECK(error.what() == text);
    CHECK(error.kind() == ErrorKind::data);
  }
  // Twice in the same group is once.
  if (halves.parity == last % 2) {
    CHECK(message_of_group_error([&] { halves.half.together(fails(last)); }) == text);
  }
  halves.world.barrier();
}

TEST_CASE("a colour below 0 is an error of all ranks", "[groups]") {
  Comm& world = test::world();
  const int last = world.size() - 1;
  try {
    (void)world.split(world.rank() == last ? -1 : 0, 0, "test");
    FAIL("split() returned");
  } catch (const SharedError& error) {
    CHECK(error.what() == fmt::format("split: rank {} passes colour -1; expected 0 or more", last));
    CHECK(error.kind() == ErrorKind::usage);
  }
  world.barrier();
}

// MPI knows the addresses of messages under way.
TEST_CASE("a group may end while messages of it are under way", "[groups]") {
  Comm& world = test::world();
  for (int i = 0; i < 20; ++i) {
    Comm group = world.split(0, 0, "short-lived");
    for (int to = 0; to < world.size(); ++to) {
      if (to != world.rank()) group.send(to, std::vector<std::byte>(200000));
    }
    CHECK(group.size() == world.size());
    world.barrier();
  }
}

}  // namespace bitloom::mpi
