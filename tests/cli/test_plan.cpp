// bitloom plan, bitloom simulate, and runs that are held to a plan.
#include <nlohmann/json.hpp>
#include <string>

#include "core/metrics.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

// Options of a small net, as quick_training() has it.
const Args small = {
    "--net", "tiny",     "--data", "synth",        "--set", "layer1.width=64", "--set", "layer2.width=64", "--max-train",
    "300",   "--epochs", "1",      "--validation", "40",    "--warmup-steps",  "0"};
const Args sparse = {"--exchange", "sparse", "--workers", "6", "--batch", "32", "--statistics-every", "1"};

Args command(const Args& verb, const Args& more) { return with(with(verb, small), more); }

}  // namespace

TEST_CASE("a plan tells what a run needs, and the run keeps to it", "[plan]") {
  const TempDir folder;
  const Outcome plan =
      run_program(folder.path(), command({"plan"}, with(sparse, {"--hosts", "3", "--link", "10Mbit/20ms", "--updates", "8",
                                                                 "--price-per-hour", "0.1", "--json", "plan.json"})));
  INFO(plan.out << plan.err);
  REQUIRE(plan.code == 0);
  for (const char* words : {"stage layer1, measured here", "stage layer2, measured here", "break-even", "memory of a host",
                            "advice:", "all stages:", "to their end", "10Mbit/20ms"}) {
    CAPTURE(words);
    CHECK(has(plan.out, words));
  }
  const auto json = nlohmann::json::parse(read_file(folder / "plan.json"));
  REQUIRE(json["stages"].size() == 2);
  // 3 x 3 x 128 x 64 and 3 x 3 x 64 x 64 weights.
  CHECK(has(plan.out, "all stages: gradients of all 110592 weights at once, as f32, 442368 bytes per worker and update"));
  CHECK(json["stages"][0]["measured"]["updates"].size() == 8);
  // Three hosts have two workers each, the two that are left three.
  const auto& memory = json["stages"][0]["modelled"];
  const std::uint64_t residuals = json["stages"][0]["measured"]["residual_bytes_per_worker"];
  CHECK(residuals > 0);
  CHECK(memory["survivor_memory_bytes"].get<std::uint64_t>() == memory["host_memory_bytes"].get<std::uint64_t>() + residuals);
  CHECK(has(plan.out, "when half of the hosts are gone and the others carry their workers"));
  CHECK(json["stages"][0]["modelled"]["sparse"]["update_seconds"].get<double>() > 0.04);

  const Args held = {"--cache", "none", "--max-test", "100", "--plan", "plan.json", "--out"};
  const Args train = {"train", "binary"};
  const Outcome kept = run_ranks(folder.path(), 3, with(command(train, sparse), with(held, {"kept"})));
  INFO(kept.out << kept.err);
  CHECK(kept.code == 0);
  const Outcome dense =
      run_ranks(folder.path(), 2, with(command(train, {"--exchange", "dense", "--batch", "32"}), with(held, {"dense"})));
  INFO(dense.out << dense.err);
  CHECK(dense.code == 0);

  const Args wider = {"--set", "layer1.kernel=5", "--batch", "32"};
  const Outcome more = run_ranks(folder.path(), 2, with(command(train, wider), with(held, {"wider"})));
  CHECK(more.code == 3);
  CHECK(has(more.err, "--plan: stage 'layer1': a process puts into the sums of an update"));
  const Outcome longer =
      run_program(folder.path(), with(command(train, with(sparse, {"--threshold", "0.5"})), with(held, {"longer"})));
  CHECK(longer.code == 3);
  CHECK(has(longer.err, "--plan: stage 'layer1': a worker sent per update"));
  write_file(folder / "plan.json", "{}");
  const Outcome none = run_program(folder.path(), with(command(train, sparse), with(held, {"none"})));
  CHECK(none.code == 2);
  CHECK(has(none.err, "is not what `bitloom plan --json` writes"));
}

TEST_CASE("messages by a ratio are longer at the start of a stage, and as long as planned on average", "[plan]") {
  const TempDir folder;
  const Args run = with(sparse, {"--net", "tiny", "--data", "synth", "--set", "layer1.width=64", "--max-train", "1500",
                                 "--epochs", "3", "--validation", "40", "--warmup-steps", "0", "--compression", "40"});
  const Outcome plan = run_program(folder.path(), with(with({"plan"}, run), {"--updates", "30", "--json", "plan.json"}));
  INFO(plan.out << plan.err);
  REQUIRE(plan.code == 0);
  const auto epochs_of = [&](const Args& more) {
    const Outcome outcome = run_program(
        folder.path(),
        with(with({"train", "binary"}, run), with({"--cache", "none", "--max-test", "100", "--plan", "plan.json"}, more)));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 0);
    std::vector<nlohmann::json> epochs;
    for (const nlohmann::json& line : read_metrics(folder / more.back() / "metrics.jsonl")) {
      if (line["event"] == "epoch" && line["stage"] == "layer1") epochs.push_back(line["exchange"]);
    }
    REQUIRE(epochs.size() == 3);
    return epochs;
  };
  const auto wanted = [](const nlohmann::json& epoch) {
    return epoch["bytes_wanted"].get<double>() / epoch["bytes_wanted_mean"].get<double>();
  };
  const std::vector<nlohmann::json> falling = epochs_of({"--out", "falling"});
  // 0.3 + 0.7 (1 + cos), of thirds of half a turn.
  CHECK(wanted(falling.front()) == Approx(1.58).epsilon(0.02));
  CHECK(wanted(falling.back()) == Approx(0.42).epsilon(0.02));
  CHECK(falling[0]["bytes_per_worker_update"].get<double>() > 1.5 * falling[2]["bytes_per_worker_update"].get<double>());
  double sum = 0;
  for (const nlohmann::json& epoch : falling) sum += wanted(epoch);
  CHECK(sum / 3 == Approx(1).epsilon(0.01));
  for (const nlohmann::json& epoch : epochs_of({"--last-messages", "1", "--out", "level"})) CHECK(wanted(epoch) == Approx(1));
}

// The essay "Distributed training", "Sparse gradients": 256 * 3 * 3 * 256 * 10 weights, 23 MB of a worker, 1.5 TB of 65,536.
TEST_CASE("a plan counts the essay's net as the essay does", "[plan]") {
  const TempDir folder;
  const Outcome plan = run_program(
      folder.path(), {"plan", "--net", "essay", "--data", "synth", "--max-train", "80", "--validation", "40", "--workers", "2",
                      "--batch", "2", "--compression", "300", "--updates", "2", "--json", "plan.json"});
  INFO(plan.out << plan.err);
  REQUIRE(plan.code == 0);
  CHECK(has(plan.out, "all stages: gradients of all 5898240 weights at once, as f32, 23592960 bytes"));
  const auto all = nlohmann::json::parse(read_file(folder / "plan.json"))["all_stages"];
  CHECK(all["dense_f32_bytes"].get<double>() * 65536 == Approx(1.546e12).epsilon(0.001));
  // A stage has a tenth of the weights, and a head.
  CHECK(all["dense_f32_bytes"].get<double>() / all["worker_bytes"].get<double>() > 2900);
}

TEST_CASE("very many workers are simulated in one process", "[plan]") {
  const TempDir folder;
  const Outcome many = run_program(folder.path(), command({"simulate"}, {"--workers", "500", "--residuals", "none", "--tree",
                                                                         "8", "--updates", "3", "--json", "many.json"}));
  INFO(many.out << many.err);
  REQUIRE(many.code == 0);
  CHECK(has(many.out, "level 3 "));
  CHECK(has(many.out, "--tree 499 "));
  const auto json = nlohmann::json::parse(read_file(folder / "many.json"));
  CHECK(json["stages"][0]["measured"]["levels"].size() == 4);
  CHECK(json["stages"][0]["measured"]["images_per_update"] == 500);
  const Outcome greedy = run_program(folder.path(), command({"simulate"}, {"--workers", "500", "--memory-limit", "1MiB"}));
  CHECK(greedy.code == 2);
  CHECK(has(greedy.err, "--residuals none"));
  const Outcome few = run_program(folder.path(), command({"simulate"}, {"--workers", "5", "--hosts", "6"}));
  CHECK(few.code == 2);
  CHECK(has(few.err, "--hosts: 6 hosts for 5 workers"));
  const Outcome link = run_program(folder.path(), command({"plan"}, {"--link", "fast"}));
  CHECK(link.code == 2);
  CHECK(has(link.err, "--link: 'fast'; expected a rate and a latency"));
}
