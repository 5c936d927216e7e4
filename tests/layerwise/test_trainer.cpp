#include "layerwise/trainer.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/file.h"
#include "core/metrics.h"
#include "layerwise/trained_stages.h"
#include "tests/layerwise/small_run.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/files.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

TEST_CASE("a run leaves a model, metrics and a summary", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  options.command = "bitloom train";
  Lines lines;
  mpi::Comm comm;
  const RunResult result = train(simd::kernels(), comm, options, splits(), lines);
  CHECK(result.steps == 10);
  CHECK(result.images == 400);
  CHECK(result.validation.images == 16);
  CHECK(result.test.images == 20);
  REQUIRE(result.stages.size() == 2);
  CHECK(result.stages[0].name == "a");
  CHECK_FALSE(result.stages[0].reused);
  CHECK(has(lines.text(), "a epoch 2/2:"));
  CHECK(has(lines.text(), "b: done in"));
  const Model model = Model::load(folder / "run" / "model.safetensors");
  CHECK(model.notes.at("data").starts_with(fmt::format("{} training images, content ", splits().train.size())));
  // The same images under another name.
  options.folder = folder / "elsewhere";
  options.data_name = "large";
  Lines others;
  train(simd::kernels(), comm, options, splits(), others);
  CHECK(read_file(folder / "elsewhere/model.safetensors") == read_file(folder / "run/model.safetensors"));
  const Evaluation again = Classifier::of(simd::kernels(), model).evaluate(comm, splits().test);
  CHECK(again.correct == result.test.correct);
  CHECK(again.confusion == result.test.confusion);

  std::size_t epochs = 0;
  std::size_t stages = 0;
  for (const auto& line : read_metrics(folder / "run" / "metrics.jsonl")) {
    epochs += line["event"] == "epoch" ? 1 : 0;
    stages += line["event"] == "stage" ? 1 : 0;
  }
  CHECK(epochs == 5);
  CHECK(stages == 2);
  CHECK(has(read_file(folder / "run" / "config.json"), "bitloom train"));
  CHECK_FALSE(fs::exists(folder / "run" / "checkpoint.safetensors"));
  CHECK(peak_memory() > 0);
}

TEST_CASE("an interrupted run, resumed, gives what an undisturbed one does", "[trainer]") {
  const std::vector<std::pair<NetSpec, std::size_t>> cases = {
      {two_layers(), 1}, {two_layers(), 3}, {two_layers(), 5}, {two_layers_again(), 1}, {two_layers_again(), 3}};
  for (const auto& [net, steps] : cases) {
    INFO(net.name << " stopped every " << steps << " steps");
    const TensorFile expected = undisturbed(net);
    const TempDir folder;
    RunOptions options = options_for(folder / "run", net);
    options.stop_after_steps = steps;
    std::size_t interruptions = 0;
    while (has(complaint(ErrorKind::interrupted, options), "interrupted at step")) {
      ++interruptions;
      options.resume = true;
      REQUIRE(interruptions < 20);
    }
    CHECK(interruptions > 0);
    CHECK(difference(expected, result_of(folder / "run")) == "");
    std::size_t epochs = 0;
    for (const auto& line : read_metrics(folder / "run" / "metrics.jsonl")) epochs += line["event"] == "epoch" ? 1 : 0;
    std::size_t expected_epochs = 0;
    for (const StageSpec& stage : net.stages) expected_epochs += stage.epochs;
    CHECK(epochs == expected_epochs);
  }
}

// Times stood in the model, and an epoch's line had the sums of the steps since the restart alone.
TEST_CASE("an interrupted run leaves the model file and the sums of an undisturbed one", "[trainer]") {
  const TempDir folder;
  train_net(options_for(folder / "whole"));
  const auto epochs = [&](const char* name) {
    std::vector<nlohmann::json> found;
    for (nlohmann::json& line : read_metrics(folder / name / "metrics.jsonl")) {
      if (line["event"] != "epoch") continue;
      for (const char* timed : {"seconds", "images_per_second", "times", "frozen"}) line.erase(timed);
      found.push_back(std::move(line));
    }
    return found;
  };
  REQUIRE(epochs("whole").size() == 5);
  RunOptions options = options_for(folder / "parts");
  options.stop_after_steps = 1;  // epochs have two
  while (has(complaint(ErrorKind::interrupted, options), "interrupted at step")) options.resume = true;
  CHECK(epochs("parts") == epochs("whole"));
  const std::string model = read_file(folder / "whole" / "model.safetensors");
  CHECK(read_file(folder / "parts" / "model.safetensors") == model);
  CHECK_FALSE(has(model, "seconds"));
}

TEST_CASE("layers that learn again start from what they are", "[trainer]") {
  const TensorFile before = undisturbed();
  NetSpec net = two_layers_again();
  const TensorFile after = undisturbed(net);
  const auto changed = [&](const char* name) {
    const auto old = before.get(name).as<std::uint64_t>();
    const auto now = after.get(name).as<std::uint64_t>();
    REQUIRE(old.size() == now.size());
    std::size_t bits = 0;
    for (std::size_t i = 0; i < old.size(); ++i) bits += static_cast<std::size_t>(std::popcount(old[i] ^ now[i]));
    return static_cast<double>(bits);
  };
  // Some weights flip in four steps, by far not the half that separates two random ones.
  const double weights_a = 24 * 9 * static_cast<double>(net.encoder.levels) * 3;
  const double weights_b = 16 * 9 * 24;
  CHECK(changed("a.sign") > 0);
  CHECK(changed("b.sign") > 0);
  CHECK(changed("a.sign") < 0.2 * weights_a);
  CHECK(changed("b.sign") < 0.2 * weights_b);
  CHECK(before.contains("a.head.linear"));
  CHECK_FALSE(after.contains("a.head.linear"));  // it read what the layer gave before
  CHECK(after.contains("b.head.linear"));
  // Without a step they are what they were, the thresholds too.
  net.stages[2].epochs = 0;
  const TensorFile same = undisturbed(net);
  for (const char* name : {"a.sign", "b.sign", "a.threshold", "b.threshold", "b.head.linear", "b.head.centre"}) {
    INFO(name);
    CHECK(std::ranges::equal(before.get(name).bytes, same.get(name).bytes));
  }
}

TEST_CASE("a caller may stop a run at any step", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  int asked = 0;
  options.stop = [&] { return ++asked == 2; };
  // The second step ends stage a's first epoch.
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted at step 2 of stage 'a'"));
  CHECK(fs::exists(folder / "run" / "checkpoint.safetensors"));
  options.stop = nullptr;
  const RunResult result = train_net(resumed(options));
  CHECK(result.steps == 8);
  CHECK(result.images == 400);
  CHECK(difference(undisturbed(), result_of(folder / "run")) == "");
}

TEST_CASE("a damaged checkpoint gives way to the one before", "[trainer]") {
  const TensorFile expected = undisturbed();
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  options.checkpoint_seconds = 0;  // at every step
  for (const bool both : {false, true}) {
    options.stop_after_steps = both ? 2 : 3;
    options.folder = folder / (both ? "two" : "one");
    CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
    damage(options.folder / "checkpoint.safetensors");
    if (both) damage(options.folder / "checkpoint.previous.safetensors");
    Lines lines;
    mpi::Comm comm;
    options.command = "resumed";
    const RunResult result = train(simd::kernels(), comm, resumed(options), splits(), lines);
    CHECK(has(lines.text(), "trying the one before"));
    CHECK(has(lines.text(), ": a checkpoint every 0 s, of "));
    CHECK(has(lines.text(), "training starts from the beginning") == both);
    // Begun anew it is another run, with the options of now.
    CHECK((nlohmann::json::parse(read_file(options.folder / "config.json"))["command"] == "resumed") == both);
    // The one before is of whatever step had passed when the disk was ready for it.
    CHECK((result.steps == 10) == both);
    CHECK(result.images == 400);
    CHECK(difference(expected, result_of(options.folder)) == "");
    CHECK(fs::exists(options.folder / "checkpoint.safetensors.damaged"));
    // No epoch is told of twice, also when everything begins again.
    std::size_t epochs = 0;
    for (const auto& line : read_metrics(options.folder / "metrics.jsonl")) epochs += line["event"] == "epoch" ? 1 : 0;
    CHECK(epochs == 5);
  }
}

// The run gave up although the one before was there.
TEST_CASE("a folder where the checkpoint should be gives way to the one before", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  options.checkpoint_seconds = 0;
  options.stop_after_steps = 3;
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
  const fs::path checkpoint = folder / "run" / "checkpoint.safetensors";
  fs::remove(checkpoint);
  fs::create_directories(checkpoint / "inner");
  Lines lines;
  mpi::Comm comm;
  const RunResult result = train(simd::kernels(), comm, resumed(options), splits(), lines);
  CHECK(has(lines.text(), "is a folder; trying the one before"));
  CHECK(result.steps < 10);
  CHECK(difference(undisturbed(), result_of(folder / "run")) == "");
  CHECK(fs::is_directory(folder / "run" / "checkpoint.safetensors.damaged" / "inner"));
}

TEST_CASE("a damaged checkpoint that cannot be set aside is an error with its name", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  options.stop_after_steps = 3;
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
  damage(folder / "run" / "checkpoint.safetensors");
  fs::create_directories(folder / "run" / "checkpoint.safetensors.damaged" / "taken");
  CHECK(has(complaint(ErrorKind::io, resumed(options)), "cannot rename"));
}

TEST_CASE("a run removes what killed ones left in its folder, and takes a whole checkpoint that had no name yet", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  options.stop_after_steps = 3;
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
  const fs::path run_folder = folder / "run";
  fs::rename(run_folder / "checkpoint.safetensors", run_folder / "checkpoint.next.safetensors");
  const std::vector<std::string> left = {"checkpoint.next.safetensors.1-00000000000000aa.tmp",
                                         "model.next.safetensors.12-0000000000000000.tmp", "model.next.safetensors"};
  for (const std::string& name : left) {
    write_file(run_folder / name, "part");
    // By their names temporaries are another host's.
    fs::last_write_time(run_folder / name, fs::file_time_type::clock::now() - std::chrono::hours(2));
  }
  CHECK(train_net(resumed(options)).steps == 7);
  for (const std::string& name : left) CHECK_FALSE(fs::exists(run_folder / name));
  CHECK_FALSE(fs::exists(run_folder / "checkpoint.next.safetensors"));
  CHECK(difference(undisturbed(), result_of(run_folder)) == "");
}

// It ended as if all were well, and most of its files were lost.
TEST_CASE("a folder that is deleted or emptied under a run is an error", "[trainer]") {
  for (const std::string how : {"deleted", "emptied", "replaced"}) {
    INFO(how);
    const TempDir folder;
    RunOptions options = options_for(folder / "run");
    int asked = 0;
    options.stop = [&] {
      if (++asked != 9) return false;  // no checkpoint follows
      if (how != "emptied") {
        fs::remove_all(folder / "run");
      } else {
        for (const auto& file : fs::directory_iterator(folder / "run")) fs::remove_all(file.path());
      }
      if (how == "replaced") fs::create_directory(folder / "run");
      return false;
    };
    CHECK(has(complaint(ErrorKind::io, options), "was deleted or replaced"));
    CHECK_FALSE(fs::exists(folder / "run" / "model.safetensors"));
  }
}

TEST_CASE("a full disk leaves the last good checkpoint", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  options.stop_after_steps = 2;
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
  const auto checkpoint = folder / "run" / "checkpoint.safetensors";
  const std::string before = read_file(checkpoint);
  {
    const FileSizeLimit full(before.size() / 2);
    RunOptions more = resumed(options);
    more.checkpoint_seconds = 0;
    const std::string message = complaint(ErrorKind::io, more);
    CHECK(has(message, "checkpoint"));
  }
  CHECK(read_file(checkpoint) == before);
  train_net(resumed(options));
  CHECK(difference(undisturbed(), result_of(folder / "run")) == "");
}

TEST_CASE("a run does not overwrite another, and resumes only its own", "[trainer]") {
  const TempDir folder;
  RunOptions options = options_for(folder / "run");
  CHECK(has(complaint(ErrorKind::usage, resumed(options)), "`resume`: there is no run in"));
  CHECK_FALSE(fs::exists(folder / "run"));
  options.stop_after_steps = 2;
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
  CHECK(has(complaint(ErrorKind::usage, options), "holds a run already; continue it with `resume`"));
  const std::string config = read_file(folder / "run" / "config.json");

  RunOptions other = resumed(options);
  other.train.seed = 2;
  const std::string seed = complaint(ErrorKind::usage, other);
  CHECK(has(seed, "checkpoint.safetensors belongs to a run with other data, net or options:"));
  CHECK(has(seed, "\n  options.seed: 1 stored, 2 given"));
  other.field_name = [](const std::string& field) { return "<" + field + ">"; };
  CHECK(has(complaint(ErrorKind::usage, other), "\n  <options.seed>: 1 stored, 2 given"));
  other = resumed(options);
  other.net = two_layers(24, 32);
  CHECK(has(complaint(ErrorKind::usage, other), ".width: "));
  other = resumed(options);
  other.train.layer.rule.learning_rate = 0.5;
  CHECK(has(complaint(ErrorKind::usage, other), "options.learning_rate: "));
  {
    // One of another version says so, and not that all data differ.
    const fs::path checkpoint = folder / "run" / "checkpoint.safetensors";
    const std::string before = read_file(checkpoint);
    TensorFile file = TensorFile::load(checkpoint, Checksum::required);
    std::string& identity = file.metadata.at("bitloom.run.identity");
    identity.replace(identity.find("checkpoint "), 12, "checkpoint 0");
    file.metadata["bitloom.run"] = "of then";
    file.save(checkpoint);
    CHECK(has(complaint(ErrorKind::usage, resumed(options)), "was written by another version of the program (bitloom stage"));
    file.metadata.erase("bitloom.run.identity");
    file.save(checkpoint);
    CHECK(has(complaint(ErrorKind::usage, resumed(options)), "and does not say which"));
    write_file(checkpoint, before);
  }
  CHECK(read_file(folder / "run" / "config.json") == config);

  {
    const FileLock lock(folder / "run" / ".lock");
    CHECK(has(complaint(ErrorKind::busy, resumed(options)), ".lock"));
  }
  train_net(resumed(options));
  CHECK(has(complaint(ErrorKind::usage, resumed(options)), "is finished"));
  CHECK(has(complaint(ErrorKind::usage, options), "holds a run already"));
}

// A run was known by its last stage alone, on which other branches of the net have no part: parts of two runs became one net.
TEST_CASE("every branch of a net and the way it votes are part of what a checkpoint must agree with", "[trainer]") {
  const auto branches = [](std::size_t epochs, const std::string& end) {
    return parse_net(fmt::format(R"({{"name": "branches", {}, "head": {{"grid": 2, "hidden": 16}}, "layers": [
        {{"name": "x", "inputs": ["input"], "width": 16}}, {{"name": "a", "inputs": ["input"], "width": 24}}],
        "stages": [{{"train": ["x"], "epochs": {}}}, {{"train": ["a"], "epochs": 2}}], {}}})",
                                 thermometer, epochs, end),
                     "net.json");
  };
  const std::string both = R"("classifier": ["x", "a"])";
  const TempDir folder;
  RunOptions options = options_for(folder / "run", branches(1, both));
  options.stop_after_steps = 3;
  CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
  for (const NetSpec& other :
       {branches(2, both), branches(1, R"("classifier": ["a"])"), branches(1, both + R"(, "mirror": false)")}) {
    RunOptions changed = resumed(options);
    changed.net = other;
    CHECK(has(complaint(ErrorKind::usage, changed), "belongs to a run with other data, net or options"));
  }
  CHECK(train_net(resumed(options)).stages.size() == 2);
}

TEST_CASE("what is wrong with any stage is found before the first, and leaves no folder", "[trainer]") {
  const TempDir folder;
  const auto message = [&](const std::function<void(RunOptions&)>& change) {
    RunOptions options = options_for(folder / "run");
    change(options);
    const std::string text = complaint(ErrorKind::usage, options);
    CHECK_FALSE(fs::exists(folder / "run"));
    return text;
  };
  CHECK(has(message([](RunOptions& o) { o.net.stages[1].head.grid = 9; }),
            "stage 'b', layer 'b': head.grid: 9 cells do not fit"));
  CHECK(has(message([](RunOptions& o) { o.net.stages[1].augment = "crop12"; }),
            "stage 'b': augmentation 'crop12' needs images of"));
  CHECK(has(message([](RunOptions& o) { o.net.stages[1].heads.clear(); }), "stage 'b': heads: expected at least one"));
  CHECK(has(message([](RunOptions& o) {
              o.net.stages[1].train = {"a", "b"}, o.train.signal = "exact";
            }),
            "`signal`: stage 'b' trains 2 layers under 1 heads; 'exact' needs one of each"));
  CHECK(has(message([](RunOptions& o) { o.train.signal = "exact", o.train.label_smoothing = 0.1; }),
            "takes no label smoothing (0.1)"));
  CHECK(has(message([](RunOptions& o) { o.train.layer.rule.name = "greedy", o.train.layer.second_moment_decay = 0.9; }),
            "`second_moment_decay`: 0.9 with `rule` greedy"));
  CHECK(has(message([](RunOptions& o) { o.train.layer.rule.name = "topk", o.train.layer.muon_momentum = 0.9; }),
            "`muon_momentum`: 0.9 with `rule` topk; expected 0, or `rule` accumulate"));
  CHECK(has(message([](RunOptions& o) { o.train.layer.muon_momentum = 0.9, o.train.layer.second_moment_decay = 0.98; }),
            "`muon_momentum`: 0.9 with `second_moment_decay` 0.98; expected one of them to be 0"));
  CHECK(has(message([](RunOptions& o) { o.train.signal = "magic"; }), "`signal`: 'magic' is not a learning signal"));
  CHECK(has(message([](RunOptions& o) { o.net.layers[1].ternary = true, o.train.layer.rule.name = "topk"; }),
            "`rule`: 'topk' cannot train the ternary weights of layer 'b'"));
  CHECK(has(message([](RunOptions& o) { o.frozen = "cache", o.cache = "/tmp", o.cache_limit = 1; }),
            "but stage 'a' has crop1,flip"));
}

TEST_CASE("a cache that cannot be opened is done without, unless it was asked for", "[trainer]") {
  const TempDir folder;
  write_file(folder / "file", "not a folder");
  RunOptions options = options_for(folder / "run");
  options.cache = folder / "file" / "cache";
  options.cache_limit = std::uint64_t{1} << 28U;
  Lines lines;
  mpi::Comm comm;
  train(simd::kernels(), comm, options, splits(), lines);
  CHECK(has(lines.text(), "cache: not used: "));
  CHECK(difference(undisturbed(), result_of(folder / "run")) == "");
  options.folder = folder / "other";
  options.needs_cache = true;
  CHECK(has(complaint(ErrorKind::io, options), "cache"));
  CHECK_FALSE(fs::exists(folder / "other" / "metrics.jsonl"));  // which would make it a run
}

TEST_CASE("without validation images nothing is said of them", "[trainer]") {
  const TempDir folder;
  data::DataSplits data = splits();
  data.validation = {};
  Lines lines;
  mpi::Comm comm;
  const RunResult result = train(simd::kernels(), comm, options_for(folder / "run"), data, lines);
  CHECK_FALSE(has(lines.text(), "validation"));
  CHECK_FALSE(result.stages[0].validation_accuracy.has_value());
  for (const auto& line : read_metrics(folder / "run" / "metrics.jsonl")) {
    if (line["event"] == "result" || line["event"] == "stage") CHECK(line["validation_accuracy"].is_null());
  }
  CHECK_FALSE(Model::load(folder / "run" / "model.safetensors").notes.contains("validation_accuracy"));
}

TEST_CASE("a layer under auxiliary layers that are dropped afterwards (k = 2, 3) is trained, resumed and stored", "[trainer]") {
  const NetSpec net = parse_net(fmt::format(R"({{"name": "deep heads", {}, "head": {{"grid": 2, "hidden": 16}}, "layers": [
      {{"name": "a", "width": 24}}, {{"name": "x", "inputs": ["a"], "width": 16}}, {{"name": "y", "inputs": ["x"], "width": 16}},
      {{"name": "b", "inputs": ["a"], "pool": "or", "width": 16}}],
      "stages": [{{"train": ["a", "x", "y"], "heads": ["y"], "discard": ["x", "y"], "epochs": 3}}, {{"train": ["b"], "epochs": 2}}]}})",
                                            thermometer),
                                "net.json");
  const TensorFile expected = undisturbed(net);
  CHECK(expected.contains("a.sign"));
  CHECK_FALSE(expected.contains("x.sign"));
  CHECK_FALSE(expected.contains("y.head.linear"));
  const TempDir folder;
  RunOptions options = options_for(folder / "run", net);
  options.cache = folder / "cache";
  options.cache_limit = std::uint64_t{1} << 28U;
  options.stop_after_steps = 3;
  while (has(complaint(ErrorKind::interrupted, options), "interrupted at step")) options.resume = true;
  CHECK(difference(expected, result_of(folder / "run")) == "");
  CHECK(Model::load(folder / "run" / "model.safetensors").layers.size() == 2);
  options.folder = folder / "again";
  options.resume = false;
  options.stop_after_steps = 0;
  for (const StageSummary& stage : train_net(options).stages) CHECK(stage.reused);
  CHECK(difference(expected, result_of(folder / "again")) == "");
}

TEST_CASE("frozen random weights stay as they were drawn, also where layers train again", "[trainer]") {
  const TempDir folder;
  const auto control = [&](const char* name, const NetSpec& net) {
    RunOptions options = options_for(folder / name, net);
    options.train.layer.learn_weights = false;
    train_net(options);
    return result_of(folder / name);
  };
  // Stages draw by the names of their layers: the first two are the same.
  const TensorFile before = control("before", two_layers());
  const TensorFile after = control("after", two_layers_again());
  CHECK(std::ranges::equal(before.get("a.sign").bytes, after.get("a.sign").bytes));
  CHECK(std::ranges::equal(before.get("b.sign").bytes, after.get("b.sign").bytes));
  CHECK_FALSE(std::ranges::equal(before.get("b.head.linear").bytes, after.get("b.head.linear").bytes));
}

// Streams came from a hash of all options: no two runs that differed in one could be compared in pairs.
TEST_CASE("runs of one seed draw the same numbers whatever their options, data and sizes are", "[trainer]") {
  const TempDir folder;
  const auto control = [&](const std::string& name, const std::function<void(RunOptions&)>& change) {
    RunOptions options = options_for(folder / name);
    options.train.layer.learn_weights = false;
    change(options);
    train_net(options);
    return result_of(folder / name);
  };
  const TensorFile plain = control("plain", [](RunOptions&) {});
  const auto same = [&](const TensorFile& other, const std::string& tensor) {
    return std::ranges::equal(plain.get(tensor).bytes, other.get(tensor).bytes);
  };
  const std::map<std::string, std::function<void(RunOptions&)>> changes = {
      {"head_decay", [](RunOptions& options) { options.train.head_decay = 0.001; }},
      {"batch", [](RunOptions& options) { options.train.batch = 20; }},
      {"exchange", [](RunOptions& options) { options.train.sparse = true, options.train.workers = 2; }},
      {"epochs", [](RunOptions& options) { options.net.stages[0].epochs = 1; }},
      {"width", [](RunOptions& options) { options.net = two_layers(24, 32); }}};
  for (const auto& [name, change] : changes) {
    INFO(name);
    const TensorFile other = control(name, change);
    CHECK(same(other, "a.sign"));
    CHECK((name == "width" || same(other, "b.sign")));
  }
  CHECK_FALSE(same(control("seed", [](RunOptions& options) { options.train.seed = 2; }), "a.sign"));
}

TEST_CASE("stages of a net have streams of their own, which names and earlier training decide", "[trainer]") {
  const std::vector<std::uint64_t> two = stage_ids(two_layers());
  const std::vector<std::uint64_t> again = stage_ids(two_layers_again());
  REQUIRE(two.size() == 2);
  REQUIRE(again.size() == 3);
  CHECK(two[0] == again[0]);
  CHECK(two[1] == again[1]);
  CHECK(std::set<std::uint64_t>(again.begin(), again.end()).size() == 3);
  CHECK(std::ranges::all_of(again, [](std::uint64_t id) { return id < 1U << 20U; }));
  CHECK(stage_ids(two_layers(64, 32)) == two);
}

TEST_CASE("runs of the exact signal tell what share of flips lowers the loss, also when they are interrupted", "[trainer]") {
  const TempDir folder;
  const auto shares = [&](const std::string& name, std::size_t stop_after) {
    RunOptions options = options_for(folder / name);
    options.train.signal = "exact";
    options.train.layer.rule.name = "topk";
    options.stop_after_steps = stop_after;
    if (stop_after != 0) {
      CHECK(has(complaint(ErrorKind::interrupted, options), "interrupted"));
      options = resumed(options);
    }
    train_net(options);
    std::vector<double> found;
    for (const auto& line : read_metrics(options.folder / "metrics.jsonl")) {
      if (line["event"] == "epoch") found.push_back(line["layers"][0]["lower_share"]);
    }
    return found;
  };
  const std::vector<double> whole = shares("whole", 0);
  REQUIRE(whole.size() == 5);
  for (const double share : whole) CHECK(share < 0.98);
  CHECK(whole.back() > 0.02);  // at first heads know nothing yet, and no flip changes anything
  CHECK(shares("parts", 3) == whole);
}
