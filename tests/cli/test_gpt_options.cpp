// Options of `bitloom train gpt` that do not go together, other names of the same, and files that a run finds again.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/gpt_run.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

// Nets with as many parameters were taken for the same, and theirs for those of other heads.
TEST_CASE("a GPT does not begin with the parameters of a net that computes otherwise", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  place.run(quick_gpt("run", 2));
  const Args begun = with(quick_gpt("other", 2), {"--init", "run"});
  const std::string refusal = "/run/model.safetensors: a net of other sizes";
  place.refuses(with(begun, {"--heads", "4"}), 3, refusal);
  place.refuses(with(begun, {"--activation", "relu"}), 3, refusal);
  place.run(begun);
}

TEST_CASE("a GPT is trained by Muon at a learning rate of its own, and goes on as it began", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  const auto rate = [&](const std::string& run) {
    return lines_of(place / run, "start").back()["options"]["learning-rate"].get<double>();
  };
  place.run(quick_gpt("adamw", 4));
  place.run(with(quick_gpt("muon", 4), {"--optimizer", "muon"}));
  CHECK(rate("muon") == Approx(4 * rate("adamw")));
  CHECK(lines_of(place / "muon", "result")[0]["training_loss"] != lines_of(place / "adamw", "result")[0]["training_loss"]);
  const Args more = {"train", "gpt", "--resume", "--out", "muon", "--steps", "6"};
  place.refuses(with(more, {"--momentum", "0.9"}), 2, "--momentum: 0.95 stored, 0.9 given");
  place.refuses(with(more, {"--optimizer", "adamw"}), 2, "--optimizer: muon stored");
  place.run(more);
  const Args local = {"--optimizer", "muon",      "--exchange", "local",         "--through",
                      "shared",      "--workers", "1",          "--inner-steps", "2"};
  CHECK(has(place.run(with(quick_gpt("local", 4), local)), "as for one worker"));
  CHECK(rate("local") == Approx(rate("muon")));
  place.refuses(with(quick_gpt("shards", 4), {"--optimizer", "muon", "--shard", "optimizer"}), 2,
                "--optimizer: muon with --shard optimizer; expected adamw, or --shard none");
  place.refuses(with(quick_gpt("half", 4), {"--optimizer", "muon", "--dtype", "bf16", "--master-weights", "none"}), 2,
                "--master-weights: none with --optimizer muon; expected f32");
}

TEST_CASE("evaluations of a GPT that has no validation text are refused", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  const Args none = with(quick_gpt("run", 2), {"--validation", "0"});
  place.refuses(none, 2, "--evaluate-every: 4 has no effect without validation data");
  const Args sequences = {"--evaluate-every", "0", "--evaluate-sequences", "2"};
  place.refuses(with(none, sequences), 2, "--evaluate-sequences: 2 has no effect without validation data");
  CHECK_FALSE(std::filesystem::exists(place / "run"));
}

TEST_CASE("the weights that a GPT begins with are drawn or another model's", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  place.run(quick_gpt("first", 2));
  const Args init = with(quick_gpt("second", 2), {"--init", "first"});
  place.refuses(with(init, {"--feed-forward-init", "layers"}), 2,
                "--feed-forward-init: layers has no effect with --init, whose model has the weights; expected one of the two");
  place.run(with(init, {"--feed-forward-init", "usual"}));
}

TEST_CASE("the seed of a split of text is refused where no documents are drawn", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  place.refuses(with(quick_gpt("run", 2), {"--split-seed", "5"}), 2,
                "--split-seed: 5 has no effect: the share of --validation is less than one document");
  place.refuses({"data", "text", "--input", "text.txt", "--tokenizer", "bytes", "--out", "a", "--seed", "5"}, 2,
                "--seed: 5 has no effect: the share of --validation is less than one document");
  place.refuses(
      {"data", "text", "--input", "text.txt", "--tokenizer", "bytes", "--out", "a", "--seed", "5", "--validation", "0"}, 2,
      "--seed: 5 has no effect; it needs another --validation than 0");
  write_file(place / "lines.txt", "one\n\ntwo\n\nthree\n");
  place.run({"data", "text", "--input", "lines.txt", "--tokenizer", "bytes", "--out", "a", "--seed", "5", "--validation", "0.5",
             "--documents", "blank-lines"});
}

TEST_CASE("a run whose folder of tokens is not there any more says so", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  place.run({"data", "text", "--input", "text.txt", "--tokenizer", "bytes", "--out", "tokens"});
  place.run(with(quick_gpt("run", 2), {"--data", "tokens"}));
  place.run({"eval", "run"});
  std::filesystem::rename(place / "tokens", place / "moved");
  place.refuses({"eval", "run"}, 3,
                "--data: " + (place / "tokens").string() +
                    ": there is no such file or folder, which the run run names; expected --data with its folder of tokens, "
                    "or with another text than it has learned");
  place.run({"eval", "run", "--data", "moved"});
}

// Other programs, and later commands, were told the other name, which they did not know.
TEST_CASE("an activation has its usual name in a GPT's model, whatever it was called", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  place.run(with(quick_gpt("run", 2), {"--activation", "swish"}));
  place.run({"export", "run", "--out", "hf"});
  CHECK(nlohmann::json::parse(read_file(place / "hf/config.json"))["activation_function"] == "silu");
  place.run({"export", "run", "--out", "run.onnx"});
  place.run({"train", "gpt", "--resume", "--out", "run", "--steps", "3", "--activation", "silu"});
  place.run(with(quick_gpt("more", 2), {"--init", "run", "--activation", "silu"}));
}

// Both were looked for in the folder of the second command.
TEST_CASE("a GPT's run goes on from another folder with its tokenizer, and with what it began with", "[gpt]") {
  const Workplace place;
  write_text(place / "text.txt");
  std::filesystem::create_directory(place / "sub");
  place.run({"tokenizer", "train", "--input", "text.txt", "--vocabulary", "290", "--out", "pairs"});
  place.run(with(quick_gpt("first", 2), {"--tokenizer", "pairs"}));
  place.run(with(quick_gpt("run", 2), {"--tokenizer", "pairs", "--init", "first"}));
  const Args resume = {"train", "gpt", "--resume", "--out", "../run"};
  for (const Args& more :
       {Args{"--steps", "4"}, Args{"--steps", "6", "--init", "../first"}, Args{"--steps", "8", "--tokenizer", "../pairs"}}) {
    const Outcome outcome = run_program(place / "sub", with(resume, more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 0);
    CHECK(has(outcome.out, more[1] + " steps instead of "));
  }
}
