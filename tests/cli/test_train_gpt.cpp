// GPTs as a user trains them: a run, what is done with it, an interrupted one, what is refused.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <thread>
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

TEST_CASE("a GPT is trained, sampled, and goes on where it was stopped", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Outcome train = run_program(folder.path(), quick_gpt("run"));
  INFO(train.out << train.err);
  REQUIRE(train.code == 0);
  CHECK(has(train.out, "validation loss"));
  CHECK(has(train.out, "peak memory"));
  CHECK(has(train.out, "bitloom sample run"));
  for (const char* file : {"model.safetensors", "metrics.jsonl", "options.ini", "log.txt", "checkpoint.safetensors"}) {
    CHECK(std::filesystem::exists(folder / "run" / file));
  }
  const auto metrics = read_metrics(folder / "run/metrics.jsonl");
  CHECK(metrics.front()["kind"] == "gpt");
  CHECK(metrics.back()["event"] == "result");
  CHECK(metrics.back()["targets"] == 12 * 4 * 32);

  const Outcome again = run_program(folder.path(), quick_gpt("run"));
  CHECK(again.code == 2);
  CHECK(has(again.err, "holds a run already"));

  const Outcome sample = run_program(folder.path(), {"sample", "run", "--prompt", "3 and", "--tokens", "40", "--seed", "7"});
  REQUIRE(sample.code == 0);
  CHECK(sample.out.starts_with("3 and"));
  CHECK(has(sample.err, "tokens/s"));
  const Outcome slow =
      run_program(folder.path(), {"sample", "run", "--prompt", "3 and", "--tokens", "40", "--seed", "7", "--no-cache"});
  CHECK(slow.out == sample.out);
  const Outcome two = run_program(folder.path(), {"sample", "run/model.safetensors", "--count", "2", "--tokens", "5"});
  CHECK(has(two.out, "--- 2 of 2"));

  // Stopped by a signal and gone on with, on another number of threads, it ends with the same model.
  REQUIRE(run_program(folder.path(), quick_gpt("whole", 400)).code == 0);
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string out = fmt::format("stopped{}", signal);
    const Hold hold(folder.path(), 9);
    Background background(folder.path(), with(quick_gpt(out, 400), Hold::option()));
    REQUIRE(background.wait_for("step 8/400"));
    background.signal(signal);
    const Outcome stopped = background.wait();
    CHECK(stopped.code == 4);
    CHECK(has(stopped.err, "train gpt --resume --out " + out));
    const Outcome resumed = run_program(folder.path(), {"train", "gpt", "--resume", "--out", out}, {"OMP_NUM_THREADS=2"});
    INFO(resumed.out << resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(same_tensors(folder / out / "checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
    CHECK(read_file(folder / out / "model.safetensors") == read_file(folder / "whole/model.safetensors"));
  }
  const Outcome done = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run"});
  CHECK(done.code == 0);
  CHECK(has(done.out, "the run in run is finished: it has its 12 steps"));
  // How often it would write checkpoints is no other run. It was refused.
  const Outcome often = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run", "--checkpoint-seconds", "9"});
  CHECK(often.code == 0);
  CHECK(has(often.out, "the run in run is finished: it has its 12 steps"));
  const Outcome other =
      run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run", "--steps", "14", "--batch", "8"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "belongs to a run with other data, net or options:\n  --batch: 4 stored, 8 given\n"));

  const Outcome picture = run_program(folder.path(), {"predict", "run", "text.txt"});
  CHECK(picture.code == 3);
  CHECK(has(picture.err,
            "run/model.safetensors: a model of kind gpt; expected one of kind binary or cnn. For this one there is `bitloom "
            "sample`"));

  const Outcome more = run_program(folder.path(), with(quick_gpt("more"), {"--init", "run", "--dtype", "f32"}));
  INFO(more.err);
  CHECK(more.code == 0);
}

// Such a run was told to be continued by `bitloom train KIND`, and its checkpoints could not be read.
TEST_CASE("a GPT's run without a model is sampled, evaluated and inspected by its newest checkpoint", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const std::vector<Args> ways{{}, {"--average", "0.9"}, {"--dtype", "bf16", "--master-weights", "none", "--average", "0"}};
  for (std::size_t n = 0; n < ways.size(); ++n) {
    const std::string run = fmt::format("run{}", n);
    const Outcome train = run_program(folder.path(), with(quick_gpt(run), with(ways[n], {"--keep", "last"})));
    INFO(train.out << train.err);
    REQUIRE(train.code == 0);
    const Args sample = {"sample", run, "--prompt", "3 and", "--tokens", "20"};
    const Args eval = {"eval", run, "--data", "text.txt", "--json"};
    const Outcome text = run_program(folder.path(), sample);
    const Outcome measured = run_program(folder.path(), eval);
    CHECK_FALSE(has(text.err, "checkpoint"));
    // As it is before the end; the last checkpoint has the same parameters.
    std::filesystem::remove(folder / run / "model.safetensors");
    const std::string note = run + ": finished; this is its checkpoint after step 12\n";
    const Outcome early = run_program(folder.path(), sample);
    CHECK(early.code == 0);
    CHECK(early.out == text.out);
    CHECK(has(early.err, note));
    const Outcome measured_early = run_program(folder.path(), eval);
    CHECK(has(measured_early.err, note));
    CHECK(nlohmann::json::parse(measured_early.out)["text"]["loss"] == nlohmann::json::parse(measured.out)["text"]["loss"]);
    const Outcome shown = run_program(folder.path(), {"inspect", run});
    CHECK(has(shown.out, "GPT: 2 layers of width 32"));
    CHECK(has(shown.err, note));
    // Damage shows, and the checkpoint before serves.
    write_file(folder / run / "checkpoint.safetensors", "damaged");
    CHECK(has(run_program(folder.path(), sample).err, "this is its checkpoint after step "));
    for (const auto& entry : std::filesystem::directory_iterator(folder / run)) {
      if (entry.path().extension() == ".safetensors") std::filesystem::remove(entry.path());
    }
    const Outcome none = run_program(folder.path(), sample);
    CHECK(none.code == 3);
    CHECK(has(none.err, "continue it with: bitloom train gpt --resume --out " + run + "\n"));
  }
}

TEST_CASE("ways to train a GPT", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  int n = 0;
  for (const Args& more : std::vector<Args>{{"--dtype", "bf16"},
                                            {"--dtype", "bf16", "--master-weights", "none"},
                                            {"--init", "run1", "--dtype", "bf16", "--master-weights", "none"},
                                            {"--init", "run1"},
                                            {"--activation-bits", "3"},
                                            {"--recompute", "block", "--micro-batch", "2"},
                                            {"--average", "0.9", "--keep", "last"},
                                            {"--backend", "ref", "--steps", "2"},
                                            {"--validation", "0", "--evaluate-every", "0"},
                                            {"--documents", "blank-lines", "--memory", "64MiB"},
                                            {"--variance-limit", "5"},
                                            {"--optimizer-state", "16-bit", "--dtype", "bf16"},
                                            {"--backend", "ref", "--steps", "2", "--dtype", "f16", "--loss-scale", "blocks"},
                                            {"--activation-bits", "3", "--activation-quantiser", "act-nn"}}) {
    INFO(fmt::format("{}", fmt::join(more, " ")));
    Args args = quick_gpt(fmt::format("run{}", n++), 4);
    if (more[0] == "--backend") args.erase(args.end() - 6, args.end() - 4);  // --steps is given anew
    const Outcome outcome = run_program(folder.path(), with(args, more));
    INFO(outcome.err);
    CHECK(outcome.code == 0);
  }
  const Outcome masters =
      run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run1", "--steps", "14", "--master-weights", "f32"});
  CHECK(masters.code == 2);
  CHECK(has(masters.err, "--master-weights: none stored"));
  const Outcome limited =
      run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run10", "--steps", "14", "--variance-limit", "4"});
  CHECK(limited.code == 2);
  CHECK(has(limited.err, "--variance-limit: 5.0 stored, 4.0 given"));
  // Variances in 16 bits are cut off as in the paper; one that began without that goes on so.
  const std::string narrow = read_file(folder / "run11/options.ini");
  CHECK(has(narrow, "variance-limit = 5\n"));
  CHECK(has(read_file(folder / "run9/options.ini"), "variance-limit = 0\n"));
  write_file(folder / "run11/options.ini", std::regex_replace(narrow, std::regex("variance-limit.*\n"), ""));
  const Outcome other = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run11", "--steps", "14"});
  CHECK(has(other.err, "--variance-limit: 5.0 stored, "));
  const Outcome copied = run_program(
      folder.path(), {"train", "gpt", "--config", "run9/options.ini", "--out", "copied", "--optimizer-state", "16-bit"});
  INFO(copied.err);
  CHECK(copied.code == 0);
  CHECK(has(read_file(folder / "copied/options.ini"), "variance-limit = 5\n"));
  write_file(folder / "run11/options.ini", narrow);
  const auto lines = read_metrics(folder / "run12/metrics.jsonl");
  const auto last_step = std::ranges::find_if(lines, [](const auto& line) { return line.value("event", "") == "step"; });
  REQUIRE(last_step != lines.end());
  REQUIRE((*last_step)["block_scales"].size() == 4);  // of two blocks, attention's and the feed-forward part's
  for (const auto& scale : (*last_step)["block_scales"]) CHECK(scale.get<double>() > 4 * 128);
  CHECK(run_program(folder.path(), {"report", "run12"}).code == 0);
  const Outcome table = run_program(
      folder.path(), {"train", "gpt", "--resume", "--out", "run13", "--steps", "14", "--activation-quantiser", "few-bit"});
  CHECK(table.code == 2);
  CHECK(has(table.err, "--activation-quantiser: act-nn stored"));
  CHECK(run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run13", "--steps", "14"}).code == 0);
  const Outcome nothing = run_program(folder.path(), with(quick_gpt("none", 4), {"--activation-quantiser", "act-nn"}));
  CHECK(nothing.code == 2);
  CHECK(has(nothing.err, "--activation-quantiser: act-nn has no effect; it needs another --activation-bits than 0"));
  const Outcome wide =
      run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run11", "--steps", "14", "--optimizer-state", "f32"});
  CHECK(wide.code == 2);
  CHECK(has(wide.err, "--optimizer-state: 16-bit stored"));
  CHECK(run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run11", "--steps", "14"}).code == 0);
  const Outcome longer = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "run1", "--steps", "14"});
  INFO(longer.err);
  CHECK(longer.code == 0);
  write_file(folder / "options.ini", "net = tiny\nsteps = 3\nlayers = 1\nwidth = 16\nheads = 1\ncontext = 16\nbatch = 2\n");
  const Outcome config =
      run_program(folder.path(), {"train", "gpt", "--config", "options.ini", "--data", "text.txt", "--out", "ini"});
  CHECK(config.code == 0);
  CHECK(has(config.out, "1 layers of width 16"));
}

TEST_CASE("a GPT is trained in the memory that it is planned to take", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  // The matrices by which the machine is measured are larger.
  const Outcome outcome = run_program(
      folder.path(), {"train",   "gpt", "--data",    "text.txt", "--layers", "1", "--width",  "32",     "--heads", "2",
                      "--batch", "8",   "--context", "16",       "--steps",  "2", "--memory", "900KiB", "--out",   "run"});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "done in "));
}

// It was chosen by the memory that was free when the run went on: to other bits, and without a word.
TEST_CASE("a GPT's run goes on with the micro-batch that it had, where that fits", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto stop = [&](const std::string& run, const Args& more) {
    const Hold hold(folder.path(), 5);
    Background stopped(folder.path(), with(with(quick_gpt(run), more), Hold::option()));
    REQUIRE(stopped.wait_for("step 4/12"));
    stopped.signal(SIGTERM);
    CHECK(stopped.wait().code == 4);
    hold.release();
  };
  const auto resume = [&](const std::string& run, const Args& more) {
    const Outcome outcome = run_program(folder.path(), with({"train", "gpt", "--resume", "--out", run}, more));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome;
  };
  const Args one = {"--micro-batch", "1"};
  REQUIRE(run_program(folder.path(), with(quick_gpt("whole"), one)).code == 0);
  stop("run", one);
  const Outcome same = resume("run", {"--micro-batch", "auto"});
  CHECK(has(same.out, "(1 at once)"));
  CHECK_FALSE(has(same.err, "--micro-batch"));
  CHECK(same_tensors(folder / "run/checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));

  // In memory for two of its four sequences, and some more.
  const auto need = [&](const char* sequences) {
    const Args plan = {"plan",          "gpt",     "--net",     "tiny",     "--layers", "2", "--width",      "32",
                       "--heads",       "2",       "--context", "32",       "--batch",  "4", "--vocabulary", "257",
                       "--micro-batch", sequences, "--json",    "plan.json"};
    REQUIRE(run_program(folder.path(), plan).code == 0);
    return nlohmann::json::parse(read_file(folder / "plan.json"))["memory"]["total"].get<std::uint64_t>();
  };
  const std::string memory = fmt::format("{}KiB", (need("2") + need("4")) / 2 / 1024);
  stop("less", {"--micro-batch", "4", "--sample-every", "0"});
  const Outcome other = resume("less", {"--micro-batch", "auto", "--memory", memory});
  CHECK(has(other.out, "(2 at once)"));
  CHECK(has(other.err,
            "--micro-batch: auto; the run in less had 4 sequences at once, which are not possible here: it goes on with 2, to "
            "a result "
            "like it, not to the same bits"));
}

TEST_CASE("what train gpt and sample refuse", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  write_file(folder / "short.txt", "short\n");
  write_file(folder / "empty.txt", "");
  write_file(folder / "bad.txt", "caf\xe9\n");
  const auto refuses = [&](const Args& args, int code, const std::string& text) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    CHECK(outcome.code == code);
    CHECK(has(outcome.err, text));
  };
  refuses({"train", "gpt"}, 2, "--data: missing");
  refuses({"train", "gpt", "--data", "none.txt"}, 3, "none.txt");
  refuses({"train", "gpt", "--data", "short.txt"}, 3, "short.txt");
  refuses({"train", "gpt", "--data", "empty.txt"}, 3, "empty.txt");
  refuses({"train", "gpt", "--data", "bad.txt"}, 3, "bad.txt");
  refuses({"train", "gpt", "--data", "."}, 3, "train.tokens");
  refuses({"train", "gpt", "--data", ".", "--tokenizer", "bytes"}, 2, "--tokenizer: 'bytes'; ");
  refuses({"train", "gpt", "--data", "text.txt", "--steps", "0"}, 2, "--steps: '0'");
  refuses({"train", "gpt", "--data", "text.txt", "--learning-rate", "nan"}, 2, "--learning-rate: 'nan'");
  refuses({"train", "gpt", "--data", "text.txt", "--out", "text.txt/run"}, 5,
          "--out: text.txt/run cannot be created: Not a directory");
  refuses({"tokenizer", "train", "--input", "empty.txt", "--vocabulary", "300", "--out", "a"}, 3, "no text in 'empty.txt'");
  refuses({"data", "text", "--input", "text.txt", "--tokenizer", "bytes", "--out", "text.txt/a"}, 5,
          "--out: text.txt/a: Not a directory");
  refuses({"data", "text", "--input", "empty.txt", "--tokenizer", "bytes", "--out", "new"}, 3, "no text in 'empty.txt'");
  CHECK_FALSE(std::filesystem::exists(folder / "new"));
  refuses({"train", "gpt", "--data", "text.txt", "--net", "gpt2"}, 2, "--net: 'gpt2'");
  refuses({"train", "gpt", "--data", "text.txt", "--field", "body"}, 2, "--field: body has no effect: ");
  refuses({"train", "gpt", "--data", "text.txt", "--context", "8", "--validation", "0", "--keep", "best", "--out", "a"}, 2,
          "--keep: best has no effect without validation data");
  refuses({"train", "gpt", "--data", "text.txt", "--heads", "3"}, 2, "--heads: 3; expected a divisor of the width, 128");
  refuses({"train", "gpt", "--data", "text.txt", "--micro-batch", "5"}, 2, "--micro-batch: '5'");
  refuses({"train", "gpt", "--data", "text.txt", "--memory", "1MiB"}, 2, "--micro-batch: one sequence takes");
  refuses({"train", "gpt", "--data", "text.txt", "--warmup", "2000"}, 2, "--warmup: 2000");
  refuses({"train", "gpt", "--data", "text.txt", "--variance-limit", "-1"}, 2, "--variance-limit: '-1' is out of range");
  refuses({"train", "gpt", "--data", "text.txt", "--tokenizer", "text.txt"}, 3, "text.txt");
  refuses({"train", "gpt", "--data", "text.txt", "--backend", "cudd"}, 2, "cudd");
  refuses({"train", "gpt", "--data", "text.txt", "--device", "gpu"}, 2, "--device");
  refuses({"train", "gpt", "--data", "text.txt", "--device", "cuda:99"}, 2, "--device: cuda:99: ");
  refuses({"train", "gpt", "--data", "text.txt", "--dtype", "f16"}, 2, "--dtype: f16; backend cpu has no values of that type");
  refuses({"train", "gpt", "--data", "text.txt", "--loss-scale", "blocks"}, 2,
          "--loss-scale: blocks has no effect; it needs --dtype f16");
  refuses({"train", "gpt", "--data", "text.txt", "--master-weights", "none"}, 2, "--master-weights: none with --dtype f32");
  refuses({"train", "gpt", "--data", "text.txt", "--master-weights", "none", "--dtype", "f16"}, 2,
          "--master-weights: none with --dtype f16; expected --dtype bf16");
  refuses({"train", "gpt", "--data", "text.txt", "--memory", "1MiB", "--micro-batch", "2"}, 5,
          "2 sequences at once were predicted to take");
  const Outcome of_rank = run_program(folder.path(), {"train", "gpt", "--data", "text.txt", "--device", "cuda"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK=98", "SLURM_LOCALID=3"});
  CHECK(of_rank.code == 2);
  CHECK(has(of_rank.err, "--device: cuda:98: "));
  refuses({"train", "gpt", "--resume", "--out", "none"}, 2, "there is no run in none");
  refuses({"train",   "gpt", "--data",    "text.txt", "--learning-rate", "1e3", "--clip",  "0",
           "--steps", "200", "--net",     "tiny",     "--layers",        "2",   "--width", "16",
           "--heads", "1",   "--context", "16",       "--batch",         "2",   "--init",  "none"},
          3, "none");
  refuses({"sample", "none"}, 3, "none");
  refuses({"sample", "text.txt"}, 3, "text.txt");
  REQUIRE(run_program(folder.path(), quick_gpt("run", 2)).code == 0);
  const Outcome longer = run_program(folder.path(), {"sample", "run", "--prompt", std::string(40, 'x'), "--tokens", "3"});
  CHECK(longer.code == 0);
  CHECK(longer.out.starts_with(std::string(40, 'x')));
  CHECK(has(longer.err, "the prompt has 40 tokens, the context 32: the net sees the last 16"));
  refuses({"sample", "run", "--temperature", "-1"}, 2, "--temperature");
  refuses({"sample", "run", "--device", "cuda:99"}, 2, "--device: cuda:99: ");
  refuses({"sample", "run", "--dtype", "f16"}, 2, "--dtype: f16");
  refuses({"eval", "run", "--data", "text.txt", "--device", "cuda:99"}, 2, "--device: cuda:99: ");
  refuses({"sample", "run", "--top-p", "0"}, 2, "--top-p");
  refuses({"sample", "run", "--prompt", "a", "--prompt-file", "text.txt"}, 2, "--prompt-file");
  refuses(with(quick_gpt("other"), {"--init", "run", "--layers", "3"}), 3, "a net of other sizes");
  // As many rows of tokens, padded, but others.
  REQUIRE(
      run_program(folder.path(), {"tokenizer", "train", "--input", "text.txt", "--vocabulary", "290", "--out", "pairs"}).code ==
      0);
  refuses(with(quick_gpt("other"), {"--init", "run", "--tokenizer", "pairs"}), 3,
          "its tokenizer (bytes, 257 tokens) is not that of the text (sentencepiece, 290 tokens)");
  write_file(folder / "a.tokens", "");
  refuses({"train", "gpt", "--data", "a.tokens"}, 3, "a token file; expected the folder");
  std::filesystem::resize_file(folder / "run/model.safetensors", 5000);
  refuses({"sample", "run"}, 3, "model.safetensors");
}

TEST_CASE("plan gpt tells what train gpt takes", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args net = {"--net", "tiny", "--layers", "2", "--width", "32", "--heads", "2", "--context", "32", "--batch", "4"};
  const Outcome plan = run_program(folder.path(), with({"plan", "gpt", "--vocabulary", "257", "--json", "plan.json"}, net));
  REQUIRE(plan.code == 0);
  CHECK(has(plan.out, "3 bits"));
  const Outcome train =
      run_program(folder.path(), with({"train", "gpt", "--data", "text.txt", "--steps", "2", "--out", "run"}, net));
  REQUIRE(train.code == 0);
  const auto json = nlohmann::json::parse(read_file(folder / "plan.json"));
  const auto line = read_metrics(folder / "run/metrics.jsonl").at(1);
  REQUIRE(line["event"] == "step");
  CHECK(line["stash_bytes"] == json["memory"]["stash"]);
  CHECK(line["memory_bytes"].get<double>() == Approx(json["memory"]["total"].get<double>()).epsilon(0.25));
  CHECK(run_program(folder.path(), {"plan", "gpt", "--net", "8.3b", "--memory", "1GiB"}).code == 2);
  CHECK(has(run_program(folder.path(), {"plan", "gpt", "--net", "8.3b", "--memory", "1TiB", "--batch", "1"}).out,
            "8.32 G parameters"));
}

TEST_CASE("a GPT's run that is killed goes on to the same bits", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  REQUIRE(run_program(folder.path(), quick_gpt("whole", 300)).code == 0);
  {
    const Hold hold(folder.path(), 101);
    Background background(folder.path(), with(with(quick_gpt("killed", 300), {"--checkpoint-seconds", "0.1"}), Hold::option()));
    REQUIRE(background.wait_for("step 100/300"));
    background.signal(SIGKILL);
    CHECK(background.wait().code == 128 + SIGKILL);
  }
  const Outcome resumed = run_program(folder.path(), {"train", "gpt", "--resume", "--out", "killed"});
  INFO(resumed.out << resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(same_tensors(folder / "killed/checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
  CHECK(same_tensors(folder / "killed/model.safetensors", folder / "whole/model.safetensors"));
}

// Handlers ran on the thread that computes, whose stack oneDNN's kernels for AVX2 leave for a while: memory was overwritten in
// every other run that was asked to stop.
TEST_CASE("signals that come while a net computes harm nothing", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  Background run(folder.path(), {"train",
                                 "gpt",
                                 "--data",
                                 "text.txt",
                                 "--net",
                                 "tiny",
                                 "--context",
                                 "64",
                                 "--batch",
                                 "64",
                                 "--micro-batch",
                                 "64",
                                 "--steps",
                                 "1000",
                                 "--evaluate-every",
                                 "1",
                                 "--evaluate-sequences",
                                 "4",
                                 "--out",
                                 "run"});
  REQUIRE(run.wait_for("step 1/1000"));
  const std::string status = read_file(fmt::format("/proc/{}/status", run.process()));
  const std::size_t at = status.find("SigBlk:");
  REQUIRE(at != std::string::npos);
  const std::uint64_t blocked = std::stoull(status.substr(at + 7), nullptr, 16);
  for (const int number : {SIGINT, SIGTERM, SIGUSR1}) CHECK((blocked >> (number - 1) & 1) == 1);
  for (int i = 0; i < 1000; ++i) {
    run.signal(SIGUSR1);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }
  const Outcome outcome = run.wait();
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 4);
  CHECK(has(outcome.err, "stopped after step"));
}

TEST_CASE("a GPT's run with merge dropout goes on to the same bits", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto run = [&](const Args& args) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  run({"tokenizer", "train", "--input", "text.txt", "--vocabulary", "290", "--out", "pairs"});
  const auto dropped = [](const std::string& out, const std::string& rate) {
    return with(quick_gpt(out, 300), {"--tokenizer", "pairs", "--merge-dropout", rate, "--checkpoint-seconds", "0.1"});
  };
  CHECK(has(run(dropped("whole", "0.2")), "merge dropout 0.2: every epoch has other tokens"));
  const auto model = [&](const char* name) { return folder / name / "checkpoint.safetensors"; };
  for (const int signal : {SIGTERM, SIGKILL}) {
    const std::string out = fmt::format("stopped{}", signal);
    const Hold hold(folder.path(), 61);
    Background background(folder.path(), with(dropped(out, "0.2"), Hold::option()));
    REQUIRE(background.wait_for("step 60/300"));  // the second epoch
    background.signal(signal);
    CHECK(background.wait().code == (signal == SIGTERM ? 4 : 128 + SIGKILL));
    const Outcome other = run_program(folder.path(), {"train", "gpt", "--resume", "--out", out, "--merge-dropout", "0.1"});
    CHECK(other.code == 2);
    CHECK(has(other.err, "\n  --merge-dropout: 0.2 stored, 0.1 given\n"));
    run({"train", "gpt", "--resume", "--out", out});
    CHECK(same_tensors(model(out.c_str()), model("whole")));
  }
  run(dropped("none", "0"));
  CHECK_FALSE(same_tensors(model("none"), model("whole")));
  // Validation has no dropout, and a folder of the same tokens gives the same run.
  const auto first_evaluation = [&](const char* name) {
    for (const auto& line : read_metrics(folder / name / "metrics.jsonl")) {
      if (line["event"] == "evaluation") return line;
    }
    return nlohmann::json();
  };
  CHECK(first_evaluation("none")["targets"] == first_evaluation("whole")["targets"]);
  run({"data", "text", "--input", "text.txt", "--tokenizer", "pairs", "--out", "tokens"});
  Args from_folder = quick_gpt("folder", 300);
  from_folder[3] = "tokens";
  run(with(from_folder, {"--merge-dropout", "0.2"}));
  CHECK(same_tensors(model("folder"), model("whole")));

  const Outcome bytes = run_program(folder.path(), with(quick_gpt("bytes"), {"--merge-dropout", "0.2"}));
  CHECK(bytes.code == 2);
  CHECK(has(bytes.err, "--merge-dropout: merge dropout 0.2 does not go with a tokenizer of kind bytes"));
  CHECK(run_program(folder.path(), with(quick_gpt("bytes"), {"--merge-dropout", "1.5"})).code == 2);
}

TEST_CASE("damaged and mismatched token files are refused", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  REQUIRE(run_program(folder.path(), {"data", "text", "--input", "text.txt", "--tokenizer", "bytes", "--out", "tokens"}).code ==
          0);
  const auto train = [&] {
    std::filesystem::remove_all(folder / "run");
    return run_program(folder.path(), {"train", "gpt", "--data", "tokens", "--context", "32", "--width", "16", "--heads", "1",
                                       "--layers", "1", "--batch", "2", "--steps", "2", "--out", "run"});
  };
  REQUIRE(train().code == 0);
  const std::string whole = read_file(folder / "tokens/train.tokens");
  write_file(folder / "tokens/train.tokens", std::string_view(whole).substr(0, whole.size() - 100));
  const Outcome cut = train();
  CHECK(cut.code == 3);
  CHECK(has(cut.err, "train.tokens"));
  write_file(folder / "tokens/train.tokens", whole);
  const std::string bytes = read_file(folder / "tokens/tokenizer");
  REQUIRE(
      run_program(folder.path(), {"tokenizer", "train", "--input", "text.txt", "--vocabulary", "290", "--out", "other"}).code ==
      0);
  std::filesystem::copy_file(folder / "other", folder / "tokens/tokenizer", std::filesystem::copy_options::overwrite_existing);
  const Outcome other = train();
  CHECK(other.code == 3);
  CHECK(has(other.err, "another tokenizer"));
  // A run goes on with the text that it began with.
  write_file(folder / "tokens/tokenizer", bytes);
  REQUIRE(train().code == 0);
  const Outcome changed = run_program(
      folder.path(), {"train", "gpt", "--resume", "--out", "run", "--steps", "4", "--data", "text.txt", "--validation", "0.5"});
  CHECK(changed.code == 2);
  CHECK(has(changed.err, "\n  the text's fingerprint (--data, --tokenizer, --validation): "));
}

// Both were taken in silence: the rates of the rest of the run were those of neither.

TEST_CASE("a GPT run whose options file was edited is not gone on with", "[gpt]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  REQUIRE(run_program(folder.path(), quick_gpt("run", 2)).code == 0);
  const auto ini = folder / "run/options.ini";
  const std::string before = read_file(ini);
  const Args resume = {"train", "gpt", "--resume", "--out", "run"};
  const std::size_t steps = before.find("steps = 2\n");
  REQUIRE(steps != std::string::npos);
  std::string longer = before;
  longer.replace(steps, std::string("steps = 2\n").size(), "steps = 4\n");
  write_file(ini, longer);
  const Outcome edited = run_program(folder.path(), resume);
  CHECK(edited.code == 2);
  CHECK(has(edited.err, "steps: 4, but "));
  CHECK(has(edited.err, "written in a run of 2"));
  for (const char* line : {"learning-rate-floor = 0.5\n", "warmup = 1\n"}) {
    std::string other = before;
    const std::string name(line, std::string_view(line).find(' '));
    const std::size_t at = other.find("\n" + name + " = ");
    if (at != std::string::npos) other.erase(at + 1, other.find('\n', at + 1) - at);
    write_file(ini, other + line);
    const Outcome changed = run_program(folder.path(), with(resume, {"--steps", "4"}));
    INFO(line << changed.out << changed.err);
    CHECK(changed.code == 2);
    CHECK(has(changed.err, "run/checkpoint.safetensors"));
  }
  write_file(ini, before);
  const Outcome more = run_program(folder.path(), with(resume, {"--steps", "4"}));
  INFO(more.out << more.err);
  CHECK(more.code == 0);
  CHECK(has(more.out, "4 steps instead of 2: learning rates from here on"));
  CHECK(has(run_program(folder.path(), resume).out, "has its 4 steps"));
}
