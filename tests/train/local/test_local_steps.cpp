// Local steps: workers that train by themselves, and what they share.
#include "train/local/local_steps.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/train/local/worker.h"

using namespace bitloom;
using namespace bitloom::test;
using namespace bitloom::train;

TEST_CASE("one worker that sends all it learns trains as one without an exchange", "[local]") {
  const TempDir folder;
  Worker worker(folder.path(), "a", 0, dense(4), 12);
  worker.begin();
  const json line = [&] {
    for (int i = 0; i < 3; ++i) CHECK(worker.step().is_null());
    return worker.step();
  }();
  CHECK(line["event"] == "exchange");
  CHECK(line["rounds"] == 1);
  CHECK(line["workers"] == 1);
  CHECK(line["sent_bytes"] > 0);
  CHECK(line["received_bytes"] > 0);
  worker.run(12);
  // But for the rounding of differences, which training then amplifies.
  CHECK(compare(worker.values(), after_own_steps(0, 12), 1e-4) == "");
}

TEST_CASE("what a round shares and what workers keep is what they have learned", "[local]") {
  const TempDir folder;
  // A reply of fewer elements than messages have gives the rest back.
  const std::size_t reply_count = GENERATE(0, 5);
  Worker a(folder.path(), "a", 1, sparse(5), 100, reply_count), b(folder.path(), "b", 2, sparse(5), 100, reply_count);
  const std::vector<float> start = a.values();
  std::thread other([&] {
    b.begin(2);
    b.run(5);
    b.stops = true;
  });
  a.begin(2);
  a.run(5);
  other.join();
  CHECK(a.values() == b.values());
  CHECK(a.values() != start);
  const auto reply = a.exchange.read_reply(0);
  REQUIRE(reply);
  std::vector<std::int64_t> all(start.size());
  add_sums(reply->sum, all);
  // Learned since the round: nothing. So leaving writes what is kept now.
  a.local.leave([] {});
  b.local.leave([] {});
  add_kept(a, all);
  add_kept(b, all);
  std::vector<std::int64_t> learned = units(start, after_own_steps(1, 5));
  const std::vector<std::int64_t> of_b = units(start, after_own_steps(2, 5));
  for (std::size_t i = 0; i < learned.size(); ++i) learned[i] += of_b[i];
  CHECK(all == learned);
}

TEST_CASE("what a message leaves out fades, what a worker learns later does not", "[local]") {
  const TempDir folder;
  LocalOptions options = sparse(5);
  Worker all(folder.path() / "all", "a", 1, options, 100);
  options.kept_share = 0.25;
  Worker part(folder.path() / "part", "a", 1, options, 100);
  std::vector<std::int64_t> kept_of_all, kept_of_part;
  for (auto [worker, kept] : {std::pair(&all, &kept_of_all), std::pair(&part, &kept_of_part)}) {
    kept->resize(worker->values().size());
    worker->begin();
    worker->run(5);
    worker->local.leave([] {});
    add_kept(*worker, *kept);
  }
  REQUIRE(std::ranges::any_of(kept_of_all, [](std::int64_t each) { return each != 0; }));
  std::vector<std::int64_t> quarter;
  for (const std::int64_t each : kept_of_all) quarter.push_back(std::lrint(0.25 * static_cast<double>(each)));
  CHECK(kept_of_part == quarter);

  // Two more steps of five, then it stops.
  const std::vector<float> shared = part.values();
  part.run(7);
  const std::vector<float> own = part.values();
  part.local.leave([] {});
  std::vector<std::int64_t> now(shared.size());
  add_kept(part, now);
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double learned = static_cast<double>(shared[i]) - static_cast<double>(own[i]);
    now[i] -= std::lrint(learned * (0.4 / difference_unit));
  }
  CHECK(now == quarter);
}

TEST_CASE("workers come to the same parameters, in fragments and with replies that are used later", "[local]") {
  struct Case {
    std::size_t fragments;
    std::uint64_t delay;
  };
  for (const auto& [fragments, delay] : {Case{1, 0}, Case{1, 3}, Case{2, 1}, Case{3, 0}}) {
    INFO(fragments << " fragments, delay " << delay);
    const TempDir folder;
    LocalOptions options = sparse(6);
    options.fragments = fragments;
    options.delay = delay;
    constexpr std::uint64_t steps = 60;
    std::vector<std::unique_ptr<Worker>> workers;
    for (std::uint64_t w = 0; w < 3; ++w) {
      workers.push_back(std::make_unique<Worker>(folder.path(), fmt::format("w{}", w), w, options, steps));
    }
    std::vector<std::thread> threads;
    for (auto& worker : workers) {
      threads.emplace_back([&worker] {
        worker->begin(3);
        worker->run(steps);
      });
    }
    for (std::thread& thread : threads) thread.join();
    CHECK(workers[0]->values() == workers[1]->values());
    CHECK(workers[0]->values() == workers[2]->values());
    CHECK(workers[0]->exchange.newest_state()->rounds == 10 * fragments);
    CHECK(workers[0]->loss < 1.0);               // ln 3 is 1.0986
    CHECK(workers[0]->exchange.workers() == 0);  // nobody is waited for any more
  }
}

TEST_CASE("while a reply is under way training goes on, and nothing of that is lost", "[local]") {
  const TempDir folder;
  LocalOptions options = dense(6);
  options.delay = 2;
  Worker worker(folder.path(), "a", 0, options, 100);
  worker.begin();
  worker.run(8);
  CHECK(worker.exchange.has_reply(0));
  CHECK(compare(worker.values(), after_own_steps(0, 8), 1e-4) == "");
}

TEST_CASE("a worker that stops between messages loses nothing", "[local]") {
  const TempDir folder;
  std::vector<float> start;
  {
    Worker worker(folder.path(), "a", 3, dense(10), 100);
    start = worker.values();
    worker.begin();
    worker.run(4);
    worker.local.leave([] {});
    CHECK(worker.exchange.workers() == 0);
  }
  Worker back(folder.path(), "a", 3, dense(10), 100);
  back.trainer.go_on_from(4);  // as its checkpoint says
  back.begin();
  CHECK(back.trainer.steps() == 4);
  CHECK(back.values() == start);  // the shared ones
  for (int i = 0; i < 6; ++i) back.step();
  // Ten steps' differences, four of them from before.
  std::vector<std::int64_t> shared(start.size());
  add_sums(back.exchange.read_reply(0)->sum, shared);
  CHECK(back.exchange.read_reply(0)->sum.totals == std::vector<std::int64_t>{10 * worker_examples});
  // Four steps from the start and six more, from the start again: each part by its share of the ten.
  const std::vector<std::int64_t> four = units(start, after_own_steps(3, 4));
  const TempDir elsewhere;
  Worker alone(elsewhere.path(), "alone", 3, dense(100), 100);
  alone.trainer.go_on_from(4);
  for (int i = 0; i < 6; ++i) alone.trainer.step();
  const std::vector<std::int64_t> six = units(start, alone.values());
  double largest = 0;
  for (std::size_t i = 0; i < shared.size(); ++i) {
    const double expected = 0.4 * static_cast<double>(four[i]) + 0.6 * static_cast<double>(six[i]);
    largest = std::max(largest, std::abs(static_cast<double>(shared[i]) - expected));
  }
  CHECK(largest <= 3);  // units; all are rounded
}

// A folder may show a file before it can be read.
TEST_CASE("a reply that cannot be read is waited for", "[local]") {
  const TempDir folder;
  Worker worker(folder.path(), "a", 3, sparse(4), 100);
  const std::vector<float> start = worker.values();
  worker.begin();
  const fs::path reply = folder / "replies/00000000.safetensors";
  write_file(reply, "not yet");
  std::thread other([&] {
    while (!worker.exchange.has_message(0)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fs::remove(reply);
  });
  worker.run(4);
  other.join();
  REQUIRE(worker.exchange.read_reply(0));
  std::vector<std::int64_t> all(start.size());
  add_sums(worker.exchange.read_reply(0)->sum, all);
  worker.local.leave([] {});
  add_kept(worker, all);
  CHECK(all == units(start, after_own_steps(3, 4)));
}

TEST_CASE("a worker that comes to the end from far behind has the shared parameters", "[local]") {
  const TempDir folder;
  LocalOptions options = dense(2);
  options.delay = 1;
  options.deadline_seconds = 1e-3;
  constexpr std::uint64_t steps = 12;
  Worker slow(folder.path(), "slow", 1, options, steps), fast(folder.path(), "fast", 2, options, steps);
  slow.begin();
  fast.begin();
  fast.run(steps);
  slow.run(steps);
  CHECK(slow.values() == fast.values());
}

TEST_CASE("the last steps of a worker that has fewer than others are sent, though their round is over", "[local]") {
  const TempDir folder;
  LocalOptions options = dense(4);
  options.delay = 3;
  options.deadline_seconds = 1e-3;
  Worker few(folder.path(), "few", 1, options, 11), more(folder.path(), "more", 2, options, 100);
  few.begin();
  more.begin();
  few.run(8);
  more.run(15);
  REQUIRE(more.exchange.has_reply(2));
  few.run(11);
  // With all that was learned in three steps.
  CHECK(fs::file_size(folder / "messages/few-00000002.safetensors") >
        fs::file_size(folder / "messages/few-00000001.safetensors") / 2);
}

// It began again from initial values: a disk that was not mounted, or another folder by mistake.
TEST_CASE("a worker that has made steps is refused where nothing is shared", "[local]") {
  const TempDir folder;
  Worker worker(folder.path(), "a", 1, dense(4), 100);
  worker.trainer.step();
  const std::vector<float> own = worker.values();
  const std::string refusal = message_of(ErrorKind::usage, [&] { worker.begin(); });
  CHECK(has(refusal, "`through`: " + folder.path().string() + ": has no state of shared parameters"));
  CHECK(has(refusal, "this run has made 1 steps"));
  CHECK(fs::is_empty(folder / "states"));
  CHECK(worker.values() == own);
}

TEST_CASE("a worker that goes back to the step of the shared rounds says so", "[local]") {
  const TempDir folder;
  {
    Worker worker(folder.path(), "a", 1, dense(4), 100);
    worker.begin();
    worker.run(8);
    worker.stop();
  }
  for (const std::uint64_t steps : {11, 12}) {
    Worker back(folder.path(), "a", 1, dense(4), 100);
    back.trainer.go_on_from(steps);
    back.begin();
    CHECK(back.trainer.steps() == 11);
    CHECK(has(back.progress.text(), "worker a: has made 12 steps, but the shared rounds go as far as step 11 alone") ==
          (steps == 12));
    back.stop();
  }
}

// A run that goes on from its checkpoint of step 0 loads it after that, with the values of a model it was to begin with.
TEST_CASE("the first state has the parameters at the beginning, not those of when the worker was made", "[local]") {
  const TempDir folder;
  Worker worker(folder.path(), "a", 1, dense(4), 100);
  const std::vector<float> loaded = after_own_steps(1, 3);
  worker.trainer.step();
  worker.trainer.step();
  worker.trainer.step();
  worker.trainer.go_on_from(0);
  worker.begin();
  CHECK(worker.values() == loaded);
}

TEST_CASE("a worker that is asked to stop does not wait", "[local]") {
  const TempDir folder;
  FolderExchange other(Worker::folder_options(folder.path(), "other", 0), json{{"net", "spirals"}}, json::object(), {});
  other.join(0);
  Worker worker(folder.path(), "a", 1, sparse(4), 100);
  worker.begin();
  worker.run(3);
  worker.stops = true;
  worker.step();
  CHECK(worker.trainer.steps() == 4);
  CHECK_FALSE(other.has_reply(0));
  CHECK(worker.exchange.has_message(0));
}

TEST_CASE("local steps that make no sense are refused", "[local]") {
  const auto error = [](auto change) {
    LocalOptions options = dense(12);
    change(options);
    return message_of(ErrorKind::usage, [&] { check(options); });
  };
  CHECK(error([](LocalOptions& o) { o.inner_steps = 0; }) == "`inner_steps`: 0; expected at least 1");
  CHECK(error([](LocalOptions& o) { o.kept_share = 1.5; }) == "`kept_share`: 1.5; expected 0 to 1");
  CHECK(error([](LocalOptions& o) { o.fragments = 5; }) == "`fragments`: 5; expected a divisor of `inner_steps`, 12");
  CHECK(has(error([](LocalOptions& o) { o.delay = 12; }),
            "`delay`: 12 steps; expected less than there are between messages, 12"));
  CHECK(has(error([](LocalOptions& o) { o.outer.rate = 0; }), "`outer_rate`: 0"));
  CHECK(has(error([](LocalOptions& o) { o.outer.momentum = 1; }), "`outer_momentum`: 1"));
  CHECK(has(error([](LocalOptions& o) { o.deadline_seconds = -1; }), "`deadline`: -1"));
}
