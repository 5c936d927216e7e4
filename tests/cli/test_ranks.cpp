// Runs on several ranks that are not at the same step, or do not have the same.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/metrics.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("late replies and a quorum are options of a run", "[train]") {
  const TempDir folder;
  const Args late = {"--exchange", "sparse", "--workers", "6", "--staleness", "2"};
  const Outcome one = run_program(folder.path(), with(quick_training("one"), late));
  INFO(one.out << one.err);
  REQUIRE(one.code == 0);
  CHECK(run_ranks(folder.path(), 3, with(quick_training("three"), late)).code == 0);
  CHECK(same_tensors(folder / "one/model.safetensors", folder / "three/model.safetensors"));
  CHECK(run_ranks(folder.path(), 2, with(quick_training("stopped"), with(late, {"--stop-after-steps", "5"}))).code == 4);
  CHECK(run_ranks(folder.path(), 3, {"train", "binary", "--resume", "--out", "stopped"}).code == 0);
  CHECK(same_tensors(folder / "one/model.safetensors", folder / "stopped/model.safetensors"));
  const Outcome partial = run_ranks(
      folder.path(), 3,
      with(quick_training("partial"), {"--exchange", "sparse", "--workers", "6", "--quorum", "0.5", "--deadline", "0.1"}));
  INFO(partial.out << partial.err);
  CHECK(partial.code == 0);
}

TEST_CASE("a host without images gets them from rank 0, and from its cache the next time", "[train]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), {"data", "synth", "--out", "here", "--train", "300", "--test", "100"}).code == 0);
  const auto training = [&](const std::string& data, const std::string& out) {
    Args args = quick_training(out);
    *(std::find(args.begin(), args.end(), "--data") + 1) = data;
    *(std::find(args.begin(), args.end(), "--cache") + 1) = "cache";
    return with(args, {"--frozen", "recompute"});
  };
  const auto run = [&](const std::string& out) {
    Args args = with(training("here", out), {":", "-n", "2", BITLOOM_PROGRAM});
    return run_ranks(folder.path(), 1, with(args, training("nowhere", out)));
  };
  REQUIRE(run_program(folder.path(), training("here", "alone")).code == 0);
  std::filesystem::remove_all(folder / "cache");
  const Outcome first = run("first");
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  CHECK(has(first.out, "rank 1 on host "));
  CHECK(has(first.out, "had no images and got them"));
  CHECK(same_tensors(folder / "alone/model.safetensors", folder / "first/model.safetensors"));
  const Outcome second = run("second");
  INFO(second.out << second.err);
  REQUIRE(second.code == 0);
  CHECK(!has(second.out, "had no images"));
  const Outcome none = run_ranks(folder.path(), 2, training("nowhere", "none"));
  CHECK(none.code == run_program(folder.path(), training("nowhere", "none")).code);
  CHECK(has(none.err, "nowhere"));
}

TEST_CASE("hosts that lack outputs of frozen layers get them from others, or compute them, to the same result", "[train]") {
  const TempDir folder;
  const auto training = [&](const std::string& out, int host) {
    Args args =
        with(quick_training(out), {"--exchange", "sparse", "--workers", "6", "--augment-copies", "2", "--frozen", "cache"});
    *(std::find(args.begin(), args.end(), "--cache") + 1) = fmt::format("cache{}", host);
    *(std::find(args.begin(), args.end(), "--epochs") + 1) = "2";
    return args;
  };
  const auto forget = [&](int host) {  // trained stages, so that they are trained again
    for (const auto& entry : std::filesystem::directory_iterator(folder / fmt::format("cache{}", host))) {
      if (entry.path().extension() == ".blob") std::filesystem::remove(entry.path());
    }
  };
  const auto run = [&](const std::string& out) {
    Args args = training(out, 0);
    for (int host = 1; host < 3; ++host) args = with(with(args, {":", "-n", "1", BITLOOM_PROGRAM}), training(out, host));
    return run_ranks(folder.path(), 1, args);
  };
  REQUIRE(run_program(folder.path(), training("alone", 0)).code == 0);
  forget(0);
  const Outcome first = run("first");
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  // The second stage's as well as the first's: 2 copies of the 86 or 87 images of two workers.
  for (const char* stage : {"layer1", "layer2"}) {
    for (int rank = 1; rank < 3; ++rank) {
      const std::size_t line = first.out.find(fmt::format("{}: rank {} on host ", stage, rank));
      REQUIRE(line != std::string::npos);
      CHECK(has(first.out.substr(line, first.out.find('\n', line) - line), " outputs of frozen layers, of which others have "));
    }
  }
  CHECK(same_tensors(folder / "alone/model.safetensors", folder / "first/model.safetensors"));
  // Now all have what they read.
  for (int host = 0; host < 3; ++host) forget(host);
  const Outcome second = run("second");
  INFO(second.out << second.err);
  REQUIRE(second.code == 0);
  CHECK(!has(second.out, " outputs of frozen layers, of which others have "));
  CHECK(same_tensors(folder / "alone/model.safetensors", folder / "second/model.safetensors"));
}

TEST_CASE("the metrics of sparse messages tell where the time of an update goes", "[train]") {
  const TempDir folder;
  Args args = with(quick_training("run"), {"--exchange", "sparse", "--workers", "6", "--bytes-per-update", "1KiB"});
  *(std::find(args.begin(), args.end(), "--epochs") + 1) = "2";
  const Outcome outcome = run_ranks(folder.path(), 3, args);
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  nlohmann::json epoch;  // the last one: the first also looks for thresholds to begin with
  for (const nlohmann::json& line : read_metrics(folder / "run/metrics.jsonl")) {
    if (line["event"] == "epoch") epoch = line;
  }
  const nlohmann::json& rows = epoch["exchange"]["seconds_per_update"];
  INFO(epoch.dump(1));
  const auto sum = [](const nlohmann::json& row) {
    return row["compute"].get<double>() + row["encode"].get<double>() + row["update"].get<double>() + row["wait"].get<double>();
  };
  const double seconds = 32 / epoch["images_per_second"].get<double>();  // time of an update, all told
  CHECK(sum(rows["root"]) < 1.05 * seconds);
  CHECK(sum(rows["root"]) > 0.4 * seconds);
  for (const char* who : {"root", "mean", "busiest"}) {
    INFO(who);
    CHECK(rows[who]["compute"] > 0);
    CHECK(rows[who]["encode"] > 0);
    CHECK(rows[who]["update"] > 0);
  }
  CHECK(rows["mean"]["wait"] >= rows["busiest"]["wait"]);
  CHECK(rows["mean"]["wait"] > 0);
}

TEST_CASE("variants that are spread over ranks are those that one process trains", "[train]") {
  const TempDir folder;
  const Args search = {"--search", "layer2.width=64,96,128"};
  Args quick = quick_training("turn");
  const Outcome turn = run_program(folder.path(), with(quick, search));
  INFO(turn.out << turn.err);
  REQUIRE(turn.code == 0);
  *(std::find(quick.begin(), quick.end(), "--out") + 1) = "spread";
  const Outcome spread = run_ranks(folder.path(), 2, with(quick, with(search, {"--spread"})));
  INFO(spread.out << spread.err);
  REQUIRE(spread.code == 0);
  CHECK(has(spread.out, "1 stage that all variants share"));
  CHECK(read_file(folder / "turn/search.json") == read_file(folder / "spread/search.json"));
  for (const char* width : {"64", "96", "128"}) {
    const std::string model = fmt::format("layer2.width={}/model.safetensors", width);
    CHECK(same_tensors(folder / "turn" / model, folder / "spread" / model));
  }
  CHECK(!std::filesystem::exists(folder / "spread/shared"));

  // Rank 1 on a disk of its own, as on another host, whose models come to rank 0. Heads that the model does without did not.
  std::filesystem::create_directories(folder / "elsewhere");
  const std::string out = "apart";
  *(std::find(quick.begin(), quick.end(), "--out") + 1) = out;
  const Args apart = with(quick, with(search, {"--spread"}));
  Args both = with(apart, {":", "-n", "1", "-wdir", (folder / "elsewhere").string(), BITLOOM_PROGRAM});
  const Outcome brought = run_ranks(folder.path(), 1, with(both, apart));
  INFO(brought.out << brought.err);
  REQUIRE(brought.code == 0);
  CHECK(read_file(folder / "turn/search.json") == read_file(folder / out / "search.json"));
  for (const char* width : {"64", "96", "128"}) {
    const std::string run = fmt::format("layer2.width={}/", width);
    CHECK(std::filesystem::exists(folder / "elsewhere" / out / run) == (run == "layer2.width=96/"));
    for (const char* name : {"model.safetensors", "heads.safetensors"})
      CHECK(same_tensors(folder / "turn" / (run + name), folder / out / (run + name)));
    for (const char* name : {"options.ini", "net.json", "metrics.jsonl"})
      CHECK(std::filesystem::exists(folder / out / (run + name)));
  }

  // So in rounds: all ranks know who goes on.
  const Args rounds = with(search, {"--epochs", "2", "--search-rounds", "2"});
  *(std::find(quick.begin(), quick.end(), "--out") + 1) = "turn2";
  REQUIRE(run_program(folder.path(), with(quick, rounds)).code == 0);
  *(std::find(quick.begin(), quick.end(), "--out") + 1) = "spread2";
  const Outcome halved = run_ranks(folder.path(), 2, with(quick, with(rounds, {"--spread"})));
  INFO(halved.out << halved.err);
  REQUIRE(halved.code == 0);
  CHECK(read_file(folder / "turn2/search.json") == read_file(folder / "spread2/search.json"));
  for (const char* width : {"64", "96", "128"}) {
    const std::string model = fmt::format("layer2.width={}/model.safetensors", width);
    CHECK(same_tensors(folder / "turn2/round-1" / model, folder / "spread2/round-1" / model));
    REQUIRE(std::filesystem::exists(folder / "turn2" / model) == std::filesystem::exists(folder / "spread2" / model));
    if (std::filesystem::exists(folder / "turn2" / model))
      CHECK(same_tensors(folder / "turn2" / model, folder / "spread2" / model));
  }
}

// The watchdog looked only between calls of MPI: these two held the other process for ever.
TEST_CASE("a process that stops before MPI starts is lost to the others, code 7", "[train]") {
  const TempDir folder;
  // A shell that stops itself and, if it ever goes on, becomes the program.
  const Args stopped = {":", "-n", "1", "sh", "-c", "kill -STOP $$; exec \"$0\" \"$@\"", BITLOOM_PROGRAM};
  for (const Args& option : {Args{"--watchdog-seconds", "4"}, Args{"--watchdog-seconds=4"}}) {
    const Args args = with(quick_training("run"), option);
    const Outcome outcome = run_ranks(folder.path(), 1, with(with(args, stopped), args));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 7);
    CHECK(has(outcome.err, "bitloom: MPI_Init_thread: rank 0 on host "));
    CHECK(has(outcome.err, "the watchdog allows 4 s"));
  }
}

TEST_CASE("a process whose launcher hangs ends when its peers are lost", "[train]") {
  const TempDir folder;
  Args args = with(quick_training("run"), {"--watchdog-seconds", "20"});
  *(std::find(args.begin(), args.end(), "--epochs") + 1) = "10";
  const Hold hold(folder.path(), 2 * epoch_steps + 1);
  Background run(folder.path(), with(args, Hold::option()), 2);
  REQUIRE(run.wait_for("epoch 2/10"));
  const pid_t survivor = run.rank(0);
  const pid_t lost = run.rank(1);
  // MPI_Abort asks the launcher to end all, and waits for it.
  run.signal(SIGSTOP);
  REQUIRE(kill(lost, SIGKILL) == 0);
  hold.release();
  const bool ended = run.wait_for_end_of(survivor);
  run.signal(SIGCONT);
  const Outcome outcome = run.wait();
  INFO(outcome.out << outcome.err);
  CHECK(ended);
  CHECK(has(outcome.err, "bitloom: rank 0: "));
}
