// bitloom train gpt by several processes: data-parallel, in grids, and launched.
#include <fmt/format.h>

#include <cmath>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "core/safetensors.h"
#include "tests/cli/gpt_run.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"
#include "train/run.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a launched run of a GPT that is killed and stopped ends with the undisturbed model", "[gpt][launch][mpi]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  REQUIRE(run_program(folder.path(), quick_gpt("whole", 400)).code == 0);
  const Args launch =
      with({"launch", "--"}, with(with(quick_gpt("run", 400), {"--checkpoint-seconds", "0.1"}), Hold::option()));
  // The run was done before the signal came, where it was faster than the test.
  const Hold hold(folder.path(), 101);
  {
    Background background(folder.path(), launch, 0, mpi_settings());
    // There is a model by then, that of the best evaluation: it does not make the run done.
    REQUIRE(background.wait_for("step 100/400"));
    CHECK(std::filesystem::exists(folder / "run/model.safetensors"));
    kill(background.rank(0), SIGKILL);
    hold.until(201);
    REQUIRE(background.wait_for("back at work"));
    REQUIRE(background.wait_for("step 200/400"));
    background.signal(SIGTERM);
    const Outcome stopped = background.wait();
    INFO(stopped.out << stopped.err);
    CHECK(stopped.code == 4);
    CHECK(has(stopped.out, "signal 9"));
    CHECK(has(stopped.err, "can be continued"));
  }
  CHECK(train::step_of_checkpoint(TensorFile::load(folder / "run/checkpoint.safetensors").metadata) < 400);
  hold.release();
  const Outcome again = run_program(folder.path(), launch, mpi_settings());
  INFO(again.out << again.err);
  REQUIRE(again.code == 0);
  CHECK(has(again.out, "going on from step"));
  CHECK(same_tensors(folder / "run/checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
  CHECK(same_tensors(folder / "run/model.safetensors", folder / "whole/model.safetensors"));
  const Outcome done = run_program(folder.path(), launch, mpi_settings());
  CHECK(has(done.out, "is done already"));
  CHECK_FALSE(has(done.err, "other options"));
  // Another run was meant.
  const Outcome other = run_program(folder.path(), with(launch, {"--learning-rate", "0.5"}), mpi_settings());
  INFO(other.out << other.err);
  CHECK(other.code == 0);
  CHECK(has(other.out + other.err, "was made by other options, and stays as it is; here are learning-rate = 0.5. "));
  // For more steps than it has it is not.
  const Outcome more =
      run_program(folder.path(), with({"launch", "--", "train", "gpt"}, {"--out", "run", "--steps", "410"}), mpi_settings());
  INFO(more.out << more.err);
  CHECK(more.code == 0);
  CHECK(std::filesystem::exists(folder / "run/checkpoint.safetensors"));
}

// Binary trainings alone had the option: here a rank that stopped held the others for five minutes.
TEST_CASE("a rank of a GPT's training that is lost ends it with code 7, and its checkpoint stays", "[gpt][mpi]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Hold hold(folder.path(), 5);
  const Args limits = {"--watchdog-seconds", "15", "--checkpoint-seconds", "0"};
  Background run(folder.path(), with(with(quick_gpt("run", 40), limits), Hold::option()), 2);
  REQUIRE(run.wait_for("step 4/40"));
  const Outcome outcome = run.wait_without(1, hold);
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 7);
  CHECK(has(outcome.err, "the watchdog allows 15 s"));
  const Outcome resumed = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run"});
  INFO(resumed.out << resumed.err);
  CHECK(resumed.code == 0);
  CHECK(has(resumed.out, "going on from step"));
}

TEST_CASE("a launched grid whose process is killed ends with the undisturbed model", "[gpt][launch][mpi][grid]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto args = [](const std::string& run) {
    return with(quick_gpt(run, 40), {"--micro-batch", "1", "--pipeline", "2", "--shard", "optimizer"});
  };
  REQUIRE(run_ranks(folder.path(), 4, args("whole")).code == 0);
  const Hold hold(folder.path(), 13);
  // Five processes have room: two replicas of two stages use four of them.
  const Args launch =
      with({"launch", "--local", "5", "--"}, with(with(args("run"), {"--checkpoint-seconds", "0.1"}), Hold::option()));
  Background background(folder.path(), launch, 0, mpi_settings());
  REQUIRE(background.wait_for("step 12/40"));
  kill(background.rank(3), SIGKILL);
  hold.release();
  const Outcome outcome = background.wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "back at work"));
  CHECK(has(outcome.out, "4 processes: 2 data-parallel x 2 stages (1f1b), optimizer sharded"));
  CHECK(same_tensors(folder / "run/checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
  CHECK(same_tensors(folder / "run/model.safetensors", folder / "whole/model.safetensors"));
}

// A larger micro-batch, which leaves a number of micro-batches that the schedule does not have, was tried and refused the run.
// By one process, and by a grid whose ranks send their shards to rank 0.
TEST_CASE("a run that is killed while it writes a checkpoint goes on from the one before", "[gpt][mpi][grid]") {
  for (const int ranks : {0, 4}) {
    INFO(ranks);
    const TempDir folder;
    write_text(folder / "text.txt");
    const Args grid = ranks == 0 ? Args{} : Args{"--micro-batch", "1", "--pipeline", "2", "--shard", "optimizer"};
    const auto args = [&](const std::string& run) { return with(quick_gpt(run), grid); };
    const auto run_with = [&](const Args& words) {
      return ranks == 0 ? run_program(folder.path(), words) : run_ranks(folder.path(), ranks, words);
    };
    const Outcome whole = run_with(args("whole"));
    INFO(whole.out << whole.err);
    REQUIRE(whole.code == 0);
    const Hold hold(folder.path(), 5);
    write_file(folder / (std::string("hold") + train::held_writing), "1");
    {
      Background background(folder.path(), with(with(args("run"), {"--checkpoint-seconds", "0"}), Hold::option()), ranks,
                            mpi_settings());
      // Training goes on while the checkpoint of step 1 is written.
      REQUIRE(background.wait_for("step 4/12"));
      REQUIRE(wait_until([&] { return temporaries_in(folder / "run") == 1; }));
      if (ranks == 0) background.signal(SIGKILL);
      if (ranks != 0) kill(background.rank(0), SIGKILL);
      CHECK(background.wait().code != 0);
    }
    CHECK(train::step_of_checkpoint(TensorFile::load(folder / "run/checkpoint.safetensors").metadata) == 0);
    hold.release();
    const Outcome again = run_with(with({"train", "gpt", "--resume", "--out", "run", "--checkpoint-seconds", "300"}, grid));
    INFO(again.out << again.err);
    REQUIRE(again.code == 0);
    CHECK(has(again.out, "going on from step 0"));
    CHECK(temporaries_in(folder / "run") == 0);
    CHECK(same_tensors(folder / "run/checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
    CHECK(same_tensors(folder / "run/model.safetensors", folder / "whole/model.safetensors"));
  }
}

TEST_CASE("an interleaved pipeline is given micro-batches that it has", "[gpt][mpi][grid]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Outcome outcome = run_ranks(
      folder.path(), 2, with(quick_gpt("run", 4), {"--batch", "6", "--pipeline", "2", "--pipeline-schedule", "interleaved"}));
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "4 steps of 6 sequences (1 at once)"));
  CHECK(has(outcome.out, "2 stages (interleaved)"));
}

// --config was not read: one process was started.
TEST_CASE("a launched GPT has the processes that its options file asks for", "[gpt][launch][mpi][grid]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  write_file(folder / "grid.ini", "pipeline = 2\nmicro-batch = 1\n");
  const Outcome outcome =
      run_program(folder.path(), with({"launch", "--"}, with(quick_gpt("run", 4), {"--config", "grid.ini"})), mpi_settings());
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "2 processes: 1 data-parallel x 2 stages (1f1b)"));
}

TEST_CASE("a notice that its machine goes stops a GPT at a checkpoint, and the launch goes on", "[gpt][launch][mpi][grid]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto args = [](const std::string& run) {
    return with(quick_gpt(run, 40), {"--micro-batch", "1", "--pipeline", "2", "--partition", "measured"});
  };
  REQUIRE(run_ranks(folder.path(), 2, args("whole")).code == 0);
  const Hold hold(folder.path(), 13);
  // The second process asks for the file once it is there, and finds it once.
  const std::string notice = "test \"$OMPI_COMM_WORLD_RANK\" = 1 && rm goes";
  Background launch(folder.path(), with({"launch", "--notice-command", notice, "--"}, with(args("run"), Hold::option())), 0,
                    mpi_settings());
  REQUIRE(launch.wait_for("step 12/40"));
  write_file(folder / "goes", "");
  REQUIRE(wait_until([&] { return !std::filesystem::exists(folder / "goes"); }));
  hold.release();
  const Outcome outcome = launch.wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "a process was told to end; all left a checkpoint"));
  CHECK(same_tensors(folder / "run/model.safetensors", folder / "whole/model.safetensors"));
}

TEST_CASE("what cannot be launched of a GPT is refused", "[gpt][launch]") {
  const TempDir folder;
  // No text: as the program itself says it, once.
  const Outcome outcome = run_program(folder.path(), with({"launch", "--local", "1", "--"}, quick_gpt("run")), mpi_settings());
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "gave up after 1 starts"));
  CHECK(has(outcome.err, "text.txt"));
}

TEST_CASE("several processes train one GPT, and go on with others", "[gpt][mpi]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto evaluations = [&](const std::string& run) {
    std::vector<double> losses;
    for (const nlohmann::json& line : read_metrics(folder / run / "metrics.jsonl")) {
      if (line["event"] == "evaluation") losses.push_back(line["loss"]);
    }
    return losses;
  };
  const Args plain = {"--dropout", "0"};
  REQUIRE(run_program(folder.path(), with(quick_gpt("one"), plain)).code == 0);
  const Outcome two = run_ranks(folder.path(), 2, with(quick_gpt("two"), plain));
  INFO(two.out << two.err);
  REQUIRE(two.code == 0);
  CHECK(has(two.out, "(2 at once in each of 2 processes)"));
  const std::vector<double> expected = evaluations("one");
  const std::vector<double> losses = evaluations("two");
  REQUIRE(losses.size() == 3);
  REQUIRE(expected.size() == 3);
  for (std::size_t i = 0; i < losses.size(); ++i) CHECK(std::abs(losses[i] - expected[i]) < 1e-3);
  const auto result = read_metrics(folder / "two/metrics.jsonl").back();
  CHECK(result["targets"] == 12 * 4 * 32);

  // Rank 0 has the run folder; the others get its state.
  const Outcome more = run_ranks(folder.path(), 4, {"train", "gpt", "--resume", "--out", "two", "--steps", "16"});
  INFO(more.out << more.err);
  REQUIRE(more.code == 0);
  CHECK(has(more.out, "going on from step 12"));
  CHECK(
      has(more.err,
          "--micro-batch: auto; the run in two had 2 sequences at once, which do not divide a process's share of the batch, 1: "
          "it goes on with 1"));
  CHECK(evaluations("two").size() == 4);

  const Outcome three = run_ranks(folder.path(), 3, quick_gpt("three"));
  CHECK(three.code != 0);
  CHECK(has(three.err, "--batch: 4; expected a multiple of the 3 processes"));
  CHECK_FALSE(std::filesystem::exists(folder / "three"));
}

// They were made, and did nothing but take memory; `bitloom plan` refused them.
TEST_CASE("shards that one data-parallel process would have alone are refused, but where others may come", "[gpt][mpi][grid]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const std::string text = "--shard: optimizer has no effect where no two processes share the data; expected none, or more";
  const Args sharded = {"--shard", "optimizer"};
  const Outcome alone = run_program(folder.path(), with(quick_gpt("run", 4), sharded));
  CHECK(alone.code == 2);
  CHECK(has(alone.err, text));
  const Outcome staged = run_ranks(folder.path(), 2, with(with(quick_gpt("run", 4), {"--pipeline", "2"}), sharded));
  CHECK(staged.code == 2);
  CHECK(has(staged.err, text));
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
  // One host of a launch may be there before the others, or after them.
  const Outcome launched = run_program(
      folder.path(), with({"launch", "--local", "1", "--"}, with(quick_gpt("launched", 4), sharded)), mpi_settings());
  INFO(launched.out << launched.err);
  CHECK(launched.code == 0);
  REQUIRE(run_ranks(folder.path(), 2, with(quick_gpt("run", 4), sharded)).code == 0);
  const Outcome later = run_program(folder.path(), with({"train", "gpt", "--resume", "--out", "run", "--steps", "6"}, sharded));
  INFO(later.out << later.err);
  CHECK(later.code == 0);
  CHECK(has(later.err, text));
}

TEST_CASE("a GPT is trained by gradients of low rank, and goes on in another number of processes", "[gpt][mpi]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto args = [](const std::string& run) { return with(quick_gpt(run), {"--compress-rank", "4", "--dropout", "0"}); };
  const auto more = [](const std::string& run) -> Args { return {"train", "gpt", "--resume", "--out", run, "--steps", "20"}; };
  for (const std::string run : {"two", "one"}) {
    const Outcome outcome = run_ranks(folder.path(), 2, args(run));
    REQUIRE(outcome.code == 0);
    CHECK(has(outcome.out, "gradients go by factors of rank 4: "));
    CHECK_FALSE(has(outcome.err, "saves no bytes"));
    const TensorFile checkpoint = TensorFile::load(folder / run / "checkpoint.safetensors");
    CHECK(checkpoint.contains("power_sgd.error.blocks.0.attention.qkv.weight"));
  }
  const Outcome narrow = run_ranks(folder.path(), 2, with(args("narrow"), {"--compress-format", "1-6-9"}));
  REQUIRE(narrow.code == 0);
  const auto loss_of = [&](const std::string& run) {
    return read_metrics(folder / run / "metrics.jsonl").back()["validation_loss"].get<double>();
  };
  CHECK(std::abs(loss_of("narrow") - loss_of("two")) < 0.1);
  const auto sent = [&](const std::string& run) {
    return read_metrics(folder / run / "metrics.jsonl")[1]["sent_bytes"].get<double>();
  };
  CHECK(sent("narrow") < sent("two"));
  // Matrices have no smaller factors of such a rank.
  const Outcome large = run_ranks(folder.path(), 2, with(quick_gpt("large"), {"--compress-rank", "64", "--steps", "1"}));
  CHECK(has(large.err, "--compress-rank: 64; factors of this rank save less than 1% of the bytes"));
  // The rank of factors is the run's.
  REQUIRE(run_ranks(folder.path(), 2, more("two")).code == 0);
  const Outcome alone = run_program(folder.path(), more("one"));
  INFO(alone.out << alone.err);
  REQUIRE(alone.code == 0);
  CHECK(has(alone.out, "from step 12"));
  CHECK(std::abs(loss_of("one") - loss_of("two")) < 1e-3);
  // Metrics tell what a process of several sends in a step.
  for (const nlohmann::json& line : read_metrics(folder / "one/metrics.jsonl")) {
    if (line["event"] != "step") continue;
    CHECK(line.contains("sent_bytes") == (line["step"] <= 12));
    if (line.contains("sent_bytes")) CHECK(line["sent_bytes"] > 0);
  }

  const Outcome other = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "one", "--compress-rank", "8"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "--compress-rank"));
  const Args as_narrow = {"train", "gpt", "--resume", "--out", "narrow", "--steps", "20", "--compress-format", "f32"};
  CHECK(has(run_program(folder.path(), as_narrow).err, "--compress-format: 1-6-9 stored"));
  const Outcome sharded = run_ranks(folder.path(), 2, with(args("sharded"), {"--shard", "optimizer"}));
  CHECK(sharded.code == 2);
  CHECK(has(
      sharded.err,
      "--compress-rank: 4 with --shard optimizer; expected --shard none, or --shard-ranks of which there are several groups"));
}

// Between the processes of a machine links cost next to nothing, and factors of this rank save a twelfth of the bytes.
TEST_CASE("a run is told once where factors of gradients take more time than they save, after 20 steps",
          "[gpt][mpi][power_sgd]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto run = [&](const std::string& out, int steps, const Args& more) {
    const Args wide = {"--width", "128", "--keep", "last", "--evaluate-every", "50"};
    const Outcome outcome = run_ranks(folder.path(), 2, with(quick_gpt(out, steps), with(wide, more)));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out + outcome.err;
  };
  const std::string note = "--compress-rank: factors of gradients take more time than they save: ";
  const std::string slow = run("slow", 43, {"--compress-rank", "90"});
  INFO(slow);
  REQUIRE(has(slow, note));
  CHECK_FALSE(has(slow.substr(slow.find(note) + note.size()), note));
  CHECK_FALSE(has(run("short", 20, {"--compress-rank", "90"}), note));  // the first one counts for nothing
  CHECK_FALSE(has(run("whole", 22, {}), note));
  for (const std::string name : {"slow", "short", "whole"}) {
    for (const nlohmann::json& line : read_metrics(folder / name / "metrics.jsonl")) {
      if (line["event"] != "step") continue;
      for (const char* seconds : {"compress_seconds", "compress_wait_seconds"}) {
        CHECK(line.contains(seconds) == (name != "whole"));
        if (line.contains(seconds)) CHECK(line[seconds] > 0);
      }
    }
  }
}

TEST_CASE("processes that divide a GPT in pairs exchange factors of their shards, and others go on", "[gpt][mpi][power_sgd]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args pairs = {"--compress-rank", "4", "--shard", "parameters", "--shard-ranks", "2"};
  const Outcome outcome = run_ranks(folder.path(), 4, with(quick_gpt("pairs"), with(pairs, {"--dropout", "0"})));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.out, "4 processes: 4 data-parallel, parameters sharded by 2"));
  CHECK(has(outcome.out, "gradients go by factors of rank 4: "));
  CHECK(TensorFile::load(folder / "pairs/checkpoint.safetensors").contains("power_sgd.error.blocks.0.attention.qkv.weight"));
  const auto loss_of = [&](const std::string& run) {
    return read_metrics(folder / run / "metrics.jsonl").back()["validation_loss"].get<double>();
  };
  const Args more = {"train", "gpt", "--resume", "--out", "pairs", "--steps", "20"};
  const double before = loss_of("pairs");
  const Outcome odd = run_ranks(folder.path(), 2, with(more, {"--shard", "gradients", "--shard-ranks", "3"}));
  CHECK(odd.code == 2);
  CHECK(has(odd.err, "--shard-ranks: 3; expected a divisor of the 2 data-parallel ranks"));
  const Outcome two = run_ranks(folder.path(), 2, with(more, {"--shard", "gradients", "--shard-ranks", "1"}));
  INFO(two.out << two.err);
  REQUIRE(two.code == 0);
  CHECK(has(two.out, "from step 12"));
  const double of_two = loss_of("pairs");
  CHECK(of_two < before);
  const Outcome alone = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "pairs", "--steps", "24"});
  INFO(alone.out << alone.err);
  REQUIRE(alone.code == 0);
  CHECK(loss_of("pairs") < of_two);
}

TEST_CASE("a GPT is trained in a grid, and another grid goes on with it", "[gpt][mpi][grid]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto quick = [](const std::string& run, const Args& more) {
    return with(with(quick_gpt(run), {"--dropout", "0", "--micro-batch", "1"}), more);
  };
  REQUIRE(run_program(folder.path(), quick("one", {})).code == 0);
  const auto loss_of = [&](const std::string& run) {
    return read_metrics(folder / run / "metrics.jsonl").back()["validation_loss"].get<double>();
  };
  // A layout is stopped after some steps; the next one goes on.
  {
    const Hold hold(folder.path(), 4);
    Background first(folder.path(),
                     with(quick("run", {"--tensor", "2", "--pipeline", "2", "--log-events", "2"}), Hold::option()), 4,
                     mpi_settings());
    REQUIRE(first.wait_for("step 4/12"));
    kill(first.rank(0), SIGTERM);
    CHECK(first.wait().code != 0);
    hold.until(8);
    Background second(
        folder.path(),
        with({"train", "gpt", "--resume", "--out", "run", "--pipeline", "2", "--schedule", "gpipe"}, Hold::option()), 4,
        mpi_settings());
    REQUIRE(second.wait_for("step 8/12"));
    kill(second.rank(0), SIGTERM);
    CHECK(second.wait().code != 0);
    hold.release();
  }
  CHECK(train::step_of_checkpoint(TensorFile::load(folder / "run/checkpoint.safetensors").metadata) < 12);
  const Outcome last = run_ranks(folder.path(), 2, {"train", "gpt", "--resume", "--out", "run", "--shard", "parameters"});
  INFO(last.out << last.err);
  REQUIRE(last.code == 0);
  CHECK(has(last.out, "2 processes: 2 data-parallel, parameters sharded"));
  CHECK(std::abs(loss_of("run") - loss_of("one")) < 1e-3);
  CHECK(std::filesystem::exists(folder / "run/events.jsonl"));
  const Outcome report = run_program(folder.path(), {"report", "run", "--out", "run.html"});
  CHECK(report.code == 0);
  CHECK(has(read_file(folder / "run.html"), "bubble"));
  const Outcome impossible = run_ranks(folder.path(), 4, quick("other", {"--tensor", "3"}));
  CHECK(impossible.code != 0);
  CHECK(has(impossible.err, "--tensor: 3 does not divide 4 ranks; possible near by"));
  const Outcome small = run_ranks(folder.path(), 4, quick("other", {"--pipeline", "2", "--memory", "64KiB"}));
  CHECK(small.code != 0);
  CHECK(has(small.err, "more than the 64.0 KiB there are; no grid of 4 ranks would fit"));
  CHECK_FALSE(std::filesystem::exists(folder / "other"));
}

TEST_CASE("a grid evaluates a GPT and draws the text of one process", "[gpt][mpi][grid]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  REQUIRE(run_program(folder.path(), quick_gpt("run", 40)).code == 0);
  write_file(folder / "some.txt", read_file(folder / "text.txt").substr(0, 700));
  write_file(folder / "lines.txt", "1 and 2 make 3\n2 and 4 make 6\n5 and 5 make 10\n");
  const Args eval = {"eval", "run", "--data", "some.txt", "--cloze", "lines.txt", "--advance", "8", "--json"};
  const Args sample = {"sample", "run", "--prompt", "1 and", "--tokens", "60", "--seed", "5"};
  const nlohmann::json expected = nlohmann::json::parse(run_program(folder.path(), eval).out);
  const std::string text = run_program(folder.path(), sample).out;
  REQUIRE(text.size() > 60);
  const std::string texts = run_program(folder.path(), with(sample, {"--count", "4"})).out;
  const auto check = [&](int ranks, const Args& grid) {
    INFO(ranks << " " << fmt::format("{}", fmt::join(grid, " ")));
    const Outcome measured = run_ranks(folder.path(), ranks, with(eval, grid));
    INFO(measured.err);
    REQUIRE(measured.code == 0);
    const nlohmann::json found = nlohmann::json::parse(measured.out);
    const double loss = expected["text"]["loss"];
    const bool is_tensor = !grid.empty() && grid.front() == "--tensor";
    CHECK(std::abs(found["text"]["loss"].get<double>() / loss - 1) <= (is_tensor ? 1e-6 : 0));
    CHECK(found["text"]["tokens"] == expected["text"]["tokens"]);
    CHECK(found["cloze"] == expected["cloze"]);
    const bool has_data_ranks = grid.empty() || (ranks == 4 && grid.size() == 2);
    const Outcome drawn = run_ranks(folder.path(), ranks, with(sample, has_data_ranks ? with(grid, {"--count", "4"}) : grid));
    INFO(drawn.err);
    CHECK(drawn.code == 0);
    CHECK(drawn.out == (has_data_ranks ? texts : text));
  };
  check(2, {});
  check(2, {"--tensor", "2"});
  check(2, {"--pipeline", "2"});
  check(4, {"--pipeline", "2"});
  check(4, {"--tensor", "2", "--pipeline", "2"});

  const auto refused = [&](int ranks, const Args& args) {
    const Outcome outcome = run_ranks(folder.path(), ranks, args);
    CHECK(outcome.code != 0);
    CHECK(outcome.out.empty());
    return outcome.err;
  };
  CHECK(has(refused(2, sample),
            "--count: 1; expected at least the 2 data-parallel processes, which divide the samples; "
            "possible near by (data x pipeline x tensor): "));
  CHECK(has(refused(3, with(eval, {"--tensor", "3"})), "--tensor: 3; expected a divisor of the 2 heads"));
  CHECK(has(refused(4, with(sample, {"--tensor", "3"})), "--tensor: 3 does not divide 4 ranks; possible near by"));
  CHECK(has(refused(1, with(eval, {"--pipeline", "2"})), "--pipeline: 2 does not divide 1 ranks"));
}
