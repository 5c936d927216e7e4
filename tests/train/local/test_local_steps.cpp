// Local steps: workers that train by themselves and share what they learn. Workers are threads here; who waits for whom is not
// left to time, but for deadlines that are over at once.
#include "train/local/local_steps.h"

#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/train/spirals.h"

using namespace bitloom;
using namespace bitloom::train;
using bitloom::test::compare;
using bitloom::test::has;
using bitloom::test::message_of;
namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

constexpr double never = 1e6;  // seconds
constexpr std::size_t examples = 16;

class Lines final : public ProgressSink {
 public:
  void line(std::string_view text) override { all += std::string(text) + "\n"; }
  void update(std::string_view /*text*/) override {}
  std::string all;
};

// Everything that is learned is sent, exactly.
LocalOptions dense(std::uint64_t inner_steps) {
  LocalOptions options;
  options.inner_steps = inner_steps;
  options.outer = {1, 0};
  options.filter = {64, 64, 0};
  options.deadline_seconds = never;
  return options;
}

LocalOptions sparse(std::uint64_t inner_steps) {
  LocalOptions options = dense(inner_steps);
  options.outer = {0.7, 0.9};
  options.filter = {64, 8, 2};
  return options;
}

// A worker of one process: each has other examples.
struct Worker {
  Worker(const fs::path& shared, const std::string& name, std::uint64_t number, const LocalOptions& options,
         std::uint64_t steps, std::size_t reply_count = 0)
      : task(test::spiral_net({}), {examples, 2}, other_examples(number)),
        trainer(engine, task, train_options()),
        exchange(folder_options(shared, name, reply_count), Json{{"net", "spirals"}}, Json::object(), {}),
        kept(shared / (name + ".kept")),
        local(
            trainer, exchange, options, steps, static_cast<double>(options.inner_steps * examples), kept,
            [this] { return stops; }, progress) {}
  static TrainOptions train_options() {
    TrainOptions options;
    options.rate.peak = 0.01;
    return options;
  }
  static FolderOptions folder_options(const fs::path& shared, const std::string& name, std::size_t reply_count) {
    FolderOptions options;
    options.folder = shared;
    options.worker = name;
    options.chunk = 64;
    options.reply_count = reply_count;
    options.state_every = 4;
    return options;
  }
  Classification::Source other_examples(std::uint64_t number) {
    return [source = test::spirals<float>(engine, {}, DType::f32), number](std::uint64_t step, std::uint64_t micro_batch) {
      return source(step + 1000 * number, micro_batch);
    };
  }
  void begin(std::size_t workers = 1) {
    local.begin(workers, [] {});
  }
  // A step, and what belongs to it; the line of metrics.
  Json step() {
    const StepReport report = trainer.step();
    loss = report.loss;
    return local.after_step(report.targets, [] {});
  }
  void run(std::uint64_t steps) {
    while (trainer.steps() < steps && !stops) step();
  }
  std::vector<float> values() {
    std::vector<float> all;
    for (const nn::Parameter* parameter : trainer.parameters()) {
      const std::vector<float> own = engine.to_host<float>(parameter->value);
      all.insert(all.end(), own.begin(), own.end());
    }
    return all;
  }

  nn::Engine engine;
  bool stops = false;
  double loss = 0;
  Classification task;
  Trainer trainer;
  FolderExchange exchange;
  fs::path kept;
  Lines progress;
  LocalSteps local;
};

// In units, of all parameters, one after the other.
std::vector<std::int64_t> units(const std::vector<float>& before, const std::vector<float>& after) {
  std::vector<std::int64_t> all(before.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = std::lrint((static_cast<double>(before[i]) - static_cast<double>(after[i])) / difference_unit);
  }
  return all;
}

void add_kept(const Worker& worker, std::vector<std::int64_t>& all) {
  const TensorFile file = TensorFile::load(worker.kept, Checksum::required);
  std::size_t at = 0;
  for (const nn::Parameter* parameter : worker.trainer.parameters()) {
    for (const std::int32_t each : file.get("kept." + parameter->name).as<std::int32_t>()) all[at++] += each;
  }
}

void add_sums(const mpi::Bundle& bundle, std::vector<std::int64_t>& all) {
  std::size_t at = 0;
  for (const mpi::SparseVector& vector : bundle.vectors) {
    mpi::add_to(std::span(all).subspan(at, vector.size), vector);
    at += vector.size;
  }
}

// The values that a worker of number `number` has after some steps of its own from `from` on.
std::vector<float> after_own_steps(std::uint64_t number, std::uint64_t steps) {
  const test::TempDir folder;
  Worker worker(folder.path(), "alone", number, dense(1000), 1000);
  for (std::uint64_t i = 0; i < steps; ++i) worker.trainer.step();
  return worker.values();
}

}  // namespace

TEST_CASE("one worker that sends all it learns trains as one without an exchange", "[local]") {
  const test::TempDir folder;
  Worker worker(folder.path(), "a", 0, dense(4), 12);
  worker.begin();
  const Json line = [&] {
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
  const test::TempDir folder;
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
  a.local.leave();
  b.local.leave();
  add_kept(a, all);
  add_kept(b, all);
  std::vector<std::int64_t> learned = units(start, after_own_steps(1, 5));
  const std::vector<std::int64_t> of_b = units(start, after_own_steps(2, 5));
  for (std::size_t i = 0; i < learned.size(); ++i) learned[i] += of_b[i];
  CHECK(all == learned);
}

TEST_CASE("workers come to the same parameters, in fragments and with replies that are used later", "[local]") {
  struct Case {
    std::size_t fragments;
    std::uint64_t delay;
  };
  for (const auto& [fragments, delay] : {Case{1, 0}, Case{1, 3}, Case{2, 1}, Case{3, 0}}) {
    INFO(fragments << " fragments, delay " << delay);
    const test::TempDir folder;
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
  const test::TempDir folder;
  LocalOptions options = dense(6);
  options.delay = 2;
  Worker worker(folder.path(), "a", 0, options, 100);
  worker.begin();
  worker.run(8);
  CHECK(worker.exchange.has_reply(0));
  CHECK(compare(worker.values(), after_own_steps(0, 8), 1e-4) == "");
}

TEST_CASE("a worker that is killed before its message is out sends it when it is back", "[local]") {
  const test::TempDir folder;
  FolderExchange other(Worker::folder_options(folder.path(), "other", 0), Json{{"net", "spirals"}}, Json::object(), {});
  other.join(0);  // so that the round does not end
  std::vector<float> start;
  {
    Worker worker(folder.path(), "a", 3, sparse(4), 100);
    start = worker.values();
    worker.begin();
    worker.run(3);
    worker.stops = true;
    worker.step();
  }
  fs::remove(folder / "messages/a-00000000.safetensors");
  LocalOptions options = sparse(4);
  options.deadline_seconds = 1e-3;
  Worker back(folder.path(), "a", 3, options, 100);
  back.begin();
  CHECK(back.trainer.steps() == 4);
  const auto reply = other.read_reply(0);
  REQUIRE(reply);
  CHECK(reply->workers == std::vector<std::string>{"a"});
  std::vector<std::int64_t> all(start.size());
  add_sums(reply->sum, all);
  back.local.leave();
  add_kept(back, all);
  CHECK(all == units(start, after_own_steps(3, 4)));
}

// Its feedback is that from before the reply.
TEST_CASE("a worker that is killed after a reply counts nothing twice", "[local]") {
  const test::TempDir folder;
  constexpr std::size_t reply_count = 3;  // fewer than the message has
  LocalOptions options = sparse(4);
  options.deadline_seconds = 1e-3;
  std::vector<std::int64_t> expected;
  {
    Worker worker(folder.path(), "a", 3, options, 100, reply_count);
    worker.begin();
    worker.run(4);
    const std::string before = test::read_file(worker.kept);
    worker.local.leave();
    expected.resize(worker.values().size());
    add_kept(worker, expected);
    test::write_file(worker.kept, before);
  }
  const auto kept_by = [&](Worker& worker) {
    worker.begin();
    worker.local.leave();
    std::vector<std::int64_t> all(expected.size());
    add_kept(worker, all);
    return all;
  };
  const std::string before = test::read_file(folder / "a.kept");
  Worker back(folder.path(), "a", 3, options, 100, reply_count);
  CHECK(kept_by(back) == expected);
  // Others have gone on so far that the reply is gone: what it lacked of the message is lost, and nothing is counted twice.
  Worker other(folder.path(), "b", 4, options, 100, reply_count);
  other.begin();
  other.run(60);
  REQUIRE_FALSE(other.exchange.has_reply(0));
  test::write_file(folder / "a.kept", before);
  Worker later(folder.path(), "a", 3, options, 100, reply_count);
  later.begin();
  CHECK(later.values() == other.values());
  later.run(68);
  std::size_t rounds = 0;
  for (std::uint64_t round = 15; round < 17; ++round) {
    const auto reply = later.exchange.read_reply(round);
    REQUIRE(reply);
    CHECK(reply->workers == std::vector<std::string>{"a"});
    CHECK(reply->sum.workers == 1);
    ++rounds;
  }
  CHECK(rounds == 2);
}

TEST_CASE("a worker that is stopped before it has joined keeps what it had", "[local]") {
  const test::TempDir folder;
  FolderExchange other(Worker::folder_options(folder.path(), "other", 0), Json{{"net", "spirals"}}, Json::object(), {});
  other.join(0);
  {
    Worker worker(folder.path(), "a", 3, sparse(4), 100);
    worker.begin();
    worker.run(3);
    worker.stops = true;
    worker.step();
    worker.local.leave();
  }
  const std::string before = test::read_file(folder / "a.kept");
  Worker back(folder.path(), "a", 3, sparse(4), 100);
  back.stops = true;  // while it waits for the reply to its message
  back.begin();
  CHECK(back.step().is_null());
  back.local.leave();
  CHECK(test::read_file(folder / "a.kept") == before);
}

TEST_CASE("a worker that stops between messages loses nothing", "[local]") {
  const test::TempDir folder;
  std::vector<float> start;
  {
    Worker worker(folder.path(), "a", 3, dense(10), 100);
    start = worker.values();
    worker.begin();
    worker.run(4);
    worker.local.leave();
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
  CHECK(back.exchange.read_reply(0)->sum.totals == std::vector<std::int64_t>{10 * examples});
  std::vector<std::int64_t> before(start.size());
  const std::vector<std::int64_t> of_four = units(start, after_own_steps(3, 4));
  std::size_t larger = 0;
  for (std::size_t i = 0; i < shared.size(); ++i) larger += shared[i] != 0 && of_four[i] != 0 ? 1 : 0;
  CHECK(larger > start.size() / 2);
}

TEST_CASE("who joins later goes on from where the others are, who is behind follows them", "[local]") {
  const test::TempDir folder;
  LocalOptions options = sparse(4);
  options.deadline_seconds = 1e-3;  // nobody is waited for
  Worker first(folder.path(), "first", 1, options, 200), slow(folder.path(), "slow", 2, options, 200);
  first.begin();
  slow.begin();
  first.run(40);
  CHECK(slow.trainer.steps() == 0);
  for (int i = 0; i < 4; ++i) slow.step();
  CHECK(slow.trainer.steps() == 40);
  CHECK(has(slow.progress.all, "the others are at step 40"));
  CHECK(slow.values() == first.values());
  // What it had learned counts now.
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
  const test::TempDir folder;
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
  CHECK(has(a.progress.all, "another reply"));
  CHECK(a.values() == b.values());
}

TEST_CASE("a worker that is asked to stop does not wait", "[local]") {
  const test::TempDir folder;
  FolderExchange other(Worker::folder_options(folder.path(), "other", 0), Json{{"net", "spirals"}}, Json::object(), {});
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
  CHECK(error([](LocalOptions& o) { o.fragments = 5; }) == "`fragments`: 5; expected a divisor of `inner_steps`, 12");
  CHECK(has(error([](LocalOptions& o) { o.delay = 12; }),
            "`delay`: 12 steps; expected less than there are between messages, 12"));
  CHECK(has(error([](LocalOptions& o) { o.outer.rate = 0; }), "`outer_rate`: 0"));
  CHECK(has(error([](LocalOptions& o) { o.outer.momentum = 1; }), "`outer_momentum`: 1"));
  CHECK(has(error([](LocalOptions& o) { o.deadline_seconds = -1; }), "`deadline`: -1"));
}
