// Runs from start to end, interrupted, resumed, with several ranks, and what is done with them afterwards.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a net is trained, and its run is evaluated, shown, used and reported", "[train]") {
  const TempDir folder;
  const Outcome train = run_program(folder.path(), quick_training("run"));
  INFO(train.out << train.err);
  REQUIRE(train.code == 0);
  CHECK(has(train.out, "test accuracy"));
  CHECK(has(train.out, "peak memory"));
  for (const char* file : {"model.safetensors", "config.json", "metrics.jsonl", "options.ini", "net.json", "log.txt"}) {
    CHECK(std::filesystem::exists(folder / "run" / file));
  }
  CHECK(has(read_file(folder / "run/log.txt"), "test accuracy"));
  CHECK(has(read_file(folder / "run/options.ini"), "batch = 32\n"));

  const Outcome again = run_program(folder.path(), quick_training("run"));
  CHECK(again.code == 2);
  CHECK(has(again.err, "holds a run already"));

  const Outcome eval = run_program(folder.path(), {"eval", "run"});
  CHECK(eval.code == 0);
  CHECK(has(eval.out, "of 100 images"));
  const std::string part = "--max-test: 100 images, as in the run of the model";
  CHECK_FALSE(has(eval.err, part));
  CHECK(has(run_program(folder.path(), {"eval", "run", "--data", "synth"}).err, part));
  CHECK_FALSE(has(run_program(folder.path(), {"eval", "run", "--data", "synth", "--max-test", "50"}).err, part));
  const Outcome validation = run_program(folder.path(), {"eval", "run/model.safetensors", "--split", "validation", "--json"});
  REQUIRE(validation.code == 0);
  const auto json = nlohmann::json::parse(validation.out);
  CHECK(json["images"] == 40);
  CHECK(has(train.out, fmt::format("{:.2f}% of 40 images", 100 * json["accuracy"].get<double>())));
  CHECK(run_program(folder.path(), {"eval", "run", "--layers", "layer1,layer2", "--mirror", "off"}).code == 0);
  const Outcome layer = run_program(folder.path(), {"eval", "run", "--layers", "layer3"});
  CHECK(layer.code == 2);
  CHECK(has(layer.err, "has no layer 'layer3'"));
  // The head of layer1 does not vote and lies beside the model.
  const std::string heads = read_file(folder / "run/heads.safetensors");
  write_file(folder / "run/heads.safetensors", heads.substr(0, heads.size() - 1));
  const Outcome damaged = run_program(folder.path(), {"eval", "run", "--layers", "layer1"});
  CHECK(damaged.code == 3);
  CHECK(has(damaged.err, "heads.safetensors"));
  CHECK(run_program(folder.path(), {"eval", "run"}).code == 0);  // which does without
  std::filesystem::remove(folder / "run/heads.safetensors");
  CHECK(has(run_program(folder.path(), {"eval", "run", "--layers", "layer1"}).err, "layer 'layer1' has no head in this model"));
  write_file(folder / "run/heads.safetensors", heads);
  std::filesystem::copy_file(folder / "run/model.safetensors", folder / "alone.safetensors");
  CHECK(run_program(folder.path(), {"eval", "alone.safetensors"}).code == 2);  // nobody says which data

  const Outcome inspect = run_program(folder.path(), {"inspect", "run", "--json"});
  REQUIRE(inspect.code == 0);
  CHECK(nlohmann::json::parse(inspect.out)["layers"].size() == 2);
  CHECK(has(run_program(folder.path(), {"inspect", "run"}).out, "16 x 16 x 64"));

  REQUIRE(run_program(folder.path(), {"data", "sheet", "synth", "--out", "image.png", "--columns", "1"}).code == 0);
  const Outcome predict = run_program(folder.path(), {"predict", "run", "image.png", "--top", "2", "--jsonl"});
  REQUIRE(predict.code == 0);
  CHECK(nlohmann::json::parse(predict.out)["probabilities"].size() == 2);
  const Outcome partly = run_program(folder.path(), {"predict", "run", "none.png", "image.png"});
  CHECK(partly.code == 3);
  CHECK(has(partly.err, "none.png"));
  CHECK(has(partly.out, "image.png (32 x 329: middle 32 x 32): "));

  const Outcome report = run_program(folder.path(), {"report", "run"});
  CHECK(report.code == 0);
  CHECK(has(read_file(folder / "run/report.html"), "<svg"));
  const Outcome picture = run_program(folder.path(), {"report", "run", "--picture", "net.svg"});
  INFO(picture.err);
  CHECK(picture.code == 0);
  CHECK(has(read_file(folder / "net.svg"), "one image on its way"));
  CHECK(run_program(folder.path(), {"report", "run", "--picture", "net.png", "--image", "image.png"}).code == 0);
  CHECK(run_program(folder.path(), {"report", "run", "--picture", "net.gif"}).code == 2);
  CHECK(run_program(folder.path(), {"report", "run", "--image", "image.png"}).code == 2);

  const Outcome finished = run_program(folder.path(), {"train", "binary", "--resume", "--out", "run"});
  CHECK(finished.code == 0);
  CHECK(has(finished.out, "the run in run is finished; test accuracy "));
  CHECK(has(finished.out, "there is nothing left to train"));
  const Outcome same = run_program(folder.path(), with(quick_training("run"), {"--resume"}));
  CHECK(same.code == 0);
  const Outcome other = run_program(folder.path(), {"train", "binary", "--resume", "--out", "run", "--seed", "7"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "is finished"));
}

// A training whose stages all came from the cache said "0 images trained on", and not why; its report had no curves.
TEST_CASE("a training that reuses an earlier one says so, and how to train afresh", "[train]") {
  const TempDir folder;
  const auto training = [](const char* out, const char* cache) {
    return Args{"train", "binary",     "--net", "tiny",     "--data", "synth",   "--out", out,       "--max-train",
                "200",   "--max-test", "100",   "--epochs", "2",      "--batch", "50",    "--cache", cache};
  };
  const Outcome first = run_program(folder.path(), training("first", "kept"));
  INFO(first.out << first.err);
  REQUIRE(first.code == 0);
  CHECK(has(first.out, "images trained on"));
  CHECK_FALSE(has(first.out, "taken from the cache"));
  const Outcome second = run_program(folder.path(), training("second", "kept"));
  INFO(second.out << second.err);
  REQUIRE(second.code == 0);
  CHECK(has(second.out, "nothing had to be trained"));
  CHECK_FALSE(has(second.out, "0 images trained on"));
  CHECK(has(second.out, "with --cache none all are trained afresh"));
  CHECK(has(second.out, " images by first ("));
  CHECK(has(second.out, "without mirror images"));
  REQUIRE(run_program(folder.path(), {"report", "second"}).code == 0);
  const std::string page = read_file(folder / "second/report.html");
  CHECK(has(page, "layer1 (reused)"));
  CHECK(has(page, (folder / "first").string()));
  const Outcome fresh = run_program(folder.path(), training("third", "none"));
  CHECK_FALSE(has(fresh.out, "taken from the cache"));
  CHECK(same_tensors(folder / "second/model.safetensors", folder / "third/model.safetensors"));
}

TEST_CASE("options come from the command line before the file, and from the file before the defaults", "[train]") {
  const TempDir folder;
  write_file(folder / "train.ini",
             "# a comment\nbatch = 50\nseed = 7\nfreeze-weights = true\nset = layer1.width=32\nset = layer2.width=64\n");
  const Outcome train =
      run_program(folder.path(), {"train",   "binary",      "--net",    "tiny",       "--data",  "synth",    "--out",
                                  "run",     "--max-train", "100",      "--max-test", "50",      "--epochs", "1",
                                  "--cache", "none",        "--config", "train.ini",  "--batch", "25"});
  INFO(train.out << train.err);
  REQUIRE(train.code == 0);
  const std::string options = read_file(folder / "run/options.ini");
  for (const char* line :
       {"batch = 25\n", "seed = 7\n", "freeze-weights = true\n", "set = layer2.width=64\n", "validation = 10\n"}) {
    INFO(line);
    CHECK(has(options, line));
  }
  const auto net = nlohmann::json::parse(read_file(folder / "run/net.json"));
  CHECK(net["layers"][0]["width"] == 32);
  CHECK(net["layers"][1]["width"] == 64);
  CHECK(net["stages"][1]["epochs"] == 1);

  write_file(folder / "wrong.ini", "bacth = 50\n");
  const Outcome wrong = run_program(folder.path(), {"train", "binary", "--data", "synth", "--config", "wrong.ini"});
  CHECK(wrong.code == 2);
  CHECK(has(wrong.err, "wrong.ini:1: bacth; did you mean 'batch'?"));
  // The line was not told, and terminals did what the file said.
  write_file(folder / "deep.ini", "# first\nbatch = 16\n\nseed = 1\n\x1b]0;title\x07net = tiny\n");
  const Outcome deep = run_program(folder.path(), {"train", "binary", "--data", "synth", "--config", "deep.ini"});
  CHECK(deep.code == 2);
  CHECK(has(deep.err, "deep.ini:5: \\x1b]0;title\\x07net"));
  CHECK_FALSE(has(deep.err, "\x1b"));
  // They were taken without effect.
  for (const char* line : {"config = absent.ini", "help = 1"}) {
    write_file(folder / "command.ini", std::string("seed = 1\n") + line + "\n");
    const Outcome command = run_program(folder.path(), {"train", "binary", "--data", "synth", "--config", "command.ini"});
    CHECK(command.code == 2);
    CHECK(has(command.err, "no option for a file; expected it on the command line"));
  }
  const std::vector<std::pair<const char*, const char*>> lines = {{"freeze-weights", "'freeze-weights'; expected NAME = VALUE"},
                                                                  {"; a comment", "'; a comment'; expected NAME = VALUE"},
                                                                  {"= 5", "'= 5'; expected NAME = VALUE"},
                                                                  {"--epochs = 1", "expected the name without dashes"}};
  for (const auto& [line, says] : lines) {
    write_file(folder / "line.ini", fmt::format("# first\nseed = 1\n{}\n", line));
    const Outcome refused = run_program(folder.path(), {"train", "binary", "--data", "synth", "--config", "line.ini"});
    CHECK(refused.code == 2);
    CHECK(has(refused.err, "line.ini:3: "));
    CHECK(has(refused.err, says));
  }
  write_file(folder / "range.ini", "\xef\xbb\xbfseed = 1\nbatch = 16\nbatch = none\n");
  const Outcome range = run_program(folder.path(), {"train", "binary", "--data", "synth", "--config", "range.ini"});
  CHECK(range.code == 2);
  CHECK(has(range.err, "range.ini:3: batch: 'none' is not a number"));
}

// They were taken, kept in options.ini, and had no effect.
TEST_CASE("options that the stages of a net have for themselves are refused, and how to set them is said", "[train]") {
  const TempDir folder;
  const auto outcome = [&](Args more) {
    Args args = {"train", "binary",  "--net", "cifar-deep", "--data", "synth",   "--max-train", "40",    "--max-test",
                 "20",    "--batch", "20",    "--epochs",   "1",      "--cache", "none",        "--out", "run"};
    return run_program(folder.path(), with(std::move(args), more));
  };
  const Outcome rate = outcome({"--learning-rate", "0.5"});
  CHECK(rate.code == 2);
  CHECK(has(rate.err,
            "--learning-rate: 0.5 has no effect, since the stages of net 'cifar-deep' have their own; expected --set "
            "together.learning_rate=0.5"));
  const Outcome copies = outcome({"--augment", "none", "--augment-copies", "2"});
  CHECK(copies.code == 2);
  CHECK(has(copies.err, "--augment-copies: 2 has no effect; it needs another --augment than none"));
  // As the net says, and by a stage.
  CHECK(outcome({"--learning-rate", "0.006"}).code == 0);
  CHECK(run_program(folder.path(), {"train", "binary", "--resume", "--out", "run", "--learning-rate", "0.006"}).code == 0);

  // The options of a run have the defaults of all others beside its net.
  const Outcome again = run_program(folder.path(), {"train", "binary", "--config", "run/options.ini", "--out", "again"});
  INFO(again.err);
  CHECK(again.code == 0);
  CHECK(has(again.out, "together: second_moment_decay is 0.98, as the net says\n"));
  CHECK(same_tensors(folder / "run/model.safetensors", folder / "again/model.safetensors"));
  // The one that is asked for counts: Muon or second moments.
  const Outcome muon = outcome({"--muon-momentum", "0.9", "--out", "muon"});
  CHECK(muon.code == 0);
  CHECK(has(muon.out, "together: second_moment_decay is 0 because of the run's other options; the net says 0.98\n"));
  const Outcome topk = outcome({"--set", "together.muon_momentum=0.9", "--rule", "topk"});
  CHECK(topk.code == 2);
  CHECK(has(topk.err, "--set: together.muon_momentum=0.9 has no effect with the run's other options"));
  const Outcome both = outcome({"--second-moment-decay", "0.98", "--muon-momentum", "0.9", "--out", "both"});
  CHECK(both.code == 2);
  CHECK(has(both.err, "--muon-momentum: 0.9 with --second-moment-decay 0.98; expected one of them to be 0"));
}

TEST_CASE("options that only a part of the nets can use are taken", "[train]") {
  const TempDir folder;
  const auto outcome = [&](const std::string& out, const Args& more) {
    const Outcome trained = run_program(folder.path(), with(quick_training(out), more));
    INFO(trained.out << trained.err);
    CHECK(trained.code == 0);
  };
  outcome("trits", {"--dead-zone", "0.1", "--set", "layer2.weights=ternary"});
  outcome("search", {"--dead-zone", "0.1", "--search", "layer1.weights=binary,ternary"});
  // Runs that began with both, as others did before, go on.
  write_file(folder / "rate.ini", "learning-rate = 0.5\n");
  const Args frozen = with(quick_training("frozen"), {"--freeze-weights"});
  CHECK(run_program(folder.path(), with(frozen, {"--config", "rate.ini", "--stop-after-steps", "3"})).code == 4);
  CHECK(run_program(folder.path(), with(frozen, {"--learning-rate", "0.5", "--resume"})).code == 0);
}

TEST_CASE("commands that are proposed and recorded are words of a shell", "[train]") {
  const TempDir folder;
  const Outcome train = run_program(folder.path(), quick_training("it's a run"));
  INFO(train.err);
  REQUIRE(train.code == 0);
  CHECK(has(train.out, "bitloom eval 'it'\\''s a run'\n"));
  CHECK(has(read_file(folder / "it's a run/metrics.jsonl"), "--out 'it'\\\\''s a run'"));
}

TEST_CASE("of two options that exclude each other the one nearer to the command line counts", "[train]") {
  const TempDir folder;
  write_file(folder / "rank.ini", "batch-per-rank = 8\n");
  REQUIRE(run_program(folder.path(), with(quick_training("run"), {"--config", "rank.ini"})).code == 0);
  CHECK(has(read_file(folder / "run/options.ini"), "batch = 32\n"));  // which --batch says
  const Outcome both = run_program(folder.path(), with(quick_training("both"), {"--batch-per-rank", "8"}));
  CHECK(both.code == 2);
  CHECK(has(both.err, "--batch and --batch-per-rank exclude each other"));
}

TEST_CASE("instruction sets and threads do not change what the program trains", "[train]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("best")).code == 0);
  // The run held 40 images back; who wants test images alone needs none to be held back.
  CHECK(run_program(folder.path(), {"eval", "best", "--max-train", "20"}).code == 0);
  const Outcome ref = run_program(folder.path(), quick_training("ref"), {"BITLOOM_ISA=ref"});
  const Outcome threads = run_program(folder.path(), quick_training("threads"), {"OMP_NUM_THREADS=3"});
  REQUIRE(ref.code == 0);
  REQUIRE(threads.code == 0);
  CHECK(has(ref.out, "kernels ref"));
  CHECK(has(threads.out, "3 threads"));
  CHECK(same_tensors(folder / "best/model.safetensors", folder / "ref/model.safetensors"));
  CHECK(same_tensors(folder / "best/model.safetensors", folder / "threads/model.safetensors"));
  const Outcome wrong = run_program(folder.path(), quick_training("wrong"), {"BITLOOM_ISA=avx1024"});
  CHECK(wrong.code == 2);
  CHECK(has(wrong.err, "avx1024"));
}

TEST_CASE("a stopped run is resumed to the same bits, and not with other options", "[train]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("straight")).code == 0);
  const Outcome stopped = run_program(folder.path(), with(quick_training("stopped"), {"--stop-after-steps", "5"}));
  CHECK(stopped.code == 4);
  CHECK(has(stopped.err, "bitloom train binary --resume --out stopped"));
  const Outcome early = run_program(folder.path(), {"eval", "stopped"});
  CHECK(early.code == 3);
  CHECK(has(early.err, "continue it with: bitloom train binary --resume --out stopped\n"));
  CHECK(has(run_program(folder.path(), {"report", "stopped"}).out, "report.html"));

  const Outcome other = run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped", "--seed", "9"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "belongs to a run with other data, net or options:"));
  CHECK(has(other.err, "\n  --seed: 1 stored, 9 given\n"));
  const Outcome several =
      run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped", "--max-train", "200",
                                  "--head-learning-rate", "0.5", "--net", "tiny", "--set", "layer1.width=32"});
  CHECK(several.code == 2);
  CHECK(has(several.err, "(--data, --max-train, --validation, --split-seed): 260 stored, 160 given\n"));
  CHECK(has(several.err, "\n  --head-learning-rate: 0.002 stored, 0.5 given\n"));
  CHECK(has(several.err, "\n  --set layer1.width: 64 stored, 32 given\n"));
  CHECK(run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped", "--stop-after-steps", "6"}).code == 4);
  const Outcome resumed =
      run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped", "--checkpoint-seconds", "1"});
  INFO(resumed.out << resumed.err);
  REQUIRE(resumed.code == 0);
  // A model is a function of data, net and options: it held the seconds of its training.
  CHECK(read_file(folder / "straight/model.safetensors") == read_file(folder / "stopped/model.safetensors"));
  const Outcome shown = run_program(folder.path(), {"inspect", "stopped"});
  CHECK(has(shown.out, "trained in "));
  CHECK(nlohmann::json::parse(run_program(folder.path(), {"inspect", "stopped", "--json"}).out)["training_seconds"] > 0);
  std::filesystem::rename(folder / "stopped/metrics.jsonl", folder / "stopped/lost");
  CHECK_FALSE(has(run_program(folder.path(), {"inspect", "stopped"}).out, "trained in "));
}

TEST_CASE("a signal to stop leaves a run that resumes to the same bits, and a second process is kept out", "[train]") {
  const TempDir folder;
  const Args longer = {"--max-train", "2500", "--epochs", "1"};
  const auto training = [&](const std::string& out) {
    Args args = quick_training(out);
    for (std::size_t i = 0; i + 1 < args.size(); ++i) {
      for (std::size_t k = 0; k < longer.size(); k += 2) {
        if (args[i] == longer[k]) args[i + 1] = longer[k + 1];
      }
    }
    return args;
  };
  REQUIRE(run_program(folder.path(), training("straight")).code == 0);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::string name = fmt::format("killed{}", signal);
    Outcome killed;
    {
      const Hold hold(folder.path(), 3);
      Background run(folder.path(), with(training(name), Hold::option()));
      REQUIRE(run.wait_for("steps of"));  // the stage's announcement: the run folder is locked
      const Outcome second = run_program(folder.path(), {"train", "binary", "--resume", "--out", name});
      CHECK(second.code == 6);
      CHECK(has(second.err, ".lock"));
      run.signal(signal);
      killed = run.wait();
    }
    INFO(killed.out << killed.err);
    REQUIRE(killed.code == 4);
    REQUIRE(run_program(folder.path(), {"train", "binary", "--resume", "--out", name}).code == 0);
    CHECK(same_tensors(folder / "straight/model.safetensors", folder / name / "model.safetensors"));
  }
}

TEST_CASE("two ranks give the bits of one, and evaluate together", "[train][mpi]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("one")).code == 0);
  Args args = quick_training("two");
  *std::find(args.begin(), args.end(), "--batch") = "--batch-per-rank";
  *std::find(args.begin(), args.end(), "32") = "16";
  const Outcome two = run_ranks(folder.path(), 2, args);
  INFO(two.out << two.err);
  REQUIRE(two.code == 0);
  CHECK(has(two.out, "2 processes"));
  CHECK(two.out.find("test accuracy") == two.out.rfind("test accuracy"));  // rank 0 alone prints
  CHECK(read_file(folder / "one/model.safetensors") == read_file(folder / "two/model.safetensors"));

  const Outcome eval = run_ranks(folder.path(), 2, {"eval", "two", "--json"});
  REQUIRE(eval.code == 0);
  CHECK(nlohmann::json::parse(eval.out)["confusion"] ==
        nlohmann::json::parse(run_program(folder.path(), {"eval", "one", "--json"}).out)["confusion"]);

  // Errors and stops end all ranks with one message and the code that a single process has.
  const Outcome wrong = run_ranks(folder.path(), 2, {"eval", "nowhere", "--data", "synth"});
  CHECK(wrong.code == 3);
  CHECK(has(wrong.err, "nowhere"));
  const Outcome stopped = run_ranks(folder.path(), 2, with(quick_training("stopped"), {"--stop-after-steps", "5"}));
  CHECK(stopped.code == 4);
  REQUIRE(run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped"}).code == 0);
  CHECK(same_tensors(folder / "one/model.safetensors", folder / "stopped/model.safetensors"));

  // A supervisor, or a script, repeats the command with other ranks: the run keeps its batch.
  *std::find(args.begin(), args.end(), "two") = "fewer";
  CHECK(run_ranks(folder.path(), 2, with(args, {"--stop-after-steps", "5"})).code == 4);
  const Outcome fewer = run_program(folder.path(), with(args, {"--resume"}));
  INFO(fewer.out << fewer.err);
  REQUIRE(fewer.code == 0);
  CHECK(has(fewer.out, "minibatches stay of 32 images, as the run began; --batch-per-rank 16 would make them 16"));
  CHECK(same_tensors(folder / "one/model.safetensors", folder / "fewer/model.safetensors"));
}

TEST_CASE("sparse messages: any number of ranks and a stop give the same bits, and no threshold those of dense sums",
          "[train][mpi]") {
  const TempDir folder;
  const Args sparse = {"--exchange", "sparse", "--workers", "6", "--bytes-per-update", "1000B", "--statistics-every", "4"};
  const Outcome one = run_program(folder.path(), with(quick_training("one"), sparse));
  INFO(one.out << one.err);
  REQUIRE(one.code == 0);
  CHECK(has(one.out, "bytes up and"));
  // Its few updates do not suffice for thresholds to find the bytes.
  CHECK(has(one.out, "where 1000 were asked for"));
  CHECK(run_ranks(folder.path(), 3, with(quick_training("three"), with(sparse, {"--tree", "1"}))).code == 0);
  CHECK(same_tensors(folder / "one/model.safetensors", folder / "three/model.safetensors"));

  CHECK(run_ranks(folder.path(), 2, with(quick_training("stopped"), with(sparse, {"--stop-after-steps", "5"}))).code == 4);
  CHECK(run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped"}).code == 0);
  CHECK(same_tensors(folder / "one/model.safetensors", folder / "stopped/model.safetensors"));

  // Error feedback lies in a file where memory does not suffice; a run for which it fits nowhere is refused before it begins.
  const Args little = with(sparse, {"--residual-memory", "100KiB"});
  const Outcome filed = run_ranks(folder.path(), 2, with(quick_training("filed"), with(little, {"--cache", "cache"})));
  INFO(filed.out << filed.err);
  CHECK(filed.code == 0);
  CHECK(has(filed.out, "32 bits of training state per weight, besides what workers keep\n"));
  CHECK(has(filed.out, "6 workers keep what they do not send, "));
  CHECK(has(filed.out, " of it in a file in "));
  CHECK(same_tensors(folder / "one/model.safetensors", folder / "filed/model.safetensors"));
  const Outcome refused = run_program(folder.path(), with(quick_training("refused"), with(little, {"--cache", "none"})));
  CHECK(refused.code == 2);
  CHECK(has(refused.err, "--workers: 6 of them on rank 0 keep "));
  CHECK(has(refused.err, "expected --cache FOLDER"));
  CHECK_FALSE(std::filesystem::exists(folder / "refused"));

  // Replies that wait in the checkpoint were asked for together with the stop.
  const Args late = with(sparse, {"--staleness", "2"});
  CHECK(run_program(folder.path(), with(quick_training("late"), late)).code == 0);
  CHECK(run_ranks(folder.path(), 2, with(quick_training("late-stopped"), with(late, {"--stop-after-steps", "3"}))).code == 4);
  CHECK(run_program(folder.path(), {"train", "binary", "--resume", "--out", "late-stopped"}).code == 0);
  CHECK(same_tensors(folder / "late/model.safetensors", folder / "late-stopped/model.safetensors"));

  CHECK(run_program(folder.path(), with(quick_training("dense"), {"--workers", "6"})).code == 0);
  CHECK(run_ranks(folder.path(), 2, with(quick_training("all"), {"--exchange", "sparse", "--workers", "6", "--threshold", "0"}))
            .code == 0);
  CHECK(same_tensors(folder / "dense/model.safetensors", folder / "all/model.safetensors"));
  CHECK(!same_tensors(folder / "dense/model.safetensors", folder / "one/model.safetensors"));

  const Outcome few = run_ranks(folder.path(), 2, with(quick_training("few"), {"--exchange", "sparse", "--workers", "1"}));
  CHECK(few.code == 2);
  CHECK(has(few.err, "--workers: 1 logical workers on 2 ranks; expected at least one each"));
  const Outcome both = run_program(folder.path(), with(quick_training("both"), with(sparse, {"--threshold", "2"})));
  CHECK(both.code == 2);
  CHECK(has(both.err, "--threshold: 2; with --bytes-per-update or --compression it follows from these"));
  const Outcome page = run_program(folder.path(), {"report", "three"});
  CHECK(page.code == 0);
}

TEST_CASE("two ranks cache frozen layers to the bits that one recomputes, also when interrupted", "[train][mpi]") {
  const TempDir folder;
  const auto training = [](const std::string& out, const std::string& frozen) {
    Args args = with(quick_training(out), {"--augment-copies", "2", "--frozen", frozen});
    *std::find(args.begin(), args.end(), "none") = frozen == "cache" ? out + "-cache" : "none";
    *(std::find(args.begin(), args.end(), "--epochs") + 1) = "3";
    return args;
  };
  REQUIRE(run_program(folder.path(), training("recomputed", "recompute")).code == 0);
  const Outcome cached = run_ranks(folder.path(), 2, training("cached", "cache"));
  INFO(cached.out << cached.err);
  REQUIRE(cached.code == 0);
  CHECK(has(cached.out, "layer2: outputs of frozen layers are cached"));
  CHECK_FALSE(has(cached.out, "damaged"));
  CHECK(same_tensors(folder / "recomputed/model.safetensors", folder / "cached/model.safetensors"));

  const Outcome stopped = run_ranks(folder.path(), 2, with(training("stopped", "cache"), {"--stop-after-steps", "31"}));
  REQUIRE(stopped.code == 4);
  REQUIRE(run_ranks(folder.path(), 2, {"train", "binary", "--resume", "--out", "stopped"}).code == 0);
  CHECK(same_tensors(folder / "recomputed/model.safetensors", folder / "stopped/model.safetensors"));

  const Outcome wrong = run_ranks(folder.path(), 2, with(quick_training("wrong"), {"--frozen", "cache"}));
  CHECK(wrong.code == 2);
  CHECK(has(wrong.err, "--augment-copies"));
}

TEST_CASE("a disk without space stops a run with code 5 and loses nothing", "[train]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("straight")).code == 0);
  REQUIRE(run_program(folder.path(), with(quick_training("full"), {"--stop-after-steps", "5"})).code == 4);
  const auto checkpoint = folder / "full/checkpoint.safetensors";
  const std::string before = read_file(checkpoint);
  // Where the next checkpoint goes there is no space; the log cannot be written either, which is no reason to stop.
  const auto next = folder / "full/checkpoint.next.safetensors";
  std::filesystem::create_symlink("/dev/full", next);
  std::filesystem::remove(folder / "full/log.txt");
  std::filesystem::create_symlink("/dev/full", folder / "full/log.txt");  // through which nothing is written
  const Args resume = {"train", "binary", "--resume", "--out", "full"};
  const Outcome full = run_program(folder.path(), with(resume, {"--checkpoint-seconds", "0"}));
  INFO(full.out << full.err);
  CHECK(full.code == 5);
  CHECK(has(full.err, "log.txt' is a symbolic link"));
  CHECK(has(full.err, "checkpoint.next.safetensors"));
  CHECK(has(full.err, "No space left on device"));
  CHECK(has(full.err, "continue with: bitloom train binary --resume --out full\n"));
  CHECK(read_file(checkpoint) == before);
  CHECK_FALSE(std::filesystem::exists(folder / "full/model.safetensors"));

  std::filesystem::remove(next);
  REQUIRE(run_program(folder.path(), resume).code == 0);
  CHECK(same_tensors(folder / "straight/model.safetensors", folder / "full/model.safetensors"));

  std::filesystem::create_symlink("/dev/full", folder / "report.html");
  const Outcome report = run_program(folder.path(), {"report", "full", "--out", "report.html"});
  CHECK(report.code == 5);
  CHECK(has(report.err, "No space left on device"));
}

TEST_CASE("a rank that is lost ends the run with code 7, and its checkpoint stays", "[train][mpi]") {
  const TempDir folder;
  Args args = quick_training("run");
  *(std::find(args.begin(), args.end(), "--epochs") + 1) = "10";
  const Hold hold(folder.path(), 2 * epoch_steps + 1);
  args = with(args, Hold::option());
  // Long enough that no process of a sanitized build on a busy machine is taken for lost while it starts.
  Background run(folder.path(), with(args, {"--watchdog-seconds", "15", "--checkpoint-seconds", "0"}), 2);
  if (!run.wait_for("epoch 2/10")) {
    run.signal(SIGKILL);
    const Outcome early = run.wait();
    FAIL("ended early with code " << early.code << '\n' << early.out << early.err);
  }
  // mpirun itself ends a run when a process of it dies; that one hangs it does not notice.
  const Outcome outcome = run.wait_without(1, hold);
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 7);
  CHECK(has(outcome.err, "bitloom: rank 0: "));
  CHECK(has(outcome.err, "the watchdog allows 15 s"));
  const Outcome resumed =
      run_program(folder.path(), {"train", "binary", "--resume", "--out", "run", "--stop-after-steps", "1"});
  CHECK(resumed.code == 4);
  CHECK_FALSE(has(resumed.out, "from the beginning"));
}

// Two steps of every stage with the batch that it trains with; CIFAR-10 itself would add 180 MB of images.
TEST_CASE("cifar-base trains in less than 3 GiB", "[train]") {
  const TempDir folder;
  const Outcome train =
      run_program(folder.path(), {"train", "binary", "--net", "cifar-base", "--data", "synth", "--max-train", "300",
                                  "--max-test", "20", "--validation", "0", "--epochs", "1", "--cache", "none", "--out", "run"});
  INFO(train.out << train.err);
  REQUIRE(train.code == 0);
  const std::string metrics = read_file(folder / "run/metrics.jsonl");
  const auto result = nlohmann::json::parse(metrics.substr(metrics.rfind("{\"", metrics.rfind("\"event\":\"result\""))));
  const auto peak = result["peak_memory_bytes"].get<std::uint64_t>();
  CHECK(peak > (std::uint64_t{50} << 20U));
  CHECK(peak < (std::uint64_t{3} << 30U) - 180'000'000);
}
