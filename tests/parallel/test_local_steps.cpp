// Local steps of the processes of a job, along the tree of its ranks.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/train/local/worker.h"
#include "train/local/group_steps.h"
#include "train/local/tree_exchange.h"

using namespace bitloom;
using namespace bitloom::test;
using namespace bitloom::train;

namespace {

mpi::Comm everybody() { return world().split(0, world().rank(), "workers"); }

// The folder of rank 0, of which all know.
class SharedFolder {
 public:
  fs::path path() const { return path_; }

 private:
  TempDir own_;
  fs::path path_ = world().broadcast_text(own_.path().string());
};

TreeExchangeOptions tree_options(const fs::path& shared, std::size_t reply_count, double quorum, int fan_in,
                                 const char* prefix) {
  TreeExchangeOptions options;
  options.memory = LocalWorker::folder_options(shared, fmt::format("{}{}", prefix, world().rank()), reply_count);
  options.memory.quorum = quorum;
  options.memory.state_every = 1000;
  options.fan_in = fan_in;
  return options;
}

struct InTree {
  TreeExchange exchange;
};

// That of this process.
struct TreeWorker : InTree, LocalWorker {
  TreeWorker(const fs::path& shared, const LocalOptions& options, std::uint64_t steps, const TreeExchangeOptions& tree,
             mpi::Comm comm = everybody())
      : InTree{{std::move(comm), tree, json{{"net", "spirals"}}, json::object(), FieldName(), [this] { return stops.load(); }}},
        LocalWorker(exchange, shared / fmt::format("w{}.kept", world().rank()), number(), options, steps) {}
  TreeWorker(const fs::path& shared, const LocalOptions& options, std::uint64_t steps, std::size_t reply_count = 0,
             double quorum = 1, int fan_in = 2, mpi::Comm comm = everybody(), const char* prefix = "w")
      : TreeWorker(shared, options, steps, tree_options(shared, reply_count, quorum, fan_in, prefix), std::move(comm)) {}
  static std::uint64_t number() { return static_cast<std::uint64_t>(world().rank()) + 1; }
};

// Rank 0's: what the replies of a job say.
std::vector<RoundReply> replies_in(const fs::path& shared) {
  std::vector<RoundReply> replies;
  FolderExchange memory(LocalWorker::folder_options(shared, "reader", 0), json{{"net", "spirals"}}, json::object(), {});
  while (auto reply = memory.read_reply(replies.size())) replies.push_back(std::move(*reply));
  return replies;
}

// A job whose workers make steps up to each of these, are asked to stop, and are gone.
void run_and_stop(const SharedFolder& folder, const LocalOptions& options, std::uint64_t steps,
                  const std::vector<std::uint64_t>& until) {
  {
    TreeWorker worker(folder.path(), options, steps);
    worker.begin();
    for (const std::uint64_t step : until) worker.run(step);
    worker.stop();
  }
  world().barrier();
}

// Rank 0 is in the middle of round 2, for which the others have sent their messages and wait as the stop comes.
std::vector<std::uint64_t> in_round_2() {
  if (world().is_root()) return {10};
  return {8, 12};
}

// A worker whose job soon takes a silent one for lost: not within the second that one look counts at most.
TreeWorker impatient_worker(const SharedFolder& folder, std::uint64_t steps, double quorum, int fan_in) {
  LocalOptions options = sparse(4);
  options.deadline_seconds = 1e-3;
  TreeExchangeOptions tree = tree_options(folder.path(), 3, quorum, fan_in, "w");
  tree.patience_seconds = 1.5;
  return TreeWorker(folder.path(), options, steps, tree);
}

std::vector<std::string> all_names() {
  std::vector<std::string> names;
  for (int r = 0; r < world().size(); ++r) names.push_back(fmt::format("w{}", r));
  return names;
}

}  // namespace

TEST_CASE("workers of a job end with the parameters of workers with a folder", "[local]") {
  constexpr std::uint64_t steps = 22;
  const int fan_in = GENERATE(1, 2, 8);
  LocalOptions options = sparse(4);
  SECTION("waiting") {}
  SECTION("in fragments, training meanwhile") {
    options.fragments = 2;
    options.delay = 1;
  }
  const SharedFolder folder;
  TreeWorker worker(folder.path() / "tree", options, steps, 3, 1, fan_in);
  worker.begin();
  worker.run(steps);
  CHECK(same_everywhere(worker.values()));
  world().barrier();
  if (!world().is_root()) return;
  const TempDir others;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int r = 0; r < world().size(); ++r) {
    workers.push_back(std::make_unique<Worker>(others.path(), fmt::format("w{}", r), r + 1, options, steps, 3));
  }
  std::vector<std::thread> threads;
  for (const auto& each : workers) {
    threads.emplace_back([&] {
      each->begin(workers.size());
      each->run(steps);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(workers[0]->values() == worker.values());
}

TEST_CASE("a job of which one worker is asked to stop goes on where all were", "[local]") {
  constexpr std::uint64_t steps = 24;
  const SharedFolder folder;
  LocalOptions options = sparse(4);
  {
    TreeWorker worker(folder.path(), options, steps);
    worker.begin();
    // Rank 0 is in the middle of round 2, for which the others have sent their messages and wait.
    worker.run(world().is_root() ? 10 : 8);
    if (world().is_root()) {
      worker.stops = true;
    } else {
      worker.run(12);
      CHECK(worker.exchange.is_stopping());
      CHECK(worker.trainer.steps() == 12);
    }
    worker.local.leave([] {});
  }
  world().barrier();
  TreeWorker worker(folder.path(), options, steps);
  worker.begin();
  CHECK(worker.trainer.steps() == (world().size() > 1 && !world().is_root() ? 12 : 8));
  worker.run(steps);
  CHECK(same_everywhere(worker.values()));
  if (!world().is_root()) return;
  const std::vector<RoundReply> replies = replies_in(folder.path());
  REQUIRE(replies.size() == 6);
  for (const RoundReply& reply : replies) {
    CHECK(reply.workers == all_names());
    for (const std::string& name : all_names()) CHECK(reply.counted.at(name) == reply.round);
    if (reply.round > 0) CHECK(reply.previous == replies[reply.round - 1].hash);
  }
}

TEST_CASE("a message that a job did not count counts in a later one", "[local]") {
  constexpr std::uint64_t steps = 24;
  const SharedFolder folder;
  const LocalOptions options = sparse(4);
  run_and_stop(folder, options, steps, in_round_2());
  if (world().is_root()) {
    TreeWorker alone(folder.path(), options, steps, 0, 1, 2, mpi::Comm());
    alone.begin();
    alone.run(16);
    alone.stop();
  }
  world().barrier();
  TreeWorker worker(folder.path(), options, steps);
  worker.begin();
  CHECK(worker.trainer.steps() == 16);
  worker.run(steps);
  CHECK(same_everywhere(worker.values()));
  if (!world().is_root()) return;
  std::int64_t tokens = 0;
  for (const RoundReply& reply : replies_in(folder.path())) {
    CHECK(reply.counted.at("w0") == reply.round);
    if (world().size() > 1) CHECK(reply.counted.at("w1") == (reply.round == 2 || reply.round == 3 ? 1 : reply.round));
    tokens += reply.sum.totals.at(0);
  }
  // Rank 0 made two steps of round 2 twice: these workers have no checkpoints.
  CHECK(tokens == static_cast<std::int64_t>(worker_examples) * (26 + 20 * (world().size() - 1)));
}

TEST_CASE("workers that come back under other names send what was not counted", "[local]") {
  constexpr std::uint64_t steps = 24;
  const SharedFolder folder;
  const LocalOptions options = sparse(4);
  run_and_stop(folder, options, steps, in_round_2());
  TreeWorker worker(folder.path(), options, steps, 0, 1, 2, everybody(), "v");
  worker.begin();
  CHECK(worker.trainer.steps() == 8);
  worker.run(steps);
  CHECK(same_everywhere(worker.values()));
  if (!world().is_root()) return;
  std::int64_t tokens = 0;
  for (const RoundReply& reply : replies_in(folder.path())) tokens += reply.sum.totals.at(0);
  // Steps of round 2 that were made before the stop are made again, and count as well.
  CHECK(tokens == static_cast<std::int64_t>(worker_examples) * (26 + 28 * (world().size() - 1)));
}

TEST_CASE("a message that comes after the end of its round counts in a later one", "[local]") {
  if (world().size() == 1) return;
  constexpr std::uint64_t steps = 24;
  const int late = GENERATE(0, 1) == 0 ? 0 : world().size() - 1;
  const SharedFolder folder;
  LocalOptions options = sparse(4);
  options.deadline_seconds = 0.05;
  TreeWorker worker(folder.path(), options, steps, 0, 0.5);
  worker.begin();
  constexpr std::uint64_t missed = 1;
  worker.run(4);
  // The others do not end this round before the late one is in it, and would go on from the next.
  if (world().rank() == late) worker.run(7);
  world().barrier();
  if (world().rank() == late) {
    const StepReport report = worker.trainer.step();
    while (!worker.exchange.has_reply(missed)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    worker.local.after_step(report.targets, [] {});
    CHECK(worker.trainer.steps() >= 8);
  } else {
    worker.run(8);
  }
  for (std::uint64_t end = 12; end <= steps; end += 4) {
    world().barrier();
    worker.run(end);
  }
  CHECK(same_everywhere(worker.values()));
  if (!world().is_root()) return;
  const std::vector<RoundReply> replies = replies_in(folder.path());
  REQUIRE(replies.size() == 6);
  const std::string name = fmt::format("w{}", late);
  const auto counts_it = [&](const RoundReply& reply) {
    const auto counted = reply.counted.find(name);
    return counted != reply.counted.end() && counted->second >= missed;
  };
  CHECK_FALSE(counts_it(replies[missed]));
  CHECK(std::ranges::any_of(replies, counts_it));
}

TEST_CASE("a job whose newest replies are damaged goes on from those before", "[local]") {
  constexpr std::uint64_t steps = 40;
  const SharedFolder folder;
  LocalOptions options = sparse(4);
  run_and_stop(folder, options, steps, {28});
  const fs::path replies = folder.path() / "replies";
  if (world().is_root()) write_file(replies / "00000005.safetensors", "nothing");
  world().barrier();
  TreeWorker worker(folder.path(), options, steps);
  CHECK(worker.exchange.newest_rounds() == 0);
  worker.begin();
  CHECK(worker.trainer.steps() == 20);
  worker.run(steps);
  CHECK(same_everywhere(worker.values()));
  if (world().is_root())
    CHECK(FolderExchange::reply_of(5, read_bytes(replies / "00000005.safetensors")).workers == all_names());
}

TEST_CASE("a job of which a worker has made steps is refused where its replies are gone", "[local]") {
  const SharedFolder folder;
  const int rank = GENERATE(0, 1) == 0 ? 0 : world().size() - 1;
  TreeWorker worker(folder.path(), sparse(4), 24);
  if (world().rank() == rank) worker.trainer.go_on_from(9);
  const std::string refusal = message_of(ErrorKind::usage, [&] { worker.begin(); });
  CHECK(has(refusal, "`out`: " + folder.path().string() + ": has no state of shared parameters"));
  CHECK(has(refusal, "this run has made 9 steps"));
  CHECK(fs::is_empty(folder.path() / "states"));
  world().barrier();
}

// The reply and all later ones were removed, though their messages are settled.
TEST_CASE("a job that cannot open a reply just now ends, and keeps all of them", "[local]") {
  constexpr std::uint64_t steps = 40;
  const SharedFolder folder;
  const LocalOptions options = sparse(4);
  run_and_stop(folder, options, steps, {28});
  const fs::path reply = folder.path() / "replies/00000002.safetensors", away = folder.path() / "away";
  if (world().is_root()) {
    fs::rename(reply, away);
    fs::create_symlink(reply.filename(), reply);  // to itself
  }
  world().barrier();
  CHECK(has(message_of(ErrorKind::io, [&] { TreeWorker(folder.path(), options, steps).begin(); }), reply.string()));
  world().barrier();
  if (world().is_root()) {
    fs::remove(reply);
    fs::rename(away, reply);
  }
  world().barrier();
  TreeWorker worker(folder.path(), options, steps);
  worker.begin();
  CHECK(worker.trainer.steps() == 28);
  worker.stop();
  if (world().is_root()) CHECK(replies_in(folder.path()).size() == 7);
}

// With a quorum rounds went on without it.
TEST_CASE("a job ends when a worker has been silent for far longer than rounds take", "[local]") {
  if (world().size() == 1) return;
  const SharedFolder folder;
  constexpr std::uint64_t steps = 80000;
  TreeWorker worker = impatient_worker(folder, steps, 0.5, 2);
  worker.begin();
  if (world().rank() != world().size() - 1) {
    CHECK(has(message_of(ErrorKind::io, [&] { worker.run(steps); }), "has not been heard of for"));
    CHECK(worker.trainer.steps() >= 4);
  }
  world().barrier();
}

// The others took it for lost, and it them.
TEST_CASE("a job goes on though its first worker evaluates for longer than workers are waited for", "[local]") {
  if (world().size() == 1) return;
  const SharedFolder folder;
  constexpr std::uint64_t steps = 24;
  TreeWorker worker = impatient_worker(folder, steps, 1, GENERATE(1, 8));
  worker.begin();
  worker.run(10);
  if (world().is_root()) std::this_thread::sleep_for(std::chrono::seconds(4));
  worker.run(steps);
  CHECK(same_everywhere(worker.values()));
}

TEST_CASE("processes of a job that do not train the same are refused on all ranks", "[local]") {
  if (world().size() == 1) return;
  const SharedFolder folder;
  const auto open = [&](const std::string& name, const json& net) {
    TreeExchangeOptions options;
    options.memory = LocalWorker::folder_options(folder.path(), name, 0);
    TreeExchange exchange(everybody(), options, json{{"net", net}}, json::object(), {}, [] { return false; });
  };
  const bool is_last = world().rank() == world().size() - 1;
  CHECK(has(message_of(ErrorKind::usage, [&] { open("one", "spirals"); }), "'one' in two processes"));
  const std::string refusal =
      message_of(ErrorKind::usage, [&] { open(fmt::format("w{}", world().rank()), is_last ? "other" : "spirals"); });
  CHECK(has(refusal, fmt::format("rank {}: trains otherwise (given) than rank 0 (stored):", world().size() - 1)));
  CHECK(has(refusal, "net: spirals stored, other given"));
}

TEST_CASE("the processes of a worker have the parameters of its first, and hear of what it throws", "[local][group]") {
  const SharedFolder folder;
  const LocalOptions options = sparse(4);
  nn::Engine engine;
  const Classification::Source source = spirals<float>(engine, {}, DType::f32);
  Classification task(spiral_net({}), {worker_examples, 2}, source);
  mpi::Grid grid(world(), {world().size(), 1, 1});
  TrainOptions train = LocalWorker::train_options();
  train.micro_batches = static_cast<std::size_t>(world().size());
  Layout layout;
  layout.grid = &grid;
  Trainer trainer(engine, task, train, layout);
  trainer.share();
  Lines progress;
  std::atomic<bool> stops = false;
  std::optional<FolderExchange> exchange;
  std::optional<LocalSteps> local;
  world().together([&] {
    if (!world().is_root()) return;
    exchange.emplace(LocalWorker::folder_options(folder.path(), "one", 3), json{{"net", "spirals"}}, json::object(),
                     FieldName());
    local.emplace(
        trainer, *exchange, options, 20, 4.0 * worker_examples, folder.path() / "kept", [&] { return stops.load(); }, progress);
  });
  GroupSteps group(trainer, local ? &*local : nullptr);
  group.begin(1, [] {});
  while (trainer.steps() < 8) {
    const StepReport report = trainer.step();
    const json line = group.after_step(report.targets, [] {});
    CHECK(line.is_object() == (world().is_root() && report.step % 4 == 3));
    CHECK(same_everywhere(values_of(trainer)));
  }
  // Another takes part from here on and is always ahead.
  if (world().is_root()) {
    LocalOptions alone = options;
    alone.deadline_seconds = 1e-3;
    Worker other(folder.path(), "other", 7, alone, 20, 3);
    other.begin();
    other.run(16);
  }
  world().barrier();
  while (trainer.steps() < 16) group.after_step(trainer.step().targets, [] {});
  CHECK(trainer.steps() == 16);
  CHECK(same_everywhere(values_of(trainer)));
  // The first process is asked to stop while it waits for a worker that never comes.
  if (world().is_root()) {
    FolderExchange never_comes(LocalWorker::folder_options(folder.path(), "third", 3), json{{"net", "spirals"}}, json::object(),
                               {});
    never_comes.join(4);
    stops = true;
  }
  for (int i = 0; i < 3; ++i) group.after_step(trainer.step().targets, [] {});
  const StepReport last = trainer.step();
  CHECK(has(message_of(ErrorKind::interrupted, [&] { group.after_step(last.targets, [] {}); }), "stopped while waiting"));
}
