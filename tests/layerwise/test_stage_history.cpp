#include "layerwise/stage_history.h"

#include <map>

#include "core/metrics.h"
#include "tests/layerwise/small_run.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

RunOptions cached(const TempDir& folder, const char* name, const NetSpec& net = two_layers()) {
  RunOptions options = options_for(folder / name, net);
  options.cache = folder / "cache";
  options.cache_limit = std::uint64_t{1} << 28U;
  return options;
}

std::vector<Json> lines_of(const RunOptions& options, const char* event) {
  std::vector<Json> lines;
  for (const Json& line : read_metrics(options.folder / "metrics.jsonl")) {
    if (line["event"] == event) lines.push_back(line);
  }
  return lines;
}

// The epochs without their times, which begin with the stage when they are reused.
std::vector<Json> curves(const RunOptions& options) {
  std::vector<Json> epochs = lines_of(options, "epoch");
  for (Json& epoch : epochs) {
    epoch.erase("seconds");
    epoch.erase("reused");
  }
  return epochs;
}

}  // namespace

// A run whose stages came from the cache had no curves, and did not say whose stages they were.
TEST_CASE("a reused stage brings its curves, and says who trained it", "[history]") {
  const TempDir folder;
  const RunOptions first = cached(folder, "first");
  const RunResult trained = train_net(first);
  CHECK(trained.stages[0].images == 160);
  CHECK(trained.stages[1].images == 240);

  Lines lines;
  mpi::Comm comm;
  const RunOptions second = cached(folder, "second");
  const RunResult reused = train(simd::kernels(), comm, second, splits(), lines);
  CHECK(reused.images == 0);
  CHECK(curves(second) == curves(first));
  REQUIRE(lines_of(second, "epoch").size() == 5);
  for (const Json& epoch : lines_of(second, "epoch")) CHECK(epoch["reused"] == true);
  for (const Json& epoch : lines_of(first, "epoch")) CHECK_FALSE(epoch.contains("reused"));
  const std::vector<Json> stages = lines_of(second, "stage");
  REQUIRE(stages.size() == 2);
  for (std::size_t s = 0; s < 2; ++s) {
    CHECK(stages[s]["reused"] == true);
    CHECK(stages[s]["images"] == 0);
    CHECK(stages[s]["trained"]["run"] == first.folder.string());
    CHECK(stages[s]["trained"]["images"] == trained.stages[s].images);
    CHECK(stages[s]["trained"]["seconds"] == trained.stages[s].seconds);
    CHECK(reused.stages[s].trained_by.run == first.folder.string());
    // Times of a stage begin with it, and end before it does.
    const Json last = lines_of(second, "epoch")[s == 0 ? 1 : 4];
    CHECK(last["seconds"].get<double>() >= 0);
    CHECK(last["seconds"].get<double>() <= trained.stages[s].seconds);
    CHECK(has(lines.text(), fmt::format("{}: not trained, taken from the cache; it was trained in", s == 0 ? "a" : "b")));
  }
  CHECK(has(lines.text(), "by " + first.folder.string()));

  // One stage reused, one trained; what a third run reuses of both names each one's own run.
  const RunOptions other = cached(folder, "other", two_layers(24, 32));
  CHECK(train_net(other).images == 240);
  const RunOptions third = cached(folder, "third", two_layers(24, 32));
  train_net(third);
  CHECK(curves(third) == curves(other));
  CHECK(lines_of(third, "stage")[0]["trained"]["run"] == first.folder.string());
  CHECK(lines_of(third, "stage")[1]["trained"]["run"] == other.folder.string());
}

TEST_CASE("a run that was stopped and went on leaves all of its curves in the cache", "[history]") {
  const TempDir folder;
  const RunOptions reference = options_for(folder / "reference");
  train_net(reference);
  RunOptions options = cached(folder, "stopped");
  options.stop_after_steps = 3;
  while (has(complaint(ErrorKind::interrupted, options), "interrupted at step")) options.resume = true;
  const RunOptions reuse = cached(folder, "reuse");
  train_net(reuse);
  const auto losses = [](const RunOptions& of) {
    std::vector<Json> result;
    for (const Json& epoch : lines_of(of, "epoch")) result.push_back({epoch["stage"], epoch["epoch"], epoch["heads"].size()});
    return result;
  };
  CHECK(losses(reuse) == losses(reference));
  CHECK(lines_of(reuse, "stage")[1]["trained"]["images"] == 240);
  // One line for every start: the report shows the command, ranks and kernels.
  CHECK(lines_of(options, "start").size() == 4);
  CHECK(lines_of(reuse, "start").size() == 1);
  CHECK(lines_of(reuse, "start")[0]["train_images"] == 80);
}

TEST_CASE("a history that cannot be read is an empty one", "[history]") {
  StageHistory history{"/runs/one", "2026-11-20T23:44:00Z", 61, 45000, {Json{{"event", "epoch"}, {"epoch", 1}}}};
  const StageHistory again = history_from_text(to_text(history));
  CHECK(origin_json(again) == origin_json(history));
  CHECK(again.epochs == history.epochs);
  CHECK(origin_text(again) == "in 1 min 01 s on 45.0 k images by /runs/one (2026-11-20T23:44:00Z)");
  for (const char* text : {"", "{", "[]", "null", R"({"run": 3, "seconds": "x", "images": -5, "epochs": {"a": 1}})",
                           R"({"epochs": [1, null, {"event": 3}], "images": 1e300, "seconds": null})"}) {
    INFO(text);
    const StageHistory nothing = history_from_text(text);
    CHECK(nothing.run.empty());
    CHECK(nothing.images == 0);
    CHECK(nothing.seconds == 0);
    CHECK(nothing.epochs.empty());
    CHECK(origin_text(nothing).empty());
  }
  history.run = "/runs/caf\xe9";  // no UTF-8
  CHECK_FALSE(history_from_text(to_text(history)).run.empty());
}
