// `plan gpt` on grids of ranks, as a user asks it.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom::test;

namespace {

// Text and JSON of a plan of the net `small` on eight ranks, unless `more` says otherwise.
std::pair<std::string, nlohmann::json> plan_of_small(const std::filesystem::path& folder, const std::string& more) {
  const Outcome outcome = run_program(
      folder, words_of("plan gpt --net small --batch 64 --ranks 8 --gflops 100 --memory 16GiB --json plan.json " + more));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  return {outcome.out, nlohmann::json::parse(read_file(folder / "plan.json"))};
}

}  // namespace

TEST_CASE("plan gpt shows every grid of a number of ranks, best first, or the one that is given", "[gpt][float_plan]") {
  const TempDir folder;
  const std::string common = "plan gpt --net gpt2-124m --batch 64 --ranks 16 --memory 2GiB --link 10Gbit/50us --gflops 500 ";
  const Outcome all = run_program(folder.path(), words_of(common + "--json all.json"));
  INFO(all.out << all.err);
  REQUIRE(all.code == 0);
  for (const char* text : {"16 ranks with 2.0 GiB and 500 GFLOP/s each", "links of 10Gbit/50us",
                           "grids (data x pipeline x tensor)", "does not fit", "optimiser", "bubble", "tokens/s"}) {
    INFO(text);
    CHECK(has(all.out, text));
  }
  const auto json = nlohmann::json::parse(read_file(folder / "all.json"));
  const auto& grids = json["grids"];
  REQUIRE(grids.size() > 5);
  CHECK(json["parameters"].get<double>() > 124e6);
  CHECK(grids.front()["fits"] == true);
  CHECK(grids.back()["fits"] == false);
  for (std::size_t i = 1; i < grids.size(); ++i) {
    CHECK(grids[i]["data"].get<int>() * grids[i]["pipeline"].get<int>() * grids[i]["tensor"].get<int>() == 16);
    if (grids[i]["fits"] == true) CHECK(grids[i - 1]["step_seconds"] <= grids[i]["step_seconds"]);
  }
  // The grid of four stages and two tensor ranks alone.
  const Outcome one = run_program(folder.path(), words_of(common + "--tensor 2 --pipeline 4 --schedule 1f1b --json one.json"));
  REQUIRE(one.code == 0);
  CHECK_FALSE(has(one.out, "best first"));
  CHECK(has(one.out, "2 x 4 x 2 (data x pipeline x tensor)"));
  const auto single = nlohmann::json::parse(read_file(folder / "one.json"))["grids"];
  REQUIRE(single.size() == 1);
  CHECK(std::find(grids.begin(), grids.end(), single[0]) != grids.end());
  CHECK(single[0]["stages"].size() == 4);
  CHECK(single[0]["stages"][1]["bytes_sent"]["pipeline"]["messages"].get<double>() ==
        2 * 32 * 1024 * 768 * 4.0);  // 32 sequences a rank, an activation forward and a gradient backward
}

TEST_CASE("plan gpt says which grid would fit where the given one does not", "[gpt][float_plan]") {
  const TempDir folder;
  const Outcome outcome = run_program(
      folder.path(), words_of("plan gpt --net 8.3b --batch 512 --ranks 512 --tensor 1 --pipeline 1 --link 100Gbit/10us "
                              "--gflops 39000 --memory 32GiB --dtype bf16"));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(has(outcome.out, "it does not fit: stage 0 takes "));
  CHECK(has(outcome.out, " would fit, with "));
}

TEST_CASE("plan gpt refuses grids that are impossible and options without effect", "[gpt][float_plan]") {
  const TempDir folder;
  const std::vector<std::pair<std::string, std::string>> table{
      {"--ranks 16 --tensor 8",
       "--tensor: 8; expected a divisor of the 12 heads; possible near by (data x pipeline x tensor): "},
      {"--ranks 16 --tensor 3", "divide 16 ranks; possible near by"},
      {"--ranks 64 --pipeline 32", "--pipeline: 32; expected at most the 15 layers"},
      {"--ranks 4 --pipeline 4 --pipeline-schedule interleaved --chunks 5",
       "--chunks: 5 of each of the 4 stages, 20 in all; expected at most the 15 layers"},
      {"--ranks 64 --pipeline 1 --tensor 1 --batch 16", "--batch: 16; expected a multiple of the 64 data-parallel ranks"},
      {"--tensor 2", "--tensor: 2 has no effect; it needs --ranks"},
      {"--pipeline 2", "--pipeline: 2 has no effect; it needs --ranks"},
      {"--pipeline-schedule gpipe", "--pipeline-schedule: gpipe has no effect; it needs --ranks"},
      {"--shard optimizer", "--shard: optimizer has no effect; it needs --ranks"},
      {"--link 1Gbit/1ms", "has no effect; it needs --ranks"},
      {"--gflops 5", "--gflops: 5 has no effect; it needs --ranks"},
      {"--recompute stage", "--recompute: stage has no effect; it needs --ranks"},
      {"--ranks 8 --host-link 1Gbit/1ms", "has no effect; it needs --ranks-per-host"},
      {"--ranks 8 --ranks-per-host 8 --link 1Gbit/1ms", "--link: 1Gbit/1ms has no effect where all 8 ranks are on one host"},
      {"--ranks 8 --ranks-per-host 9", "--ranks-per-host: 9; expected at most the 8 ranks"},
      {"--ranks 8 --pipeline 1 --schedule gpipe", "--pipeline-schedule: gpipe has no effect with --pipeline 1"},
      {"--ranks 8 --pipeline 4 --tensor 2 --shard optimizer",
       "--shard: optimizer has no effect: --pipeline 4 times --tensor 2"},
      {"--ranks 8 --chunks 2", "--chunks: 2 has no effect; it needs --pipeline-schedule interleaved"},
      {"--ranks 8 --link fast", "--link: 'fast'; expected a rate and a latency"},
      {"--learning-rate 0.5", "unknown option --learning-rate"},
      {"--ranks 8 --optimizer muon --tensor 2", "--optimizer: muon with --tensor 2; expected adamw, or --tensor 1"},
      {"--ranks 8 --optimizer muon --shard optimizer",
       "--optimizer: muon with --shard optimizer; expected adamw, or --shard none"},
      {"--optimizer muon --optimizer-state 16-bit", "--optimizer-state: 16-bit has no effect; it needs --optimizer adamw"},
      {"--compress-rank 2", "--compress-rank: 2 has no effect; it needs --ranks"},
      {"--ranks 8 --compress-rank 2 --shard optimizer",
       "--compress-rank: 2 with --shard optimizer; expected --shard none, or --shard-ranks of which there are several"},
      {"--ranks 8 --compress-rank 2 --shard optimizer --shard-ranks 4",
       "--compress-rank: 2; expected a multiple of --shard-ranks 4"},
      {"--compress-start warm", "--compress-start: warm has no effect; it needs --ranks"},
      {"--compress-errors 1-6-9", "--compress-errors: 1-6-9 has no effect; it needs --ranks"},
      {"--loss-scale blocks", "--loss-scale: blocks has no effect; it needs --dtype f16"},
      {"--ranks 8 --dtype f16 --loss-scale blocks --pipeline 2",
       "--loss-scale: blocks with --pipeline 2; expected --pipeline 1, since stages send gradients of f16"},
      {"--ranks 8 --compress-rank 4 --compress-start warm --shard optimizer --shard-ranks 4",
       "--compress-start: warm with --shard optimizer; expected fixed, or --shard none"},
      {"--ranks 8 --pipeline 1 --tensor 1 --shard optimizer --shard-ranks 3",
       "--shard-ranks: 3; expected a divisor of the 8 data-parallel ranks"},
      {"--ranks 8 --shard-ranks 2", "--shard-ranks: 2 has no effect; it needs another --shard than none"},
      {"--ranks 8 --compress-rank 2 --tensor 2", "--compress-rank: 2 with --tensor 2; expected --tensor 1"},
      {"--optimizer rmsprop --optimizer-state 16-bit", "--optimizer-state: 16-bit has no effect; it needs --optimizer adamw"},
      {"--ranks 8 --shard optimiser", "--shard: unknown value 'optimiser'; did you mean 'optimizer'?"}};
  for (const auto& [options, message] : table) {
    INFO(options);
    Args args = words_of("plan gpt --net gpt2-124m --batch 64 --memory 64GiB " + options);
    if (has(options, "--ranks")) args = with(args, {"--gflops", "100"});
    const Outcome outcome = run_program(folder.path(), args);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, message));
  }
}

// `plan gpt` took one part for each stage where `train gpt` takes two, and found no grid.
TEST_CASE("plan gpt takes two parts for each stage of an interleaved pipeline", "[gpt][float_plan]") {
  const TempDir folder;
  const std::string common =
      "plan gpt --net tiny --batch 32 --ranks 4 --pipeline 2 --tensor 2 --gflops 100 --memory 4GiB --pipeline-schedule "
      "interleaved";
  const Outcome usual = run_program(folder.path(), words_of(common));
  INFO(usual.out << usual.err);
  REQUIRE(usual.code == 0);
  CHECK(usual.out == run_program(folder.path(), words_of(common + " --chunks 2")).out);
}

TEST_CASE("plan gpt says whether factors of gradients pay on a link", "[gpt][float_plan]") {
  const TempDir folder;
  const auto plan = [&](const std::string& more) { return plan_of_small(folder.path(), more); };
  const auto [slow, json] = plan("--link 10Mbit/100ms");
  CHECK(has(slow, "8 data-parallel ranks that exchange gradients whole, or by factors of a rank"));
  const auto& compared = json["compressions"];
  REQUIRE(compared.size() > 3);
  const auto bytes = [](const nlohmann::json& each) { return each["stages"][0]["bytes_sent"]["data"]["sums"].get<double>(); };
  for (std::size_t i = 0; i < compared.size(); ++i) {
    CHECK(compared[i]["compress_rank"] == (i == 0 ? 0 : 1 << (i - 1)));
    if (i == 0) continue;
    CHECK(bytes(compared[i]) <= 0.75 * bytes(compared[0]));
    CHECK(compared[i]["step_seconds"] < compared[0]["step_seconds"]);
  }
  CHECK(has(slow, "(--exchange local)"));
  CHECK(has(slow, " or more links cost less than 5% of the time"));
  REQUIRE(json["local_steps"].size() == 4);
  CHECK(json["local_steps"][2]["inner_steps"] == 100);
  CHECK(json["local_steps"][2]["step_seconds"] < compared[3]["step_seconds"]);
  // The one that is asked for is that of the comparison.
  const auto [one, own] = plan("--link 10Mbit/100ms --compress-rank 2");
  CHECK_FALSE(has(one, "exchange gradients whole"));
  CHECK(own["grids"].size() == 1);
  CHECK(own["grids"][0]["stages"] == compared[2]["stages"]);
  CHECK(own["grids"][0]["step_seconds"] == compared[2]["step_seconds"]);
  // A warm start keeps a Q of as many rows as the matrix has columns, and checkpoints have it.
  const auto memory = [](const nlohmann::json& grids, const char* what) {
    return grids[0]["stages"][0]["memory"][what].get<std::uint64_t>();
  };
  const nlohmann::json fixed = plan("--link 10Mbit/100ms --compress-rank 2 --compress-start fixed").second["grids"];
  CHECK(memory(own["grids"], "optimizer") < memory(fixed, "optimizer"));
  CHECK(memory(own["grids"], "checkpoint") > memory(fixed, "checkpoint"));
  // Scales of blocks have an identity path in 32 bits.
  const nlohmann::json narrow = plan("--dtype f16").second["grids"];
  const nlohmann::json wide = plan("--dtype f16 --loss-scale blocks").second["grids"];
  CHECK(memory(wide, "stash") > memory(narrow, "stash"));
  CHECK(has(plan("--link 1000Gbit/1us").first, "links of 1000Gbit/1us: whole gradients, "));
  CHECK(own["advice"].is_null());
  CHECK_FALSE(has(plan("--link 10Mbit/100ms --shard optimizer").first, "exchange gradients whole"));
}

TEST_CASE("plan gpt says which exchange pays on a link: local steps, factors or whole gradients", "[gpt][float_plan]") {
  const TempDir folder;
  const auto plan = [&](const std::string& more) { return plan_of_small(folder.path(), more); };
  // The ways of an advice are those of the tables, of each kind the best.
  const auto check = [](const nlohmann::json& json) {
    const nlohmann::json& advice = json["advice"];
    const double alone = advice["computing_seconds_per_token"];
    const nlohmann::json& whole = json["compressions"][0];
    CHECK(alone == Approx(whole["computing_share"].get<double>() * whole["seconds_per_token"].get<double>()));
    REQUIRE(advice["ways"].size() == 3);
    CHECK(advice["ways"][0]["seconds_per_token"] == whole["seconds_per_token"]);
    for (const nlohmann::json& each : json["compressions"]) {
      CHECK(each["seconds_per_token"].get<double>() * each["tokens_per_second"].get<double>() == Approx(1));
      if (each["compress_rank"] != advice["ways"][1]["compress_rank"]) continue;
      CHECK(advice["ways"][1]["seconds_per_token"] == each["seconds_per_token"]);
    }
    for (const nlohmann::json& each : json["local_steps"]) {
      if (each["inner_steps"] != advice["ways"][2]["inner_steps"]) continue;
      CHECK(advice["ways"][2]["seconds_per_token"] == each["seconds_per_token"]);
      CHECK(advice["ways"][2]["waiting_share"] == 1 - each["computing_share"].get<double>());
    }
    return advice;
  };
  const auto [slow, slow_json] = plan("--link 10Mbit/100ms");
  CHECK(has(slow, "per token"));
  const nlohmann::json local = check(slow_json);
  CHECK(local["exchange"] == "local_steps");
  CHECK(local["seconds_per_token"] <= 1.05 * local["computing_seconds_per_token"].get<double>());
  CHECK(has(slow, fmt::format("links of 10Mbit/100ms: local steps (--exchange local --inner-steps {}), ",
                              local["inner_steps"].get<int>())));
  CHECK(has(slow, ", since whole gradients take "));
  CHECK(has(slow, " and factors (--compress-rank "));
  CHECK(local["ways"][0]["waiting_share"] > 0.9);
  const auto [middle, middle_json] = plan("--link 1Gbit/1ms");
  CHECK(check(middle_json)["exchange"] == "local_steps");
  CHECK(has(middle, ": local steps (--exchange local --inner-steps 10), "));
  const auto [fast, fast_json] = plan("--link 1000Gbit/1us");
  CHECK(check(fast_json)["exchange"] == "whole");
  CHECK(has(fast, "links of 1000Gbit/1us: whole gradients, "));
  CHECK(has(fast, "waiting), which saves little or nothing; computing alone takes "));
  // The time in which Muon computes is no waiting, and local steps have it, too.
  const auto [muon, muon_json] = plan("--link 1000Gbit/1us --optimizer muon");
  CHECK(check(muon_json)["exchange"] == "whole");
  CHECK(muon_json["advice"]["waiting_share"] < 0.05);
  CHECK(muon_json["local_steps"][0]["step_seconds"] > 1.05 * fast_json["local_steps"][0]["step_seconds"].get<double>());
  // Those that do not go together, and one rank, have none.
  for (const char* more : {"--link 10Mbit/100ms --shard optimizer", "--ranks 1"}) {
    const auto [text, json] = plan(more);
    CHECK(json["advice"].is_null());
    CHECK_FALSE(has(text, "advice"));
  }
}

TEST_CASE("plan gpt shows that shards of a host and copies on others spare the link", "[gpt][float_plan]") {
  const TempDir folder;
  const auto plan = [&](const std::string& options) {
    const Outcome outcome =
        run_program(folder.path(), words_of("plan gpt --net gpt2-124m --batch 64 --memory 64GiB --ranks 8 --gflops 200 "
                                            "--tensor 1 --pipeline 1 --ranks-per-host 4 --link 100Mbit/1ms "
                                            "--micro-batch 2 --shard parameters --json plan.json " +
                                            options));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return nlohmann::json::parse(read_file(folder / "plan.json"))["grids"][0];
  };
  const nlohmann::json all = plan("");
  const nlohmann::json host = plan("--shard-ranks 4");
  const nlohmann::json factors = plan("--shard-ranks 4 --compress-rank 128");
  const auto seconds = [](const nlohmann::json& grid) { return grid["step_seconds"].get<double>(); };
  // Parameters cross the link for every pass, gradients of shards once a step, their factors are smaller.
  CHECK(seconds(host) < 0.6 * seconds(all));
  CHECK(seconds(factors) < 0.8 * seconds(host));
  const auto memory = [](const nlohmann::json& grid, const char* what) {
    return grid["stages"][0]["memory"][what].get<double>();
  };
  CHECK(memory(host, "optimizer") > 1.8 * memory(all, "optimizer"));
  CHECK(memory(host, "optimizer") < 2.2 * memory(all, "optimizer"));
}
