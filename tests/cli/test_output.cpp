// Output of the program, and outputs that it cannot write to.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/gpt/model_file.h"
#include "tests/cli/program.h"
#include "tests/data/text/texts.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// gpt.safetensors: a GPT on bytes.
void write_gpt(const std::filesystem::path& file) {
  const auto tokenizer = data::load_tokenizer("bytes");
  models::GptConfig config = small_gpt();
  config.vocabulary = tokenizer->size();
  SharpGpt gpt(config);
  models::save_gpt(gpt.engine, gpt.net, *tokenizer).save(file);
}

}  // namespace

// Most commands ended with 0 although nobody got to see what they had found.
TEST_CASE("results that cannot be written end every command with 5", "[output]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("run")).code == 0);
  REQUIRE(run_program(folder.path(), {"data", "sheet", "synth", "--out", "image.png", "--columns", "1"}).code == 0);
  write_gpt(folder / "gpt.safetensors");
  REQUIRE(run_program(folder.path(), {"train", "cnn", "--net", "tiny", "--data", "synth", "--max-train", "40", "--max-test",
                                      "10", "--validation", "0", "--batch", "20", "--steps", "1", "--out", "cnn"})
              .code == 0);
  write_file(folder / "text.txt", some_text(200));
  REQUIRE(run_program(folder.path(), {"data", "synth-pairs", "--count", "12", "--side", "32", "--out", "scenes"}).code == 0);
  REQUIRE(run_program(folder.path(),
                      {"train", "dvae", "--data", "scenes", "--net", "tiny", "--batch", "4", "--steps", "1", "--out", "codes"})
              .code == 0);
  const std::string small =
      "--net tiny --data synth --max-train 64 --validation 0 --batch 16 --workers 2 --stage layer1 --updates 2";
  const std::vector<std::string> lines{
      "--version",
      "--help",
      "help train binary",
      "data --help",
      "info",
      "inspect tiny",
      "inspect tiny --json",
      "inspect run",
      "inspect run --json",
      "inspect gpt.safetensors",
      "inspect gpt.safetensors --json",
      "eval run",
      "eval run --json",
      "eval gpt.safetensors --data text.txt",
      "eval gpt.safetensors --data text.txt --json",
      "predict run image.png",
      "predict run image.png --jsonl",
      "sample gpt.safetensors --tokens 3",
      "sample gpt.safetensors --tokens 3 --count 2",
      "verify run",
      "verify run --json",
      "report run",
      "export run --to onnx --out run.onnx",
      "export gpt.safetensors --out hf",
      "import gpt hf --tokenizer bytes --out back.safetensors",
      "eval cnn --json",
      "predict cnn image.png",
      "inspect cnn",
      "export cnn --out exported",
      "import cnn exported/model.safetensors --out back-cnn.safetensors",
      "plan " + small,
      "plan gpt --net tiny",
      "plan dalle --net tiny",
      "plan cnn --net tiny",
      "plan shape transformer-3 --ranks 2 --gflops 100",
      "simulate " + small,
      "selftest --parity",
      "fewbit",
      "fewbit --json",
      "data synth --out set --train 50 --test 20",
      "data info synth",
      "data sheet synth --out sheet.png",
      "data synth-pairs --out pairs --count 3",
      "data pairs pairs --check-scenes",
      "data pairs pairs --json",
      "encode codes --out codes.safetensors",
      "reconstruct codes --out grid.png",
      "export codes --out of-codes",
      "import dvae of-codes --out back-dvae.safetensors",
      "compare scenes scenes --features cnn",
      "data text --input text.txt --tokenizer bytes --out tokens",
      "data clean --input text.txt --min-tokens 1 --out clean.jsonl",
      "tokenizer train --input text.txt --vocabulary 290 --out bpe",
      "tokenizer info bytes",
      "train binary --net tiny --data synth --max-train 64 --max-test 10 --epochs 1 --batch 32 "
      "--validation 0 --cache none --set layer1.width=32 --set layer2.width=32 --out full",
      "train cnn --net tiny --data synth --max-train 40 --max-test 10 --validation 0 --batch 20 --steps 1 --out full-cnn",
      "train dvae --data scenes --net tiny --batch 4 --steps 1 --out full-dvae",
      "train dalle --data scenes --dvae codes --net tiny --batch 4 --steps 1 --out full-dalle",
      "train clip --data scenes --net tiny --side 16 --batch 4 --steps 1 --out full-clip",
      "export full-dalle --out of-dalle",
      "import dalle of-dalle/model.safetensors --out back-dalle.safetensors",
      "export full-clip --out of-clip",
      "import clip of-clip/model.safetensors --out back-clip.safetensors",
      "train gpt --data text.txt --layers 1 --width 16 --heads 1 --context 16 --batch 2 --steps 2 "
      "--out full-gpt"};
  std::set<std::string> covered;
  for (const std::string& line : lines) {
    INFO(line);
    const std::vector<std::string> args = words_of(line);
    const Outcome outcome = run_program_into(folder.path(), "/dev/full", args);
    INFO(outcome.err);
    CHECK(outcome.code == 5);
    CHECK(has(outcome.err, "bitloom: the standard output cannot be written: No space left on device\n"));
    covered.insert(args.front());
    if (args.size() > 1) covered.insert(args[0] + " " + args[1]);
  }
  // Messages that cannot be written either change no exit code.
  for (const auto& [script, code] : std::vector<std::pair<std::string, int>>{
           {"\"$BITLOOM\" inspect nowhere 2>/dev/full", 2},
           {"\"$BITLOOM\" trian 2>&-", 2},
           {"mkfifo pipe; exec 3<>pipe 4>pipe 3<&-; \"$BITLOOM\" trian 2>&4", 2},  // which nobody reads
           {"\"$BITLOOM\" inspect text.txt 2>/dev/full", 3},
           {"\"$BITLOOM\" inspect run >/dev/full 2>/dev/full", 5},
           {"\"$BITLOOM\" launch --local 1 -- " + fmt::format("{}", fmt::join(quick_training("launched"), " ")) +
                " >/dev/full 2>/dev/full",
            5}}) {
    INFO(script);
    CHECK(run_shell(folder.path(), script).code == code);
  }
  CHECK(std::filesystem::exists(folder / "launched/model.safetensors"));
  // No file of a run takes the place of a closed stream.
  const std::string stopped = fmt::format("{}", fmt::join(quick_training("closed"), " ")) + " --stop-after-steps 3";
  CHECK(run_shell(folder.path(), "\"$BITLOOM\" " + stopped + " 2>&-").code == 4);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "closed")) {
    INFO(entry.path());
    if (entry.is_regular_file()) CHECK_FALSE(has(read_file(entry.path()), "bitloom: interrupted"));
  }
  // Training itself is done: what it makes is in its folder.
  CHECK(std::filesystem::exists(folder / "full/model.safetensors"));
  CHECK(std::filesystem::exists(folder / "full-gpt/model.safetensors"));
  // A command that is new belongs into the table. `launch` runs `train`.
  std::istringstream help(run_program(folder.path(), {"--help"}).out);
  std::size_t commands = 0;
  bool listed = false;
  for (std::string line; std::getline(help, line);) {
    if (listed && !line.starts_with("  ")) break;
    if (listed && line[2] != ' ') {
      const std::string name = line.substr(2, line.find("  ", 2) - 2);
      INFO(name);
      CHECK((name == "launch" || covered.contains(name)));
      ++commands;
    }
    listed |= line == "Commands:";
  }
  CHECK(commands == 40);
}

// It was ended by a signal, in the middle and without a word.
TEST_CASE("a training whose output nobody reads any more goes on, and its exit code tells", "[output]") {
  const TempDir folder;
  write_file(folder / "text.txt", some_text(200));
  const std::string gpt =
      "train gpt --data text.txt --layers 1 --width 16 --heads 1 --context 16 --batch 2 --steps 2 --out gpt";
  for (const std::string& line : {gpt, fmt::format("{}", fmt::join(quick_training("binary"), " "))}) {
    INFO(line);
    // The pipe has no reader from the beginning on, however slow the machine is.
    const Outcome outcome =
        run_shell(folder.path(), "rm -f unread; mkfifo unread; exec 3<>unread 4>unread 3<&-\n" +
                                     ("OMP_NUM_THREADS=1 env --default-signal=PIPE \"$BITLOOM\" " + line + " >&4"));
    INFO(outcome.err);
    CHECK(outcome.code == 5);
    CHECK(has(outcome.err, "bitloom: the standard output cannot be written: Broken pipe\n"));
  }
  CHECK(std::filesystem::exists(folder / "gpt/model.safetensors"));
  CHECK(std::filesystem::exists(folder / "binary/model.safetensors"));
}

TEST_CASE("what files hold cannot steer the terminal", "[output]") {
  const TempDir folder;
  const Outcome missing = run_program(folder.path(), {"inspect",
                                                      "./\x1b]0;title\x07\x9b"
                                                      "2J"});
  CHECK(missing.code == 3);
  CHECK(has(missing.err, "./\\x1b]0;title\\x07\\x9b2J: there is no such"));
  REQUIRE(run_program(folder.path(), {"data", "synth", "--out", "set", "--train", "50", "--test", "20"}).code == 0);
  std::string names = read_file(folder / "set/batches.meta.txt");
  names = "\x1b[2Jclear\n\u009b31mred\x7f\n" + names.substr(names.find('\n', names.find('\n') + 1) + 1);
  write_file(folder / "set/batches.meta.txt", names);
  const Outcome info = run_program(folder.path(), {"data", "info", "set"});
  CHECK(info.code == 0);
  CHECK(has(info.out, "\\x1b[2Jclear"));
  CHECK(has(info.out, "\\xc2\\x9b31mred\\x7f"));
  CHECK_FALSE(has(info.out, "\x1b"));
  CHECK_FALSE(has(info.out, "\x7f"));
  // JSON has escapes of its own, and was an internal error where a name was no UTF-8.
  write_file(folder / "\x7f\u009b\xe9.safetensors", "no model");
  const Outcome json = run_program(folder.path(), {"verify", "\x7f\u009b\xe9.safetensors", "--json"});
  CHECK(json.code == 3);
  CHECK_FALSE(has(json.out, "\x7f"));
  CHECK(nlohmann::json::parse(json.out)["file"] == "\x7f\u009b\ufffd.safetensors");
}

TEST_CASE("pictures of other things in CIFAR-10's format are not announced as CIFAR-10", "[output]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), {"data", "synth", "--out", "shapes", "--train", "50", "--test", "20"}).code == 0);
  const Outcome info = run_program(folder.path(), {"data", "info", "shapes"});
  CHECK(has(info.out, "shapes"));
  CHECK_FALSE(has(info.out, "cifar10"));
}

// Help was 110 columns wide whatever the screen was: lines ended in the middle of words.
TEST_CASE("help fits the screen, and no word is cut", "[output]") {
  const TempDir folder;
  for (const Args& args : {Args{"train", "binary", "--help-all"}, Args{"eval", "--help"}, Args{"--help"}}) {
    const Outcome wide = run_program(folder.path(), args);
    const Outcome narrow = run_on_screen(folder.path(), 80, args);
    INFO(narrow.out << narrow.err);
    REQUIRE(narrow.code == 0);
    CHECK(words_of(narrow.out) == words_of(wide.out));
    std::istringstream lines(narrow.out);
    for (std::string line; std::getline(lines, line);) {
      INFO(line);
      CHECK(line.size() <= 80);
    }
  }
}

TEST_CASE("the live line of a narrow screen is cut between words", "[output]") {
  const TempDir folder;
  const Outcome train = run_on_screen(folder.path(), 40, with(quick_training("run"), {"--pace", "0.05"}));
  INFO(train.out << train.err);
  REQUIRE(train.code == 0);
  // By words: all of a line, or its beginning.
  static const std::regex whole_words(
      R"(layer\d step \d+/\d+:( loss( [\d.]+,( training( [\d.]+%,( \d+( images/s.*)?)?)?)?)?)?)");
  const std::string rewritten = "\r\x1b[K";
  std::size_t count = 0;
  for (std::size_t at = train.out.find(rewritten); at != std::string::npos; at = train.out.find(rewritten, at)) {
    at += rewritten.size();
    const std::string line = train.out.substr(at, train.out.find_first_of("\r\n", at) - at);
    if (!has(line, " step ")) continue;  // the line was cleared for another
    INFO(line);
    CHECK(line.size() < 40);
    CHECK(std::regex_match(line, whole_words));
    ++count;
  }
  CHECK(count > 0);
}

TEST_CASE("of an option that is given twice the last value counts", "[output]") {
  const TempDir folder;
  const Outcome train =
      run_program(folder.path(), with(quick_training("run"), {"--seed", "1", "--batch", "50", "--seed", "7"}));
  INFO(train.err);
  REQUIRE(train.code == 0);
  const std::string options = read_file(folder / "run/options.ini");
  CHECK(has(options, "\nseed = 7\n"));
  CHECK(has(options, "\nbatch = 50\n"));
  CHECK(has(options, "\nset = layer1.width=64\nset = layer2.width=64\n"));  // those that may be repeated are all kept
}

// An options.ini has every option, and serves as --config of similar runs: a nearer --exchange dense would refuse them all.
TEST_CASE("what an option needs may be taken away again nearer to the command line", "[output]") {
  const TempDir folder;
  write_file(folder / "sparse.ini", "exchange = sparse\nworkers = 2\nstaleness = 1\nbytes-per-update = 1KiB\n");
  const Args args = with(quick_training("run"), {"--config", "sparse.ini"});
  CHECK(run_program(folder.path(), with(args, {"--exchange", "dense"})).code == 0);
  write_file(folder / "dense.ini", "workers = 2\nstaleness = 1\n");
  const Outcome none = run_program(folder.path(), with(quick_training("none"), {"--config", "dense.ini"}));
  CHECK(none.code == 2);
  CHECK(has(none.err, "dense.ini:2: staleness: 1 has no effect; it needs --exchange sparse"));
}

TEST_CASE("a minibatch larger than the training set is said", "[output]") {
  const TempDir folder;
  Args args = quick_training("run");
  const auto batch = std::find(args.begin(), args.end(), "--batch");
  args.erase(batch, batch + 2);
  *(std::find(args.begin(), args.end(), "--max-train") + 1) = "100";
  const Outcome train = run_program(folder.path(), args);
  CHECK(train.code == 0);
  CHECK(has(train.out, "minibatches of 60 images: there are no 128 (--batch) to train on\n"));
}
