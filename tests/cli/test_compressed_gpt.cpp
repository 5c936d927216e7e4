// bitloom train gpt with factors of gradients that begin with the last step's.
#include <cmath>
#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>

#include "core/metrics.h"
#include "core/safetensors.h"
#include "tests/cli/gpt_run.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a GPT's factors begin with the last step's unless told otherwise, and a stopped run goes on to the same bits",
          "[gpt][power_sgd]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const auto args = [](const std::string& run, const Args& more) {
    return with(with(quick_gpt(run), {"--compress-rank", "4", "--compress-format", "1-6-9", "--compress-errors", "1-6-9"}),
                more);
  };
  const Args warm = {"--compress-start", "warm"};
  const auto run = [&](const Args& given) {
    const Outcome outcome = run_program(folder.path(), given);
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome;
  };
  // Factors of one process say so: nothing is sent that would be smaller.
  const Outcome alone = run(args("default", {}));
  CHECK(has(alone.err, "--compress-rank: 4 saves no bytes where no two processes share the data; gradients lose"));
  CHECK_FALSE(has(alone.out, "gradients go by factors"));
  run(args("fixed", {"--compress-start", "fixed"}));
  run(args("warm", warm));
  CHECK(same_tensors(folder / "default/checkpoint.safetensors", folder / "warm/checkpoint.safetensors"));
  CHECK_FALSE(same_tensors(folder / "default/model.safetensors", folder / "fixed/model.safetensors"));
  const std::string query = "power_sgd.query.blocks.0.attention.qkv.weight";
  CHECK_FALSE(TensorFile::load(folder / "fixed/checkpoint.safetensors").contains(query));
  CHECK(TensorFile::load(folder / "warm/checkpoint.safetensors").contains(query));
  const auto loss_of = [&](const std::string& name) {
    return read_metrics(folder / name / "metrics.jsonl").back()["validation_loss"].get<double>();
  };
  CHECK(std::abs(loss_of("warm") - loss_of("fixed")) < 0.1);
  // Error buffers of 16 bits are others than those of 32, whose sums a checkpoint has.
  run(args("wide", {"--compress-start", "warm", "--compress-errors", "f32"}));
  CHECK_FALSE(same_tensors(folder / "wide/model.safetensors", folder / "warm/model.safetensors"));
  CHECK(std::abs(loss_of("warm") - loss_of("wide")) < 0.05);
  // Messages of 1-6-9 count what they do not hold.
  CHECK(read_metrics(folder / "warm/metrics.jsonl")[1]["clamped"] == 0);

  {
    const Hold hold(folder.path(), 4);
    Background stopped(folder.path(), with(args("stopped", warm), Hold::option()));
    REQUIRE(stopped.wait_for("step 4/12"));
    stopped.signal(SIGTERM);
    CHECK(stopped.wait().code == 4);
    hold.release();
  }
  run({"train", "gpt", "--resume", "--out", "stopped"});
  CHECK(same_tensors(folder / "stopped/checkpoint.safetensors", folder / "warm/checkpoint.safetensors"));

  // Another start would be another run; one that is older than the option goes on with fixed factors.
  const auto refused = [&](const std::string& name, const std::string& start) {
    return run_program(folder.path(), {"train", "gpt", "--resume", "--out", name, "--steps", "16", "--compress-start", start})
        .err;
  };
  CHECK(has(refused("warm", "fixed"), "--compress-start: warm stored, "));
  CHECK(has(refused("fixed", "warm"), "warm given"));
  std::filesystem::copy(folder / "fixed", folder / "older", std::filesystem::copy_options::recursive);
  const std::string options = read_file(folder / "older/options.ini");
  const std::string before = std::regex_replace(options, std::regex("compress-start.*\n"), "");
  CHECK(before.size() < options.size());
  write_file(folder / "older/options.ini", before);
  // A run without factors wrote "fixed", before there was a choice by itself.
  write_file(folder / "plain.ini", std::regex_replace(std::regex_replace(options, std::regex("compress-rank.*\n"), ""),
                                                      std::regex("compress-(format|errors).*\n"), ""));
  run({"train", "gpt", "--config", "plain.ini", "--out", "plain", "--steps", "2"});
  for (const std::string name : {"older", "fixed", "default", "warm"}) {
    run({"train", "gpt", "--resume", "--out", name, "--steps", "16"});
  }
  CHECK(same_tensors(folder / "older/checkpoint.safetensors", folder / "fixed/checkpoint.safetensors"));
  CHECK(same_tensors(folder / "default/checkpoint.safetensors", folder / "warm/checkpoint.safetensors"));
}

TEST_CASE("a warm start of factors is refused where processes divide matrices", "[gpt][mpi][power_sgd]") {
  const TempDir folder;
  write_text(folder / "text.txt");
  const Args warm = with(quick_gpt("run"), {"--compress-rank", "4", "--compress-start", "warm"});
  const Outcome divided = run_ranks(folder.path(), 4, with(warm, {"--shard", "parameters", "--shard-ranks", "2"}));
  CHECK(divided.code == 2);
  CHECK(has(divided.err, "--compress-start: warm with --shard parameters; expected fixed, or --shard none"));
  CHECK_FALSE(std::filesystem::exists(folder / "run"));
  // Nor can one that began with whole matrices go on so.
  REQUIRE(run_program(folder.path(), with(quick_gpt("whole", 4), {"--compress-rank", "4"})).code == 0);
  const Outcome later =
      run_ranks(folder.path(), 4,
                {"train", "gpt", "--resume", "--out", "whole", "--steps", "8", "--shard", "parameters", "--shard-ranks", "2"});
  CHECK(later.code == 2);
  CHECK(has(later.err, "--shard: parameters; this run's factors begin with the last step's; expected none"));
  // By itself such a run has fixed factors, and goes on as it began in another layout.
  const Args by_itself = with(quick_gpt("fixed", 4), {"--compress-rank", "4"});
  const auto ranks = [&](const Args& args) { return run_ranks(folder.path(), 4, args); };
  const Outcome fixed = ranks(with(by_itself, {"--shard", "parameters", "--shard-ranks", "2"}));
  INFO(fixed.err);
  CHECK(fixed.code == 0);
  const Outcome other = ranks({"train", "gpt", "--resume", "--out", "fixed", "--steps", "8"});
  INFO(other.err);
  CHECK(other.code == 0);
}
