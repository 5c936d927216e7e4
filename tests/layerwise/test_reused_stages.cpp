// Results that runs take from stages trained before: whole stages from a cache, weights and accumulators in their own run.
#include "core/file.h"
#include "layerwise/cache.h"
#include "layerwise/trainer.h"
#include "tests/layerwise/small_run.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

TEST_CASE("stages that were trained before are reused", "[trainer]") {
  const TempDir folder;
  const auto with_cache = [&](const char* name, const NetSpec& net) {
    RunOptions options = options_for(folder / name, net);
    options.cache = folder / "cache";
    options.cache_limit = std::uint64_t{1} << 28U;
    return options;
  };
  const auto reused = [](const RunResult& result) {
    std::vector<bool> flags;
    for (const StageSummary& stage : result.stages) flags.push_back(stage.reused);
    return flags;
  };
  CHECK(reused(train_net(with_cache("first", two_layers()))) == std::vector<bool>{false, false});
  CHECK(reused(train_net(with_cache("same", two_layers()))) == std::vector<bool>{true, true});
  CHECK(difference(result_of(folder / "first"), result_of(folder / "same")) == "");
  // Another second layer: the first one is taken over.
  CHECK(reused(train_net(with_cache("second", two_layers(24, 32)))) == std::vector<bool>{true, false});
  CHECK(difference(undisturbed(two_layers(24, 32)), result_of(folder / "second")) == "");
  // One more stage that trains both again.
  CHECK(reused(train_net(with_cache("again", two_layers_again()))) == std::vector<bool>{true, true, false});
  CHECK(difference(undisturbed(two_layers_again()), result_of(folder / "again")) == "");
  CHECK(reused(train_net(with_cache("again 2", two_layers_again()))) == std::vector<bool>{true, true, true});
  CHECK(difference(result_of(folder / "again"), result_of(folder / "again 2")) == "");
  // Another option for the second stage alone, by the net; for all, by the run, where the net says for one what it was.
  NetSpec tuned = two_layers();
  tuned.stages[1].options = {{"learning_rate", 0.02}};
  CHECK(reused(train_net(with_cache("tuned", tuned))) == std::vector<bool>{true, false});
  CHECK(difference(result_of(folder / "first"), result_of(folder / "tuned")) != "");
  tuned.stages[1].options = {{"learning_rate", TrainOptions{}.layer.rule.learning_rate}};
  RunOptions elsewhere = with_cache("elsewhere", tuned);
  elsewhere.train.layer.rule.learning_rate = 0.03;
  CHECK(reused(train_net(elsewhere)) == std::vector<bool>{false, false});
  tuned.stages[0].options = tuned.stages[1].options;
  elsewhere = with_cache("as first", tuned);
  elsewhere.train.layer.rule.learning_rate = 0.03;
  CHECK(reused(train_net(elsewhere)) == std::vector<bool>{true, true});
  // Another first layer: nothing that follows can be.
  CHECK(reused(train_net(with_cache("width", two_layers(32)))) == std::vector<bool>{false, false});
  // Other options.
  RunOptions seeded = with_cache("seed", two_layers());
  seeded.train.seed = 2;
  CHECK(reused(train_net(seeded)) == std::vector<bool>{false, false});

  // Damage is noticed, and repaired.
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().extension() == ".blob") damage(entry.path());
  }
  Lines lines;
  mpi::Comm comm;
  const RunResult rebuilt = train(simd::kernels(), comm, with_cache("damaged", two_layers()), splits(), lines);
  CHECK(reused(rebuilt) == std::vector<bool>{false, false});
  CHECK(has(lines.text(), "was damaged and is rebuilt"));
  CHECK(difference(result_of(folder / "first"), result_of(folder / "damaged")) == "");
  CHECK(reused(train_net(with_cache("repaired", two_layers()))) == std::vector<bool>{true, true});
}

// A search that spreads its nets over ranks shares stages so. When it was resumed, stage b was shown with the accuracy that its
// layers had only after a later stage.
TEST_CASE("a shared stage whose layers have learned again by then has no accuracy of its own", "[trainer]") {
  const TempDir folder;
  NetSpec net = two_layers_again();
  net.stages.push_back(net.stages.back());
  net.stages.back().name = "more";
  const auto options_of = [&](const char* name) {
    RunOptions options = options_for(folder / name, net);
    options.stages = 3;
    return options;
  };
  const RunResult shared = train_net(options_of("shared"));
  const RunResult shared_again = train_net(resumed(options_of("shared")));
  REQUIRE(shared.stages.size() == 3);
  REQUIRE(shared.trained.size() == 3);
  REQUIRE(shared_again.trained.size() == 3);
  const auto reused = [&](const char* name, const RunResult& from) {
    RunOptions options = options_of(name);
    options.trained = from.trained;
    RunResult result = train_net(options);
    REQUIRE(result.stages.size() == 3);
    for (const StageSummary& stage : result.stages) CHECK(stage.reused);
    return result.stages;
  };
  const std::vector<StageSummary> whole = reused("whole", shared);
  for (std::size_t s = 0; s < 3; ++s) CHECK(whole[s].validation_accuracy == shared.stages[s].validation_accuracy);
  RunOptions stopped = options_of("stopped");
  stopped.stop_after_steps = 12;  // two of them in the stage that trains layers again
  CHECK(has(complaint(ErrorKind::interrupted, stopped), "interrupted"));
  const RunResult shared_late = train_net(resumed(stopped));
  for (const auto& [name, from] : {std::pair("resumed", &shared_again), std::pair("late", &shared_late)}) {
    CAPTURE(name);
    const std::vector<StageSummary> resumed_ones = reused(name, *from);
    CHECK_FALSE(resumed_ones[0].validation_accuracy.has_value());
    CHECK_FALSE(resumed_ones[1].validation_accuracy.has_value());
    CHECK(resumed_ones[2].validation_accuracy == shared.stages[2].validation_accuracy);
  }
}

TEST_CASE("where a layer stands in its net does not matter to a reused stage", "[trainer]") {
  NetSpec net = parse_net(std::string("{\"name\": \"three\", ") + thermometer + R"(, "head": {"grid": 2, "hidden": 16},
      "layers": [{"name": "x", "width": 16}, {"name": "a", "inputs": ["input"], "width": 24}],
      "stages": [{"train": ["x"], "epochs": 1}, {"train": ["a"], "epochs": 2}], "classifier": ["a"]})",
                          "net.json");
  const TempDir folder;
  RunOptions options = options_for(folder / "two");
  options.cache = folder / "cache";
  options.cache_limit = std::uint64_t{1} << 28U;
  train_net(options);
  options.folder = folder / "three";
  options.net = net;
  CHECK(train_net(options).stages[1].reused);
  CHECK(difference(undisturbed(net), result_of(folder / "three")) == "");
}

TEST_CASE("a stage that a teacher taught is reused where the same soft labels would teach it", "[trainer]") {
  const TempDir folder;
  NetSpec net = two_layers();
  net.stages[1].options["teacher_share"] = 0.5;
  const auto reused = [&](const std::string& name, std::uint8_t first) {
    data::DataSplits data = splits();
    for (std::size_t i = 0; i < data.train.size() * data.train.classes(); ++i) {
      const std::size_t l = i % data.train.classes();
      data.train.soft_labels.push_back(l == 0 ? first : l == 1 ? static_cast<std::uint8_t>(255 - first) : std::uint8_t{0});
    }
    RunOptions options = options_for(folder / name, net);
    options.cache = folder / "cache";
    options.cache_limit = 1U << 30U;
    Lines lines;
    mpi::Comm comm;
    const RunResult result = train(simd::kernels(), comm, options, data, lines);
    return std::pair(result.stages[0].reused, result.stages[1].reused);
  };
  CHECK(reused("one", 200) == std::pair(false, false));
  CHECK(reused("other", 100) == std::pair(true, false));
  CHECK(reused("again", 200) == std::pair(true, true));
  RunOptions untaught = options_for(folder / "untaught", net);
  CHECK(has(complaint(ErrorKind::usage, untaught), "0.5 in stage 'b', but there is no teacher"));
}

// Contents of accumulators were drawn anew, and trained layers lost some points in the first steps of a further stage.
TEST_CASE("weights that learn again keep their accumulators, also over a restart between the stages", "[trainer]") {
  const TempDir folder;
  NetSpec net = two_layers_again();
  net.stages[2].options["learning_rate"] = 1e-9;  // less than any accumulator has room for
  RunOptions options = options_for(folder / "run", net);
  options.cache = folder / "cache";
  options.cache_limit = std::uint64_t{1} << 28U;
  options.checkpoint_seconds = 1e9;
  options.stop_after_steps = 11;  // one of them in the last stage
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
  const TensorFile checkpoint = TensorFile::load(options.folder / "checkpoint.safetensors");
  std::size_t kept = 0;
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().extension() != ".blob") continue;
    const auto bytes = Cache(folder / "cache", options.cache_limit, {}).get(entry.path().stem().string());
    REQUIRE(bytes.has_value());
    const TensorFile stage = TensorFile::parse(*bytes, "stage");
    for (const std::string name : {"a", "b"}) {
      if (!stage.contains(name + ".states")) continue;
      ++kept;
      CHECK(std::ranges::equal(stage.get(name + ".states").bytes, checkpoint.get(name + ".train.state").bytes));
    }
  }
  CHECK(kept == 2);
  CHECK_FALSE(checkpoint.contains("a.states"));  // the stage has them
  // The checkpoint before is the one between the stages.
  damage(options.folder / "checkpoint.safetensors");
  CHECK(TensorFile::load(options.folder / "checkpoint.previous.safetensors").contains("a.states"));
  options.cache.clear();
  train_net(resumed(options));
  RunOptions whole = options;
  whole.stop_after_steps = 0;
  whole.folder = folder / "whole";
  train_net(whole);
  CHECK(difference(result_of(options.folder), result_of(whole.folder)) == "");
}

TEST_CASE("trits keep their values where a further stage has another dead zone", "[trainer]") {
  const TempDir folder;
  const auto trits = [&](std::size_t stages, double zone) {
    NetSpec net = two_layers_again();
    net.layers[1].ternary = true;
    net.stages.resize(stages);
    if (stages == 3) net.stages[2].options = {{"learning_rate", 1e-9}, {"dead_zone", zone}};  // no gradient moves any
    const fs::path run_folder = folder / fmt::format("{}-{}", stages, zone);
    train_net(options_for(run_folder, net));
    return result_of(run_folder);
  };
  const TensorFile before = trits(2, 0);
  for (const double zone : {RuleOptions{}.dead_zone, 0.2, 0.001}) {
    CAPTURE(zone);
    const TensorFile after = trits(3, zone);
    for (const char* name : {"b.sign", "b.nonzero"}) CHECK(std::ranges::equal(before.get(name).bytes, after.get(name).bytes));
  }
}
