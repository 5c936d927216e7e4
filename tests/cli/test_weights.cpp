// Weights: what they keep between stages, and what their flips would do.
#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("layers that train again with sparse messages do so alike on any number of ranks, after a stop, from a cache",
          "[train][mpi]") {
  const TempDir folder;
  write_file(folder / "net.json", R"({"name": "again", "layers": [{"name": "a", "inputs": ["input"], "width": 32},
      {"name": "b", "inputs": ["a"], "pool": "or", "width": 32}], "stages": [{"train": ["a"], "epochs": 1},
      {"train": ["b"], "epochs": 1}, {"name": "again", "train": ["a", "b"], "epochs": 2}], "classifier": ["b"]})");
  const auto training = [](const std::string& out, const Args& more = {"--cache", "none"}) {
    return with(
        {"train",   "binary", "--net",      "./net.json", "--data",    "synth", "--max-train", "200", "--max-test", "50",
         "--batch", "40",     "--exchange", "sparse",     "--workers", "4",     "--threshold", "1.5", "--out",      out},
        more);
  };
  const auto same = [&](const std::string& other) {
    CHECK(same_tensors(folder / "one/model.safetensors", folder / other / "model.safetensors"));
  };
  REQUIRE(run_program(folder.path(), training("one")).code == 0);
  REQUIRE(run_ranks(folder.path(), 2, training("two")).code == 0);
  same("two");
  // In the last stage, then in the first step of it.
  for (const char* steps : {"11", "9"}) {
    const std::string out = fmt::format("stopped{}", steps);
    CHECK(run_ranks(folder.path(), 2, with(training(out), {"--stop-after-steps", steps})).code == 4);
    REQUIRE(run_program(folder.path(), {"train", "binary", "--resume", "--out", out}).code == 0);
    same(out);
  }
  REQUIRE(run_program(folder.path(), training("other", {"--cache", "kept", "--set", "again.learning_rate=0.02"})).code == 0);
  const Outcome cached = run_ranks(folder.path(), 2, training("cached", {"--cache", "kept"}));
  CHECK(has(cached.out, "2 of 3 stages were not trained but taken from the cache"));
  same("cached");
}

TEST_CASE("flips of a run's weights are studied, kept and drawn", "[train]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), quick_training("run")).code == 0);
  const Outcome shown = run_program(folder.path(), {"inspect", "run", "--flips", "--images", "20"});
  INFO(shown.out << shown.err);
  REQUIRE(shown.code == 0);
  CHECK(has(shown.out, "over 20 training images and 20 validation images"));
  CHECK(has(shown.out, "% lower it by themselves, "));
  const nlohmann::json kept = nlohmann::json::parse(read_file(folder / "run/flips.json"));
  const Outcome again = run_program(folder.path(), {"inspect", "run", "--flips", "--images", "20", "--json"});
  CHECK(nlohmann::json::parse(again.out) == kept);
  REQUIRE(kept["layers"].size() == 2);
  for (const nlohmann::json& layer : kept["layers"]) {
    CHECK(layer["lower"] > 0);
    CHECK(layer["lower"] < 1);
    const nlohmann::json& first = layer["together"][0];
    CHECK(first["flips"] == 1);
    CHECK(std::fabs(first["predicted"].get<double>() - first["realised"].get<double>()) < 1e-5);
  }
  REQUIRE(run_program(folder.path(), {"report", "run"}).code == 0);
  CHECK(has(read_file(folder / "run/report.html"), "What flips would do"));
  std::filesystem::copy(folder / "run", folder / "bare", std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder / "bare/flips.json");
  REQUIRE(run_program(folder.path(), {"report", "run", "bare", "--out", "both.html"}).code == 0);
  const std::string both = read_file(folder / "both.html");
  CHECK(has(both, "What flips would do"));
  CHECK(has(both, "(<code>bitloom inspect RUN --flips</code>): bare."));

  const auto refused = [&](const Args& args, int code, const char* text) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == code);
    CHECK(has(outcome.err, text));
  };
  refused({"inspect", "tiny", "--flips"}, 2, "--flips: tiny is a net without trained weights; expected a run");
  refused({"inspect", "run", "--images", "20"}, 2, "--images: 20 has no effect; it needs --flips");
  std::filesystem::create_directory(folder / "alone");
  std::filesystem::copy_file(folder / "run/model.safetensors", folder / "alone/model.safetensors");
  refused({"inspect", "alone/model.safetensors", "--flips"}, 3, "is in no run's folder, whose images it needs");
}
