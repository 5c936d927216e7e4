// Workers of local steps that are killed, come later or are slower, and what is lost then.
#include <cmath>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/train/local/worker.h"
#include "train/local/local_steps.h"

using namespace bitloom;
using namespace bitloom::test;
using namespace bitloom::train;

TEST_CASE("a worker that is killed before its message is out sends it when it is back", "[local]") {
  const TempDir folder;
  FolderExchange other(Worker::folder_options(folder.path(), "other", 0), json{{"net", "spirals"}}, json::object(), {});
  other.join(0);  // so that the round does not end
  LocalOptions options = sparse(4);
  options.kept_share = GENERATE(1.0, 0.25);
  std::vector<float> start;
  {
    Worker worker(folder.path(), "a", 3, options, 100);
    start = worker.values();
    worker.begin();
    worker.run(3);
    worker.stops = true;
    worker.step();
  }
  fs::remove(folder / "messages/a-00000000.safetensors");
  options.deadline_seconds = 1e-3;
  Worker back(folder.path(), "a", 3, options, 100);
  back.begin();
  CHECK(back.trainer.steps() == 4);
  const auto reply = other.read_reply(0);
  REQUIRE(reply);
  CHECK(reply->workers == std::vector<std::string>{"a"});
  std::vector<std::int64_t> sent(start.size()), kept(start.size());
  add_sums(reply->sum, sent);
  back.local.leave([] {});
  add_kept(back, kept);
  // The rest has faded once.
  std::vector<std::int64_t> expected = units(start, after_own_steps(3, 4));
  for (std::size_t i = 0; i < expected.size(); ++i) {
    expected[i] = std::lrint(options.kept_share * static_cast<double>(expected[i] - sent[i]));
  }
  CHECK(kept == expected);
}

// Its feedback is that from before the reply.
TEST_CASE("a worker that is killed after a reply counts nothing twice", "[local]") {
  const TempDir folder;
  constexpr std::size_t reply_count = 3;  // fewer than the message has
  LocalOptions options = sparse(4);
  options.kept_share = GENERATE(1.0, 0.25);
  options.deadline_seconds = 1e-3;
  std::vector<std::int64_t> expected;
  {
    Worker worker(folder.path(), "a", 3, options, 100, reply_count);
    worker.begin();
    worker.run(4);
    const std::string before = read_file(worker.kept);
    worker.local.leave([] {});
    expected.resize(worker.values().size());
    add_kept(worker, expected);
    write_file(worker.kept, before);
  }
  const auto kept_by = [&](Worker& worker) {
    worker.begin();
    worker.local.leave([] {});
    std::vector<std::int64_t> all(expected.size());
    add_kept(worker, all);
    return all;
  };
  const std::string before = read_file(folder / "a.kept");
  Worker back(folder.path(), "a", 3, options, 100, reply_count);
  CHECK(kept_by(back) == expected);
  // Others have gone on so far that the reply is gone: what it lacked of the message is lost, and nothing is counted twice.
  Worker other(folder.path(), "b", 4, options, 100, reply_count);
  other.begin();
  other.run(60);
  REQUIRE_FALSE(other.exchange.has_reply(0));
  write_file(folder / "a.kept", before);
  Worker later(folder.path(), "a", 3, options, 100, reply_count);
  later.begin();
  CHECK(later.values() == other.values());
  later.run(68);
  for (std::uint64_t round = 15; round < 17; ++round) {
    const auto reply = later.exchange.read_reply(round);
    REQUIRE(reply);
    CHECK(reply->workers == std::vector<std::string>{"a"});
    CHECK(reply->sum.workers == 1);
  }
}

// It waited for ever, and did not say so.
TEST_CASE("a worker that is killed with a message out ends the round before again if its reply is damaged", "[local]") {
  const TempDir folder;
  LocalOptions options = dense(4);
  options.delay = 3;
  {
    Worker killed(folder.path(), "a", 3, options, 100);
    killed.begin();
    killed.run(12);
    REQUIRE(killed.exchange.has_message(2));
    REQUIRE_FALSE(killed.exchange.has_reply(2));
  }
  write_file(folder / "replies/00000001.safetensors", "damaged");
  const auto come_back = [&](double damaged_seconds, int looks, auto check) {
    FolderOptions shared = Worker::folder_options(folder.path(), "a", 0);
    shared.damaged_seconds = damaged_seconds;
    FolderExchange exchange(shared, json{{"net", "spirals"}}, json::object(), {});
    LocalWorker back(exchange, folder / "a.kept", 3, options, 100);
    back.local.begin(1, [&] { back.stops = --looks < 0; });
    check(back, exchange);
  };
  come_back(never, 3, [&](LocalWorker& back, FolderExchange& exchange) {
    CHECK(has(back.progress.text(), "waiting for a reply to round 1 in " + folder.path().string() + " that can be read"));
    CHECK_FALSE(exchange.has_reply(2));
  });
  come_back(0, 20, [&](LocalWorker& back, FolderExchange& exchange) {
    CHECK_FALSE(back.stops);
    CHECK(back.trainer.steps() == 12);
    for (const std::uint64_t round : {1, 2}) {
      const auto reply = exchange.read_reply(round);
      REQUIRE(reply);
      CHECK(reply->sum.totals == std::vector<std::int64_t>{4 * worker_examples});
    }
  });
}

// It waited for others, who were to have read what it could not.
TEST_CASE("a worker that is alone ends rounds again whose first reply is damaged, or gone", "[local]") {
  const bool is_gone = GENERATE(false, true);
  const TempDir folder;
  LocalOptions options = dense(4);
  options.deadline_seconds = 1e-3;
  {
    Worker first(folder.path(), "a", 3, options, 100);
    first.begin();
    first.run(12);
    REQUIRE(first.exchange.newest_rounds() == 0);
    REQUIRE(first.exchange.has_reply(2));
  }
  const fs::path reply = folder / "replies/00000001.safetensors";
  if (is_gone) {
    fs::remove(reply);
  } else {
    write_file(reply, "damaged");
  }
  FolderOptions shared = Worker::folder_options(folder.path(), "a", 0);
  shared.damaged_seconds = 0;
  FolderExchange exchange(shared, json{{"net", "spirals"}}, json::object(), {});
  LocalWorker back(exchange, folder / "a.kept", 3, options, 100);
  back.begin();
  CHECK(back.trainer.steps() == 12);
  back.run(16);
  for (const std::uint64_t round : {1, 2, 3}) {
    const auto found = exchange.read_reply(round);
    REQUIRE(found);
    CHECK(found->follows(exchange.read_reply(round - 1)));
  }
}

// After a second, however long rounds take.
TEST_CASE("a worker that comes back with a message out waits for others as long as before", "[local]") {
  const TempDir folder;
  LocalOptions options = dense(4);
  options.delay = 3;
  options.deadline_seconds = 0;
  Worker other(folder.path(), "b", 4, options, 100);
  other.begin();
  {
    Worker killed(folder.path(), "a", 3, options, 100);
    killed.begin();
    killed.run(4);
    REQUIRE(killed.exchange.has_message(0));
  }
  const double seconds = GENERATE(0.0, 1000.0);
  TensorFile kept = TensorFile::load(folder / "a.kept");
  CHECK(kept.metadata.contains("round_seconds"));
  kept.metadata["round_seconds"] = fmt::format("{}", seconds);
  kept.save(folder / "a.kept");
  FolderExchange exchange(Worker::folder_options(folder.path(), "a", 0), json{{"net", "spirals"}}, json::object(), {});
  LocalWorker back(exchange, folder / "a.kept", 3, options, 100);
  int looks = 10;  // in two and a half seconds
  back.local.begin(1, [&] { back.stops = --looks < 0; });
  CHECK(exchange.has_reply(0) == (seconds == 0));
}

TEST_CASE("tokens of what a worker kept when it stopped are there after a kill", "[local]") {
  const TempDir folder;
  LocalOptions options = dense(4);
  options.fragments = 2;
  {
    Worker worker(folder.path(), "a", 3, options, 100);
    worker.begin();
    worker.run(1);
    worker.stop();
  }
  {
    Worker killed(folder.path(), "a", 3, options, 100);
    killed.trainer.go_on_from(1);
    killed.begin();
    killed.run(2);  // a message of the first fragment
  }
  Worker back(folder.path(), "a", 3, options, 100);
  back.trainer.go_on_from(2);
  back.begin();
  back.run(4);
  const auto reply = back.exchange.read_reply(1);
  REQUIRE(reply);
  // One step from before the stop and two of its own; that of the killed process is lost.
  CHECK(reply->sum.totals == std::vector<std::int64_t>{0, 3 * worker_examples});
}

TEST_CASE("a worker that sleeps until the reply to its message is gone goes on from a state", "[local]") {
  const TempDir folder;
  LocalOptions hasty = sparse(4);
  hasty.deadline_seconds = 1e-3;
  Worker a(folder.path(), "a", 3, sparse(4), 100), b(folder.path(), "b", 4, hasty, 100);
  a.begin();
  b.begin();
  a.run(3);
  a.stops = true;
  a.step();  // its message is out
  b.run(60);
  REQUIRE_FALSE(b.exchange.has_reply(0));
  a.stops = false;
  a.step();
  CHECK(a.trainer.steps() == 60);
}

TEST_CASE("who begins with a state whose reply is damaged counts nothing twice", "[local]") {
  const TempDir folder;
  Worker before(folder.path(), "before", 3, sparse(4), 100), after(folder.path(), "after", 4, sparse(4), 100);
  before.begin();
  before.run(16);
  before.stop();
  REQUIRE(before.exchange.newest_rounds() == 4);
  REQUIRE(fs::exists(folder / "messages/before-00000003.safetensors"));
  write_file(folder / "replies/00000003.safetensors", "damaged");
  after.begin();
  after.run(20);
  const auto reply = after.exchange.read_reply(4);
  REQUIRE(reply);
  CHECK(reply->workers == std::vector<std::string>{"after"});
  CHECK(reply->counted.at("before") == 3);
}

// By then nobody knows whether it was counted.
TEST_CASE("a message of more than a thousand rounds ago is not counted", "[local]") {
  const TempDir folder;
  FolderExchange a(Worker::folder_options(folder.path(), "a", 0), json{{"net", "spirals"}}, json::object(), {});
  FolderExchange b(Worker::folder_options(folder.path(), "b", 0), json{{"net", "spirals"}}, json::object(), {});
  mpi::Bundle message;
  message.workers = 1;
  message.totals = {16};
  message.vectors.resize(1);
  message.vectors[0] = {4, {1}, {5}};
  constexpr std::uint64_t round = 2000;
  Unsent unsent({{"w", 4}}, 1, "a");
  for (const std::uint64_t sent : {round - forgotten_after - 1, round - 1}) {
    message.update = sent;
    a.publish(message);
    unsent.add(message);
  }
  message.update = round;
  b.publish(message);
  RoundReply last;
  last.round = round - 1;
  last.counted = {{"b", round - 1}};
  REQUIRE(b.try_to_end(round, last, 10, 1));
  CHECK(b.read_reply(round)->sum.totals == std::vector<std::int64_t>{32});
  unsent.take_back(a, last, round);
  REQUIRE(unsent.messages().size() == 1);
  CHECK(unsent.messages()[0].update == round - 1);
}

TEST_CASE("a worker that is stopped before it has joined keeps what it had", "[local]") {
  const TempDir folder;
  FolderExchange other(Worker::folder_options(folder.path(), "other", 0), json{{"net", "spirals"}}, json::object(), {});
  other.join(0);
  {
    Worker worker(folder.path(), "a", 3, sparse(4), 100);
    worker.begin();
    worker.run(3);
    worker.stops = true;
    worker.step();
    worker.local.leave([] {});
  }
  const std::string before = read_file(folder / "a.kept");
  Worker back(folder.path(), "a", 3, sparse(4), 100);
  back.stops = true;  // while it waits for the reply to its message
  back.begin();
  CHECK(back.step().is_null());
  back.local.leave([] {});
  CHECK(read_file(folder / "a.kept") == before);
}

TEST_CASE("who joins later goes on from where the others are, who is behind follows them", "[local]") {
  const TempDir folder;
  LocalOptions options = sparse(4);
  options.deadline_seconds = 1e-3;  // nobody is waited for
  Worker first(folder.path(), "first", 1, options, 200), slow(folder.path(), "slow", 2, options, 200);
  first.begin();
  slow.begin();
  first.run(40);
  CHECK(slow.trainer.steps() == 0);
  for (int i = 0; i < 4; ++i) slow.step();
  CHECK(slow.trainer.steps() == 40);
  CHECK(has(slow.progress.text(), "the others are at step 40"));
  CHECK(slow.values() == first.values());
  // The slow worker's learning counts now.
  first.run(44);
  CHECK(first.exchange.read_reply(10)->workers == std::vector<std::string>{"first", "slow"});
  Worker late(folder.path(), "late", 3, options, 200);
  late.begin();
  CHECK(late.trainer.steps() == 44);
  CHECK(late.values() == first.values());
  // Where replies are gone, a state takes their place.
  first.run(120);
  CHECK_FALSE(first.exchange.has_reply(11));
  for (int i = 0; i < 4; ++i) late.step();
  CHECK(late.trainer.steps() == 120);
  CHECK(late.values() == first.values());
}

TEST_CASE("a worker that had another reply than the others goes back to their state", "[local]") {
  const TempDir folder;
  LocalOptions options = sparse(4);
  options.deadline_seconds = 1e-3;
  Worker a(folder.path(), "a", 1, options, 200), b(folder.path(), "b", 2, options, 200);
  a.begin();
  b.begin();
  a.run(4);
  // File systems without hard links may let two workers write one reply: the second one's is what the others find.
  fs::remove(folder / "replies/00000000.safetensors");
  b.run(4);
  CHECK(b.exchange.read_reply(0)->workers == std::vector<std::string>{"a", "b"});
  b.run(20);
  CHECK(a.values() != b.values());
  for (int i = 0; i < 4; ++i) a.step();
  CHECK(has(a.progress.text(), "another reply"));
  CHECK(a.values() == b.values());
}
