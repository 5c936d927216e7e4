// bitloom train gpt --exchange local: runs of their own that share what they learn through a folder, killed and joined at will,
// and processes of a job that send it to one another.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/gpt_run.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// A worker that waits for as many others as there are.
Args worker(const std::string& name, int steps, const Args& more = {}) {
  return with(with(quick_gpt(name, steps), {"--exchange", "local", "--through", "shared", "--worker", name, "--inner-steps",
                                            "5", "--sent-share", "0.2", "--deadline", "300", "--keep", "last"}),
              more);
}

// The learning rate of a run, as its process that came last says.
double rate_of(const std::filesystem::path& run) { return lines_of(run, "start").back()["options"]["learning-rate"]; }

// That of one process with the same net.
double rate_of_one(const std::filesystem::path& folder) {
  REQUIRE(run_program(folder, quick_gpt("alone", 4)).code == 0);
  return rate_of(folder / "alone");
}

}  // namespace

TEST_CASE("workers with a folder in common end with one model", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  Background a(folder.path(), worker("a", 40, {"--workers", "2", "--fragments", "5"}));
  Background b(folder.path(), worker("b", 40, {"--workers", "2", "--fragments", "5", "--learning-rate", "0.001"}));
  for (Background* each : {&a, &b}) {
    const Outcome outcome = each->wait();
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.out, "waiting until 2 workers are there"));
    CHECK(has(outcome.out, "1.41 times that of one process with such batches, for 2 workers") == (each == &a));
  }
  CHECK(rate_of(folder / "a") == Approx(std::sqrt(2.0) * rate_of_one(folder.path())));
  CHECK(rate_of(folder / "b") == 0.001);
  CHECK(same_tensors(folder / "a/model.safetensors", folder / "b/model.safetensors"));
  REQUIRE(lines_of(folder / "a", "exchange").size() == 40);
  for (const nlohmann::json& line : lines_of(folder / "a", "exchange")) CHECK(line["workers"] == 2);
  // The shared folder has room for two states, and no more messages than these need.
  CHECK(std::distance(std::filesystem::directory_iterator(folder / "shared/states"), {}) == 2);
  const Outcome report = run_program(folder.path(), {"report", "a"});
  CHECK(report.code == 0);
}

TEST_CASE("a worker that is killed comes back, and the others go on", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Hold hold(folder.path(), 9);  // both
  const Args more = with({"--workers", "2", "--checkpoint-seconds", "0.1"}, Hold::option());
  Background a(folder.path(), worker("a", 40, more));
  {
    Background b(folder.path(), worker("b", 40, more));
    REQUIRE(b.wait_for("step 8/40"));
    REQUIRE(a.wait_for("step 8/40"));
    b.signal(SIGKILL);
    CHECK(b.wait().code == 128 + SIGKILL);
  }
  // Both are in round 1, at whose end a waits for b.
  hold.release();
  const Outcome back = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "b"});
  INFO(back.out << back.err);
  REQUIRE(back.code == 0);
  CHECK(has(back.out, "worker b: joins"));
  const Outcome whole = a.wait();
  INFO(whole.out << whole.err);
  REQUIRE(whole.code == 0);
  CHECK_FALSE(has(whole.out, "going on from step"));
  CHECK(same_tensors(folder / "a/model.safetensors", folder / "b/model.safetensors"));
  CHECK(has(run_program(folder.path(), {"train", "gpt", "--resume", "--out", "b"}).out, "is finished"));
}

// Both wrote the same messages, and waited for one another.
TEST_CASE("a worker whose name another run at work has is refused, and one that was killed goes on", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args more = {"--workers", "2"};
  const std::string waits = "waiting until 2 workers are there";
  {
    Background first(folder.path(), worker("a", 4, more));
    REQUIRE(first.wait_for(waits));
    Background second(folder.path(), with(worker("a", 4, more), {"--out", "b"}));
    REQUIRE(second.wait_for("a: another run has that name in "));
    const Outcome refused = second.wait();
    CHECK(refused.code == 6);
    CHECK(has(refused.err, "process " + std::to_string(first.process()) + ", run folder " + (folder / "a").string() + ")"));
    first.signal(SIGKILL);
    CHECK(first.wait().code == 128 + SIGKILL);
  }
  std::filesystem::rename(folder / "a", folder / "moved");
  Background back(folder.path(), {"train", "gpt", "--resume", "--out", "moved"});
  REQUIRE(back.wait_for(waits));
  const Outcome other = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "b", "--worker", "b"});
  INFO(other.out << other.err);
  CHECK(other.code == 0);
  const Outcome whole = back.wait();
  INFO(whole.out << whole.err);
  CHECK(whole.code == 0);
  CHECK_FALSE(has(whole.out, "another run has that name"));
  CHECK(same_tensors(folder / "moved/model.safetensors", folder / "b/model.safetensors"));
}

TEST_CASE("a worker that stops alone goes on as if it had not", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  {
    const Hold hold(folder.path(), 13);
    Background stopped(folder.path(), worker("a", 40, Hold::option()));
    REQUIRE(stopped.wait_for("step 12/40"));
    stopped.signal(SIGTERM);
    CHECK(stopped.wait().code == 4);
    hold.release();
  }
  CHECK(std::filesystem::is_empty(folder / "shared/workers"));
  // As where the folder's disk is not mounted.
  const Outcome elsewhere = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "a", "--through", "shared2"});
  CHECK(elsewhere.code == 2);
  CHECK(has(elsewhere.err, "/shared2: has no state of shared parameters, but this run has made 1"));
  CHECK(std::filesystem::is_empty(folder / "shared2/workers"));
  CHECK(rate_of(folder / "a") == rate_of_one(folder.path()));
  const Outcome again = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "a", "--through", "shared"});
  INFO(again.out << again.err);
  REQUIRE(again.code == 0);
  CHECK(has(again.out, "going on from step 1"));
  CHECK(lines_of(folder / "a", "exchange").size() == 8);
}

TEST_CASE("processes of a job end with one model, and go on with fewer", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args job = with(quick_gpt("run", 40), {"--exchange", "local", "--inner-steps", "5", "--sent-share", "0.2", "--quorum",
                                               "1", "--keep", "last"});
  {
    const Hold hold(folder.path(), 13);
    Background stopped(folder.path(), with(job, Hold::option()), 3);
    REQUIRE(stopped.wait_for("step 12/40"));
    kill(stopped.rank(1), SIGTERM);  // the others hear of it
    const Outcome outcome = stopped.wait();
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 4);
    CHECK(has(outcome.err, "stopped after step 1"));
    CHECK(has(outcome.err, "bitloom train gpt --resume --out run"));
    hold.release();
  }
  std::filesystem::rename(folder / "run/exchange", folder / "away");
  const Outcome without = run_ranks(folder.path(), 2, {"train", "gpt", "--resume", "--out", "run"});
  INFO(without.out << without.err);
  CHECK(without.code == 2);
  CHECK(has(without.err, "--out: run/exchange: has no state of shared parameters, but this run has made 1"));
  std::filesystem::remove_all(folder / "run/exchange");
  std::filesystem::rename(folder / "away", folder / "run/exchange");
  const double rate = rate_of(folder / "run");
  CHECK(rate == Approx(std::sqrt(3.0) * rate_of_one(folder.path())));
  const Outcome again = run_ranks(folder.path(), 2, {"train", "gpt", "--resume", "--out", "run"});
  INFO(again.out << again.err);
  REQUIRE(again.code == 0);
  CHECK(rate_of(folder / "run") == rate);
  CHECK(has(again.out, "joins the 2 workers of this job after round 2"));
  const auto workers = std::filesystem::directory_iterator(folder / "run/workers");
  std::vector<std::filesystem::path> others;
  for (const auto& entry : workers) others.push_back(entry.path());
  std::ranges::sort(others);
  REQUIRE(others.size() == 2);
  CHECK(same_tensors(folder / "run/model.safetensors", others[0] / "model.safetensors"));
  CHECK_FALSE(std::filesystem::exists(others[1] / "model.safetensors"));
  const std::vector<nlohmann::json> lines = lines_of(folder / "run", "exchange");
  REQUIRE(lines.size() == 8);
  for (std::size_t i = 0; i < lines.size(); ++i) CHECK(lines[i]["workers"] == (i < 2 ? 3 : 2));
  // One that was there before: in no run's way.
  std::filesystem::create_directories(folder / "emptied");
  std::filesystem::rename(folder / "run/exchange", folder / "emptied/exchange");
  const Outcome emptied = run_ranks(folder.path(), 2, with(job, {"--out", "emptied"}));
  CHECK(emptied.code == 2);
  CHECK(has(emptied.err, "--out: emptied/exchange has messages of an earlier run"));
  std::filesystem::create_directories(folder / "new/workers");
  std::filesystem::rename(others[0], folder / "new/workers" / others[0].filename());
  const Outcome held = run_ranks(folder.path(), 2, with(job, {"--out", "new"}));
  CHECK(held.code == 2);
  CHECK(has(held.err, "holds a run already"));
}

TEST_CASE("workers of two processes each share what they learn", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args more = {"--exchange", "local", "--inner-steps", "5", "--sent-share", "0.2", "--keep", "last"};
  const Outcome job =
      run_ranks(folder.path(), 4, with(with(quick_gpt("run", 40), more), {"--quorum", "1", "--ranks-per-worker", "2"}));
  INFO(job.out << job.err);
  REQUIRE(job.code == 0);
  for (const nlohmann::json& line : lines_of(folder / "run", "exchange")) CHECK(line["workers"] == 2);
  CHECK(lines_of(folder / "run", "exchange").size() == 8);
  const auto other = std::filesystem::directory_iterator(folder / "run/workers")->path();
  CHECK(same_tensors(folder / "run/model.safetensors", other / "model.safetensors"));
  const Outcome odd = run_ranks(folder.path(), 3, with(with(quick_gpt("odd", 40), more), {"--ranks-per-worker", "2"}));
  CHECK(odd.code == 2);
  CHECK(has(odd.err, "--ranks-per-worker: 2; expected a divisor of the 3 processes"));
  // Through a folder all processes of a run are one worker, which stops and goes on with its messages.
  const Args through = with(with(quick_gpt("one", 40), more), {"--through", "shared", "--worker", "one"});
  {
    const Hold hold(folder.path(), 13);
    Background stopped(folder.path(), with(through, Hold::option()), 2);
    REQUIRE(stopped.wait_for("step 12/40"));
    kill(stopped.rank(0), SIGTERM);
    const Outcome outcome = stopped.wait();
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 4);
    hold.release();
  }
  const Outcome again = run_ranks(folder.path(), 2, {"train", "gpt", "--resume", "--out", "one"});
  INFO(again.out << again.err);
  REQUIRE(again.code == 0);
  CHECK(lines_of(folder / "one", "exchange").size() == 8);
}

// Each compressed its own gradients, for nobody, without a word.
TEST_CASE("workers of one process each are told that factors of gradients save nothing, those of two are not", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args local = {"--exchange", "local", "--inner-steps", "2", "--compress-rank", "4"};
  const std::string note = "--compress-rank: 4 saves no bytes where no two processes share the data";
  const Outcome ones = run_ranks(folder.path(), 2, with(quick_gpt("ones", 4), local));
  INFO(ones.out << ones.err);
  REQUIRE(ones.code == 0);
  REQUIRE(has(ones.err, note));
  CHECK_FALSE(has(ones.err.substr(ones.err.find(note) + note.size()), note));
  const Outcome twos = run_ranks(folder.path(), 4, with(with(quick_gpt("twos", 4), local), {"--ranks-per-worker", "2"}));
  INFO(twos.out << twos.err);
  REQUIRE(twos.code == 0);
  CHECK_FALSE(has(twos.err, note));
}

// Worker 1 has nothing to go on from, and waited for worker 0 to begin with the model, too.
TEST_CASE("a job's workers begin with a model, all or none of them", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  REQUIRE(run_program(folder.path(), quick_gpt("first", 4)).code == 0);
  const auto job = [&](const std::string& out, const Args& more) {
    return with(with(quick_gpt(out, 20), {"--exchange", "local", "--inner-steps", "5", "--init", "first"}), more);
  };
  const Outcome other = run_ranks(folder.path(), 2, job("other", {"--layers", "3"}));
  CHECK(other.code == 3);
  CHECK(has(other.err, "/first/model.safetensors: a net of other sizes"));
  CHECK_FALSE(has(other.err, "MPI_ABORT"));
  REQUIRE(run_ranks(folder.path(), 2, job("run", {})).code == 0);
  std::filesystem::remove_all(folder / "run/workers");
  const Outcome more = run_ranks(folder.path(), 2, {"train", "gpt", "--resume", "--out", "run", "--steps", "30"});
  INFO(more.out << more.err);
  CHECK(more.code == 0);
}

TEST_CASE("what a message leaves out fades by a tenth unless --kept-share says otherwise", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto train = [&](const std::string& name, const Args& more) {
    const Args alone = {"--exchange", "local", "--through", "shared-" + name, "--worker", "a", "--inner-steps", "2"};
    const Outcome outcome = run_program(folder.path(), with(with(quick_gpt(name, 8), alone), more));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return folder / name / "model.safetensors";
  };
  const auto by_default = train("default", {});
  CHECK(same_tensors(by_default, train("tenth", {"--kept-share", "0.9"})));
  CHECK_FALSE(same_tensors(by_default, train("all", {"--kept-share", "1"})));
}

// Messages are merged wherever they meet, so inner processes of the tree send more.
TEST_CASE("a process at the end of the tree sends and gets as much in a large job as in a small one", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto most = [&](const std::string& run, const nlohmann::json::json_pointer& what) {
    std::uint64_t bytes = 0;
    for (const nlohmann::json& line : lines_of(folder / run, "exchange")) {
      bytes = std::max(bytes, line.at(what).get<std::uint64_t>());
    }
    return bytes;
  };
  const nlohmann::json::json_pointer sent("/sent_bytes"), received("/received_bytes"), up("/tree/sent_up"),
      down("/tree/sent_down");
  std::map<int, std::uint64_t> sent_by, received_by;
  for (const int ranks : {2, 7}) {
    const std::string run = fmt::format("of-{}", ranks);
    const Outcome outcome = run_ranks(folder.path(), ranks,
                                      with(quick_gpt(run, 40), {"--exchange", "local", "--inner-steps", "5", "--quorum", "1",
                                                                "--fan-in", "2", "--keep", "last"}));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    std::vector<std::string> runs;  // by rank: their names end with its number on this host
    for (const auto& entry : std::filesystem::directory_iterator(folder / run / "workers"))
      runs.push_back(std::filesystem::relative(entry.path(), folder.path()));
    std::ranges::sort(runs);
    REQUIRE(runs.size() + 1 == static_cast<std::size_t>(ranks));
    const std::string& leaf = runs.back();
    sent_by[ranks] = most(leaf, sent);
    received_by[ranks] = most(leaf, received);
    CHECK(most(leaf, up) == sent_by[ranks]);
    CHECK(most(leaf, down) == 0);
    CHECK(most(run, up) == 0);
    CHECK(most(run, down) == (ranks == 2 ? 1 : 2) * most(run, received));
    if (ranks == 2) continue;
    // Rank 1 has two below it.
    CHECK(most(runs.front(), up) > 2 * sent_by[ranks]);
    CHECK(most(runs.front(), up) < 4 * sent_by[ranks]);
    CHECK(most(runs.front(), down) == 2 * most(runs.front(), received));
  }
  INFO(sent_by[2] << " and " << sent_by[7] << " sent, " << received_by[2] << " and " << received_by[7] << " received");
  // A byte or two for each worker say how many rounds it is further. A reply is cut to a message's elements, with a bit or two
  // more for each.
  CHECK(static_cast<double>(sent_by[7]) < 1.02 * static_cast<double>(sent_by[2]));
  CHECK(static_cast<double>(received_by[7]) < 1.3 * static_cast<double>(received_by[2]));
  CHECK(static_cast<double>(received_by[7]) < 1.5 * static_cast<double>(sent_by[2]));
}

TEST_CASE("options of local steps that do not go together are refused", "[gpt][local]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto error = [&](const Args& more, int code = 2) {
    const Outcome outcome = run_program(folder.path(), with(quick_gpt("run", 4), more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == code);
    return outcome.err;
  };
  CHECK(has(error({"--exchange", "local"}), "--through: missing; expected the folder that workers share"));
  CHECK(has(error({"--inner-steps", "5"}), "--inner-steps"));
  const Args local = {"--exchange", "local", "--through", "shared"};
  CHECK(has(error(with(local, {"--fragments", "4"})), "--fragments: 4; expected a divisor of --inner-steps, 10"));
  CHECK(has(error(with(local, {"--delay", "10"})), "--delay: 10 steps"));
  CHECK(has(error(with(local, {"--kept-share", "1.5"})), "--kept-share"));
  CHECK(has(error(with(local, {"--ranks-per-worker", "2"})), "--ranks-per-worker: 2 with --through"));
  CHECK(has(error(with(local, {"--average", "0.99"})), "--average: 0.99 with --exchange local"));
  CHECK(has(error(with(local, {"--shard", "optimizer"})), "--shard: optimizer with --exchange local"));
  CHECK(has(error(with(local, {"--tensor", "2"})), "--tensor: 2 with --exchange local"));
  CHECK(has(error(with(local, {"--worker", "a/b"})), "--worker: 'a/b'; expected letters"));
  CHECK(has(error(with(local, {"--dtype", "bf16", "--master-weights", "none"})), "--exchange: local with parameters of BF16"));
  REQUIRE(run_program(folder.path(), worker("first", 4)).code == 0);
  const std::string other = error(with(local, {"--inner-steps", "6"}));
  CHECK(has(other, "workers there train otherwise"));
  CHECK(has(other, "--inner-steps: 5 stored, 6 given"));
  write_file(folder / "file", "");
  CHECK(has(error({"--exchange", "local", "--through", "file"}, 5), "cannot be made"));
}
