// `plan dalle`, as a user asks it: the sizes of the paper, in one process and on a grid.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom::test;
using Json = nlohmann::json;

TEST_CASE("plan dalle tells what each size takes, from its shapes alone", "[dalle][float_plan]") {
  const TempDir folder;
  const auto planned = [&](const std::string& options) {
    const Outcome outcome = run_program(folder.path(), words_of("plan dalle --json plan.json " + options));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return std::pair(outcome.out, Json::parse(read_file(folder / "plan.json")));
  };
  std::uint64_t before = 0;
  for (const char* net : {"tiny", "emoji", "emoji-16", "2.8b", "5.6b", "12b"}) {
    INFO(net);
    const auto [out, json] = planned(std::string("--memory 2TiB --batch 8 --net ") + net);
    CHECK(has(out, "kept for the backward pass, and the most pairs at once within 2.0 TiB"));
    CHECK(json["parameters"].get<std::uint64_t>() >= before);
    before = json["parameters"].get<std::uint64_t>();
    CHECK(json["memory"]["parameters"].get<std::uint64_t>() == 4 * before);
    CHECK(json["savings"].size() == 6);
    CHECK(json["savings"].back()["pairs"] > json["savings"].front()["pairs"]);
  }
  const auto [out, json] = planned("--net 12b --memory 2TiB --batch 1");
  CHECK(has(out, "12 x 64 x 3968^2"));
  CHECK(json["matrices"] == 12'092'178'432ULL);
  // Forward and backward: 6 operations for each number of the matrices and token, and some for attention and logits.
  CHECK(json["operations_per_pair"].get<double>() > 6 * 12.09e9 * 1280);
  CHECK(json["operations_per_pair"].get<double>() < 1.1 * 6 * 12.09e9 * 1280);
}

TEST_CASE("plan dalle shows grids for the 12-billion size, and one of its 8 shards a host", "[dalle][float_plan]") {
  const TempDir folder;
  const std::string common =
      "plan dalle --net 12b --batch 1024 --dtype bf16 --recompute block --memory 16GiB --ranks 1024 --ranks-per-host 8 "
      "--host-link 1000Gbit/5us --link 100Gbit/10us --gflops 60000 --shard parameters ";
  const Outcome all = run_program(folder.path(), words_of(common));
  INFO(all.out << all.err);
  REQUIRE(all.code == 0);
  CHECK(has(all.out, "best first"));
  const Outcome one = run_program(folder.path(), words_of(common + "--tensor 1 --pipeline 1 --json one.json"));
  INFO(one.out << one.err);
  REQUIRE(one.code == 0);
  const Json grid = Json::parse(read_file(folder / "one.json"))["grids"][0];
  CHECK(grid["data"] == 1024);
  CHECK(grid["fits"] == true);
  // Shards within a host, and between hosts factors of their gradients, as the paper has it.
  const Outcome compressed = run_program(
      folder.path(),
      words_of(common +
               "--shard-ranks 8 --compress-rank 512 --compress-format 1-6-9 --tensor 1 --pipeline 1 --json less.json"));
  INFO(compressed.out << compressed.err);
  REQUIRE(compressed.code == 0);
  const Outcome dense =
      run_program(folder.path(), words_of(common + "--shard-ranks 8 --tensor 1 --pipeline 1 --json dense.json"));
  REQUIRE(dense.code == 0);
  const auto seconds = [&](const char* file) {
    return Json::parse(read_file(folder / file))["grids"][0]["step_seconds"].get<double>();
  };
  CHECK(seconds("less.json") < 0.5 * seconds("dense.json"));
}

TEST_CASE("plan dalle refuses what is impossible or has no effect", "[dalle][float_plan]") {
  const TempDir folder;
  const std::vector<std::pair<std::string, std::string>> table{
      {"--net 13b", "--net: '13b'; did you mean '12b'?"},
      {"--tensor 2", "--tensor: 2 has no effect; it needs --ranks"},
      {"--recompute stage", "--recompute: stage has no effect; it needs --ranks"},
      {"--net 12b --memory 1GiB", "--micro-batch: one pair takes "},
      {"--net 12b --ranks 8 --tensor 4 --gflops 100", "--tensor: 4; expected a divisor of the 62 heads"},
      {"--grid 300", "--grid: '300' is out of range; expected a whole number from 0 to 256"},
      {"--heads 7", "--heads: 7; expected a divisor of the width"}};
  for (const auto& [options, message] : table) {
    INFO(options);
    const Outcome outcome = run_program(folder.path(), words_of("plan dalle " + options));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, message));
  }
}
