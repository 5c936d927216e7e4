// bitloom plan cnn, beside what bitloom train cnn says of the same training.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/file.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

Json plan_of(const std::filesystem::path& folder, const Args& more) {
  const Outcome outcome = run_program(folder, with({"plan", "cnn", "--json", "plan.json"}, more));
  INFO(outcome.out << outcome.err);
  REQUIRE(outcome.code == 0);
  return Json::parse(read_file(folder / "plan.json"));
}

}  // namespace

TEST_CASE("a plan of a convolutional net has the memory that its training announces", "[plan][cnn]") {
  const TempDir folder;
  const Args training = {"--net", "tiny", "--batch", "20"};
  const Outcome planned = run_program(folder.path(), with({"plan", "cnn"}, training));
  REQUIRE(planned.code == 0);
  const Outcome trained = run_program(folder.path(), with({"train", "cnn", "--data", "synth", "--max-train", "60", "--max-test",
                                                           "20", "--validation", "20", "--steps", "2", "--out", "run"},
                                                          training));
  REQUIRE(trained.code == 0);
  // "memory: A parameters, B gradients, ...: C in all"
  const std::size_t begin = trained.out.find("memory: ") + 8;
  const std::string parameters = trained.out.substr(begin, trained.out.find(" parameters", begin) - begin);
  const std::size_t last = trained.out.find(": ", begin) + 2;
  const std::string all = trained.out.substr(last, trained.out.find(" in all", last) - last);
  INFO(planned.out << trained.out);
  CHECK(has(planned.out, "parameters                   " + parameters + "\n"));
  const std::size_t row = planned.out.find("  all ");
  CHECK(has(planned.out.substr(row, planned.out.find('\n', row) - row), " " + all));
}

TEST_CASE("few bits of a convolutional net's activations keep less for the backward pass", "[plan][cnn]") {
  const TempDir folder;
  const Json plan = plan_of(folder.path(), {"--net", "resnet18", "--dtype", "bf16", "--memory", "8GiB"});
  const Json& rows = plan.at("savings");
  REQUIRE(rows.size() == 5);  // no blocks are computed again
  for (std::size_t i = 1; i < rows.size(); ++i) {
    INFO(rows[i].dump());
    CHECK(rows[i]["stash_bytes_per_image"].get<double>() < rows[i - 1]["stash_bytes_per_image"].get<double>());
    CHECK(rows[i]["images"].get<double>() >= rows[i - 1]["images"].get<double>());
  }
  // Novikov et al. 2022, section 4.2: 3 bits in place of 16.
  CHECK(rows[0]["stash_bytes_per_image"].get<double>() > 1.2 * rows[2]["stash_bytes_per_image"].get<double>());
}

TEST_CASE("a plan of a convolutional net on ranks compares whole gradients with local steps", "[plan][cnn]") {
  const TempDir folder;
  const Json plan = plan_of(
      folder.path(), {"--net", "airbench94", "--ranks", "8", "--link", "10Mbit/100ms", "--gflops", "1000", "--memory", "8GiB"});
  // Three workers do not divide the batch, which each has for itself; another optimiser needs no rate here.
  const Json three = plan_of(folder.path(), {"--net", "tiny", "--ranks", "3", "--batch", "128", "--gflops", "100", "--memory",
                                             "8GiB", "--pipeline", "3", "--optimizer", "adamw"});
  CHECK(three["local_steps"].size() > 1);
  const auto is_data_parallel = [](const Json& grid) { return grid["data"] == 8; };
  const auto whole = std::find_if(plan["grids"].begin(), plan["grids"].end(), is_data_parallel);
  REQUIRE(whole != plan["grids"].end());
  REQUIRE(plan["local_steps"].size() > 1);
  CHECK(plan["compressions"].empty());
  REQUIRE(plan["advice"]["ways"].size() == 2);
  CHECK(plan["advice"]["ways"][0]["seconds_per_image"] == (*whole)["seconds_per_image"]);
  CHECK(plan["advice"]["exchange"] == "local_steps");
  // Without Lookahead's slow weights, which local steps do without.
  const Json without = plan_of(folder.path(), {"--net", "airbench94", "--ranks", "8", "--link", "10Mbit/100ms", "--gflops",
                                               "1000", "--memory", "8GiB", "--lookahead", "0"});
  const std::uint64_t worker = without["local_steps"][0]["memory_bytes"];
  CHECK((*whole)["memory"]["total"] > worker);
  double before = (*whole)["step_seconds"];
  for (const Json& each : plan["local_steps"]) {
    CHECK(each["step_seconds"].get<double>() < before);
    before = each["step_seconds"];
    // A sixteenth of the parameters in a bit each, and where they are.
    CHECK(each["message_bytes"].get<double>() < 0.055 * plan["parameters"].get<double>());
    CHECK(each["memory_bytes"] == worker);
    CHECK(each["fits"] == true);
    // Shared values, a copy, momentum, error feedback, what is under way.
    CHECK(each["kept_bytes"] == 5 * sizeof(float) * plan["parameters"].get<std::uint64_t>());
  }
  const Args short_of_memory = {"plan", "cnn", "--net", "airbench94", "--ranks", "8", "--gflops", "1000", "--memory", "1MiB"};
  CHECK(has(run_program(folder.path(), short_of_memory).out, ", which does not fit, and "));
}

TEST_CASE("plans of convolutional nets refuse what their training would", "[plan][cnn]") {
  const TempDir folder;
  const auto error = [&](const Args& more) {
    const Outcome outcome = run_program(folder.path(), with({"plan", "cnn"}, more));
    CHECK(outcome.code == 2);
    return outcome.err;
  };
  CHECK(has(error({"--ranks", "4", "--tensor", "2", "--gflops", "10"}), "unknown option --tensor"));
  CHECK(has(error({"--ranks", "4", "--pipeline", "3", "--gflops", "10"}), "--pipeline: 3; expected a divisor of 4 ranks"));
  CHECK(
      has(error({"--ranks", "4", "--pipeline", "4", "--shard", "optimizer", "--gflops", "10"}), "--pipeline 4 leaves no rank"));
  CHECK(has(error({"--link", "1Mbit/1ms"}), "--link"));
  CHECK(has(error({"--epochs", "3"}), "--epochs"));  // changes nothing
  CHECK(has(error({"--net", "resnet19"}), "resnet18"));
  CHECK(has(error({"--batch", "30", "--micro-batch", "7"}), "--micro-batch"));
  CHECK(has(error({"--net", "tiny", "--image-size", "2"}), "max_pool"));
}
