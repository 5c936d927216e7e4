// Runs that train several nets, and rank them.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a search trains every combination and ranks them", "[train]") {
  const TempDir folder;
  Args args = quick_training("found");
  *std::find(args.begin(), args.end(), "none") = "shared";  // the cache
  const Outcome search =
      run_program(folder.path(), with(args, {"--search", "layer2.width=32,64", "--search", "layer2.kernel=3"}));
  INFO(search.out << search.err);
  REQUIRE(search.code == 0);
  CHECK(std::filesystem::exists(folder / "found/layer2.width=32,layer2.kernel=3/model.safetensors"));
  CHECK(std::filesystem::exists(folder / "found/layer2.width=64,layer2.kernel=3/model.safetensors"));
  const auto ranking = nlohmann::json::parse(read_file(folder / "found/search.json"));
  REQUIRE(ranking.size() == 2);
  CHECK(ranking[0]["validation_accuracy"].get<double>() >= ranking[1]["validation_accuracy"].get<double>());
  // The second variant finds the layer that both have in the cache.
  CHECK(search.out.find("layer1: 8 steps of") == search.out.rfind("layer1: 8 steps of"));

  const Outcome again = run_program(folder.path(), {"train", "binary", "--resume", "--out", "found"});
  CHECK(again.code == 0);
  CHECK_FALSE(has(again.out, "steps of"));

  // A part of its settings was taken for all of them.
  const Args set{"train", "binary", "--resume", "--out", "found", "--set", "layer1.width=64"};
  const Outcome part = run_program(folder.path(), set);
  CHECK(part.code == 2);
  CHECK(has(part.err, "--resume: the search in found began with other options"));
  CHECK(run_program(folder.path(), with(set, {"--set", "layer2.width=64"})).code == 0);

  // The folder of a search was called one without a run.
  const Outcome compared = run_program(folder.path(), {"report", "found", "--out", "found.html"});
  INFO(compared.err);
  REQUIRE(compared.code == 0);
  const std::string page = read_file(folder / "found.html");
  CHECK(has(page, "<h1>2 runs</h1>"));
  for (const nlohmann::json& variant : ranking) CHECK(has(page, "found/" + variant["name"].get<std::string>()));
  for (const char* verb : {"eval", "inspect"}) {
    const Outcome whole = run_program(folder.path(), {verb, "found"});
    CHECK(whole.code == 3);
    CHECK(has(whole.err, "found: the folder holds 2 runs; expected one of them, found/layer2.width=32,layer2.kernel=3: "));
  }

  // Its folder is taken, by a search as by a single run.
  const std::string options = read_file(folder / "found/options.ini");
  for (const Args& more : {Args{}, Args{"--search", "layer2.width=32"}}) {
    const Outcome over = run_program(folder.path(), with(args, more));
    CHECK(over.code == 2);
    CHECK(has(over.err, "--out: found holds a run already"));
  }
  CHECK(read_file(folder / "found/options.ini") == options);
}

TEST_CASE("a search in rounds trains the better half for longer, and goes on where it was stopped", "[train]") {
  const TempDir folder;
  const Args args = with(quick_training("found"), {"--epochs", "4", "--validation", "30", "--search",
                                                   "layer2.width=32,64,96,128", "--search-rounds", "3"});
  const Outcome search = run_program(folder.path(), args);
  INFO(search.out << search.err);
  REQUIRE(search.code == 0);
  for (const char* told : {"round 1 of 3: 4 nets, about 1/4 of the epochs", "round 2 of 3: 2 nets, about 1/2 of the epochs",
                           "round 3 of 3: 1 net, all epochs"}) {
    CHECK(has(search.out, told));
  }
  const auto ranking = nlohmann::json::parse(read_file(folder / "found/search.json"));
  REQUIRE(ranking.size() == 4);
  const auto run_of = [&](std::size_t place, std::size_t round) {
    return folder / "found" / (round == 3 ? "" : fmt::format("round-{}", round)) / ranking[place]["name"].get<std::string>();
  };
  const std::vector<std::size_t> rounds{3, 2, 1, 1};
  for (std::size_t place = 0; place < 4; ++place) {
    INFO(place);
    CHECK(ranking[place]["round"] == rounds[place]);
    for (std::size_t round = 1; round <= 3; ++round) {
      CHECK(std::filesystem::exists(run_of(place, round) / "model.safetensors") == (round <= rounds[place]));
    }
    const auto net = nlohmann::json::parse(read_file(run_of(place, rounds[place]) / "net.json"));
    const std::size_t epochs = std::size_t{1} << (rounds[place] - 1);
    for (const auto& stage : net["stages"]) CHECK(stage["epochs"] == epochs);
    CHECK(has(read_file(run_of(place, rounds[place]) / "options.ini"), fmt::format("\nepochs = {}\n", epochs)));
  }
  // Who leaves a round was no better in it than who goes on.
  const auto accuracy = [&](std::size_t place, std::size_t round) {
    const std::string metrics = read_file(run_of(place, round) / "metrics.jsonl");
    const std::size_t result = metrics.rfind("{\"", metrics.rfind("\"event\":\"result\""));
    return nlohmann::json::parse(metrics.substr(result))["validation_accuracy"].get<double>();
  };
  CHECK(std::min(accuracy(0, 1), accuracy(1, 1)) >= std::max(accuracy(2, 1), accuracy(3, 1)));
  CHECK(accuracy(0, 2) >= accuracy(1, 2));
  CHECK(std::abs(ranking[1]["validation_accuracy"].get<double>() - accuracy(1, 2)) <= 0.00005);

  // A run alone learns the same in as many epochs.
  const Outcome alone = run_program(
      folder.path(),
      with(quick_training("alone"), {"--epochs", "2", "--validation", "30", "--set", ranking[1]["name"].get<std::string>()}));
  REQUIRE(alone.code == 0);
  CHECK(same_tensors(folder / "alone/model.safetensors", run_of(1, 2) / "model.safetensors"));

  // As if it had been stopped in the second round, and before the last; accuracies of 30 images have more than four digits.
  const std::string whole = read_file(folder / "found/search.json");
  const Args resume{"train", "binary", "--resume", "--out", "found"};
  for (const std::size_t round : {2, 3}) {
    INFO(round);
    std::filesystem::remove(folder / "found/search.json");
    std::filesystem::remove_all(run_of(0, 3));
    if (round == 2) {
      std::filesystem::remove(folder / "found/round-2/search.json");
      std::filesystem::remove_all(run_of(1, 2));
    } else {  // whose runs may lie on another host
      std::filesystem::remove_all(run_of(2, 1));
    }
    const Outcome again = run_program(folder.path(), resume);
    INFO(again.out << again.err);
    CHECK(again.code == 0);
    CHECK(read_file(folder / "found/search.json") == whole);
    CHECK(again.out.find(fmt::format("round {} of 3", round)) < again.out.find("steps of"));
  }
  CHECK_FALSE(has(run_program(folder.path(), resume).out, "steps of"));

  // It goes on as it began, or not at all.
  for (const Args& more :
       {Args{"--search-rounds", "2"}, Args{"--epochs", "8"}, Args{"--search", "layer2.width=32,64,96,160"}}) {
    const Outcome other = run_program(folder.path(), with(resume, more));
    CHECK(other.code == 2);
    CHECK(has(other.err, "--resume: the search in found began with other options; expected those in found/options.ini"));
  }
  write_file(folder / "found/round-1/search.json", "[]");
  const Outcome damaged = run_program(folder.path(), resume);
  CHECK(damaged.code == 3);
  CHECK(has(damaged.err, "found/round-1/search.json: expected the validation accuracy of each of the round's 4 nets"));

  // Runs of all rounds but the one that was taken away are compared.
  REQUIRE(run_program(folder.path(), {"report", "found", "--out", "found.html"}).code == 0);
  const std::string page = read_file(folder / "found.html");
  CHECK(has(page, "<h1>6 runs</h1>"));
  CHECK(has(page, "found/round-2/" + ranking[1]["name"].get<std::string>()));
  CHECK(has(run_program(folder.path(), {"eval", "found"}).err,
            "found: the folder holds 6 runs; expected one of them, found/layer2"));

  const Outcome many =
      run_program(folder.path(), with(quick_training("many"), {"--search", "layer2.width=32,64", "--search-rounds", "3"}));
  CHECK(many.code == 2);
  CHECK(has(many.err, "--search-rounds: 3 rounds for 2 nets; expected at most 2"));
  CHECK_FALSE(std::filesystem::exists(folder / "many"));
}
