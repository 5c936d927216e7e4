// Float convolutional nets as a user trains them: a run, what is done with it, an interrupted one, what is refused.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/metrics.h"
#include "core/safetensors.h"
#include "run/folder.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/events.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;
using Json = nlohmann::json;

namespace {

Args quick_cnn(const std::string& out, int steps = 12, const std::string& net = "tiny") {
  return {"train",
          "cnn",
          "--data",
          "synth",
          "--net",
          net,
          "--max-train",
          "240",
          "--max-test",
          "60",
          "--validation",
          "40",
          "--batch",
          "20",
          "--steps",
          fmt::format("{}", steps),
          "--evaluate-every",
          "4",
          "--out",
          out};
}

// The same with another value of an option.
Args changed(Args args, const std::string& option, const std::string& value) {
  *(std::find(args.begin(), args.end(), option) + 1) = value;
  return args;
}

// A small net with a layer that the named ones lack.
void write_net(const std::filesystem::path& file, bool decays_vectors = false, int channels = 6) {
  write_file(file, fmt::format(R"({{"name": "own", "activation": "relu", "decays_vectors": {},
    "layers": [{{"kind": "conv", "channels": {}, "stride": 4}}, {{"kind": "activation"}}, {{"kind": "max_pool"}}, {{"kind": "linear"}}],
    "training": {{"learning_rate": 0.1, "weight_decay": 0.01}}}})",
                               decays_vectors, channels));
}

}  // namespace

TEST_CASE("a convolutional net is trained and learns, and the verbs know what it is", "[cnn]") {
  const TempDir folder;
  const auto run = [&](const Args& args) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  Args args = changed(changed(quick_cnn("run", 120), "--max-train", "1000"), "--max-test", "300");
  const std::string out = run(changed(args, "--evaluate-every", "30"));
  CHECK(has(out, "net 'tiny': 33.9 k parameters"));
  CHECK(has(out, "data 'synth': 960 training, 40 validation, 300 test images"));
  CHECK(has(out, "120 steps of 20 images, 2.5 epochs"));
  CHECK(has(out, "test accuracy"));
  CHECK(has(out, "6 views each"));
  CHECK(has(out, "bitloom predict run PICTURE..."));
  for (const char* file : {"model.safetensors", "metrics.jsonl", "options.ini", "log.txt", "checkpoint.safetensors"}) {
    CHECK(std::filesystem::exists(folder / "run" / file));
  }
  const auto metrics = read_metrics(folder / "run/metrics.jsonl");
  CHECK(metrics.front()["kind"] == "cnn");
  CHECK(metrics.front()["parameters"] == 33882);
  CHECK(lines_of(folder / "run", "result").at(0)["targets"] == 120 * 20);
  CHECK(metrics.back()["event"] == "test");
  CHECK(metrics.back()["views"] == 6);
  CHECK(has(out, fmt::format("{:.2f}% (", 100 * metrics.back()["accuracy"].get<double>())));
  CHECK(lines_of(folder / "run", "evaluation").size() == 4);
  // The triangle: from a fifth of the peak, here of 20 of 128 images, to it in 23% of the steps, and down to 7%.
  const double peak = 0.3 * 20 / 128;
  for (const Json& line : lines_of(folder / "run", "step")) {
    const double step = line["step"].get<double>() - 1;
    const double rate = step < 27 ? peak * (0.2 + 0.8 * step / 27) : peak * (1 - 0.93 * (step - 27) / 93);
    CHECK(line["rate"].get<double>() == Approx(rate).epsilon(1e-9));
  }

  const Json test = Json::parse(run({"eval", "run", "--json"}));
  CHECK(test["images"] == 300);
  CHECK(test["accuracy"].get<double>() > 0.25);  // 0.1 is chance
  CHECK(test["confusion"].size() == 100);
  CHECK(has(out, fmt::format("{:.2f}% ({} of 300 images", 100 * test["accuracy"].get<double>(), test["correct"].get<int>())));
  const Json plain = Json::parse(run({"eval", "run", "--json", "--mirror", "off", "--shift", "0"}));
  CHECK(plain["loss"] != test["loss"]);
  CHECK(plain["loss"].get<double>() == Approx(test["loss"].get<double>()).epsilon(0.2));
  CHECK(Json::parse(run({"eval", "run", "--json", "--split", "validation"}))["images"] == 40);
  CHECK(run_program(folder.path(), {"eval", "run", "--split", "all"}).code == 2);
  CHECK(has(run({"eval", "run", "--backend", "ref", "--max-test", "20"}), "of 20 images"));

  const std::string shown = run({"inspect", "run"});
  CHECK(has(shown, "net 'tiny': images of 32 x 32 pixels of 3 colours, 10 classes"));
  CHECK(has(shown, "basic_block"));
  const Json described = Json::parse(run({"inspect", "run", "--json"}));
  CHECK(described["kind"] == "cnn");
  CHECK(described["parameters"] == 33882);
  CHECK(described["class_names"].size() == 10);
  CHECK(has(run({"inspect", "resnet18"}), "11.2 M"));
  CHECK(has(run({"verify", "run"}), "run/model.safetensors: good"));
  run({"report", "run"});
  CHECK(std::filesystem::exists(folder / "run/report.html"));

  run({"export", "run", "--out", "exported"});
  const TensorFile exported = TensorFile::load(folder / "exported/model.safetensors");
  CHECK(exported.contains("layers.1.running_mean"));
  CHECK(exported.contains("layers.3.skip_conv.weight"));
  CHECK_FALSE(exported.contains("layers.1.gain"));
  CHECK(has(run({"import", "cnn", "exported/model.safetensors", "--out", "back"}), "back: net 'tiny', 33.9 k parameters"));
  // But for the run's step.
  TensorFile trained = TensorFile::load(folder / "run/model.safetensors");
  CHECK(trained.metadata.erase(run::model_step_key) == 1);
  CHECK(TensorFile::load(folder / "back").serialize() == trained.serialize());

  run({"data", "sheet", "synth", "--out", "sheet.png"});
  const Json predicted = Json::parse(run({"predict", "run", "sheet.png", "--jsonl"}));
  REQUIRE(predicted["probabilities"].size() == 10);
  double sum = 0;
  for (const Json& each : predicted["probabilities"]) sum += each.get<double>();
  CHECK(sum == Approx(1).epsilon(1e-5));
  const Json one_view = Json::parse(run({"predict", "run", "sheet.png", "--jsonl", "--mirror", "off", "--shift", "0"}));
  CHECK(one_view["probabilities"] != predicted["probabilities"]);
  const Outcome text = run_program(folder.path(), {"sample", "run"});
  CHECK(text.code == 3);
  CHECK(has(text.err, "a model of kind cnn; expected one of kind gpt or dalle. For this one there is `bitloom predict`"));
}

TEST_CASE("a stopped run of a convolutional net goes on to the same bits", "[cnn]") {
  const TempDir folder;
  // Lookahead is between two of its steps, and augmentation in the second epoch, where the run is stopped.
  const auto args = [](const std::string& out) {
    return with(quick_cnn(out, 24), {"--lookahead", "5", "--weight-decay", "0.01"});
  };
  REQUIRE(run_program(folder.path(), args("whole")).code == 0);
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string out = fmt::format("stopped{}", signal);
    const Hold hold(folder.path(), 13);
    Background background(folder.path(), with(args(out), Hold::option()));
    REQUIRE(background.wait_for("step 12/24"));
    background.signal(signal);
    const Outcome stopped = background.wait();
    CHECK(stopped.code == 4);
    CHECK(has(stopped.err, "train cnn --resume --out " + out));
    // The checkpoint so far is a model.
    CHECK(has(run_program(folder.path(), {"eval", out}).err, out + ": not finished; this is its checkpoint after step 1"));
    const Outcome resumed = run_program(folder.path(), {"train", "cnn", "--resume", "--out", out}, {"OMP_NUM_THREADS=2"});
    INFO(resumed.out << resumed.err);
    REQUIRE(resumed.code == 0);
    CHECK(read_file(folder / out / "model.safetensors") == read_file(folder / "whole/model.safetensors"));
    CHECK(same_tensors(folder / out / "checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
  }
  const Args resume = {"train", "cnn", "--resume", "--out", "whole"};
  CHECK(has(run_program(folder.path(), resume).out, "the run in whole is finished: it has its 24 steps"));
  // Killed while it classified the test images, a run has its model and its result: the next process does that, and no more,
  // with checkpoints or without, under the supervisor or not.
  const std::string metrics = read_file(folder / "whole/metrics.jsonl");
  const std::string model = read_file(folder / "whole/model.safetensors");
  const std::size_t test = metrics.find("{\"accuracy\"", metrics.find("\"event\":\"result\""));
  REQUIRE(has(metrics.substr(test), "\"event\":\"test\""));
  const auto is_tested = [&](const Args& args) {
    write_file(folder / "whole/metrics.jsonl", metrics.substr(0, test));
    const Outcome tested = run_program(folder.path(), args);
    INFO(tested.out << tested.err);
    CHECK(tested.code == 0);
    CHECK(has(tested.out + tested.err, "test accuracy"));
    CHECK(read_file(folder / "whole/metrics.jsonl") == metrics);
    CHECK(read_file(folder / "whole/model.safetensors") == model);
  };
  std::filesystem::rename(folder / "whole/checkpoint.safetensors", folder / "kept");
  is_tested(resume);
  std::filesystem::rename(folder / "kept", folder / "whole/checkpoint.safetensors");
  is_tested({"launch", "--", "train", "cnn", "--out", "whole"});
  CHECK(has(run_program(folder.path(), resume).out, "the run in whole is finished: it has its 24 steps"));
  const auto refuses = [&](const Args& more, const std::string& text) {
    const Outcome outcome = run_program(folder.path(), with(with(resume, {"--steps", "26"}), more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, text));
  };
  refuses({"--learning-rate", "0.5"}, "\n  --learning-rate: 0.046875 stored, 0.5 given\n");
  refuses({"--flip", "none"}, "\n  --flip: alternating stored, none given\n");
  refuses({"--lookahead", "4"}, "\n  --lookahead: 5 stored, 4 given\n");
  refuses({"--net", "airbench94", "--augment", "crop2"}, "\n  --net or --activation: ");
  refuses({"--max-train", "200"}, "\n  the training images' content (--data, --max-train, --validation, --split-seed): ");
  const Outcome again = run_program(folder.path(), args("whole"));
  CHECK(again.code == 2);
  CHECK(has(again.err, "holds a run already"));
}

// A file of a net was looked for in the folder that the second command ran in; that vectors decay could change in silence.
TEST_CASE("a run of a net in a file goes on from another folder, unless the net was changed", "[cnn]") {
  const TempDir folder;
  std::filesystem::create_directory(folder / "sub");
  write_net(folder / "net.json");
  const Outcome first = run_program(folder.path(), quick_cnn("run", 4, "net.json"));
  INFO(first.err);
  REQUIRE(first.code == 0);
  const Args resume = {"train", "cnn", "--resume", "--out", "../run", "--steps", "6"};
  const auto refuses = [&](const std::string& text) {
    const Outcome outcome = run_program(folder / "sub", resume);
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, text));
  };
  write_net(folder / "net.json", false, 7);
  refuses("--net or --activation: ");
  write_net(folder / "net.json", true);
  refuses("decays_vectors of --net: false stored, true given");
  std::filesystem::remove(folder / "net.json");
  refuses("net.json");
  write_net(folder / "net.json");
  const Outcome more = run_program(folder / "sub", resume);
  INFO(more.out << more.err);
  CHECK(more.code == 0);
  // The run was given steps; epochs that are given now count instead.
  const Outcome epochs = run_program(folder.path(), {"train", "cnn", "--resume", "--out", "run", "--epochs", "1"});
  INFO(epochs.out << epochs.err);
  CHECK(epochs.code == 0);
  CHECK(has(epochs.out, "step 10/10: "));
}

TEST_CASE("ways to train a convolutional net", "[cnn]") {
  const TempDir folder;
  int n = 0;
  for (const Args& more : std::vector<Args>{{"--dtype", "bf16"},
                                            {"--init", "run0", "--average", "0.9"},
                                            {"--activation-bits", "2"},
                                            {"--activation-bits", "2", "--activation-quantiser", "act-nn"},
                                            {"--activation", "relu", "--micro-batch", "5", "--augment", "crop2,cutout4"},
                                            {"--optimizer", "adamw", "--learning-rate", "0.01", "--weight-decay", "0.1"},
                                            {"--schedule", "constant", "--flip", "random", "--lookahead", "2"},
                                            {"--keep", "best", "--mirror", "off", "--shift", "0"}}) {
    INFO(fmt::format("{}", fmt::join(more, " ")));
    const std::string out = fmt::format("run{}", n++);
    const Outcome outcome = run_program(folder.path(), with(quick_cnn(out, 3), more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 0);
  }
  // The options of a run serve as those of another.
  const Outcome same = run_program(folder.path(), {"train", "cnn", "--config", "run0/options.ini", "--out", "same"});
  INFO(same.err);
  CHECK(same.code == 0);
  CHECK(same_tensors(folder / "same/model.safetensors", folder / "run0/model.safetensors"));
  CHECK_FALSE(same_tensors(folder / "run2/model.safetensors", folder / "run3/model.safetensors"));  // other gradients
  const Outcome other = run_program(
      folder.path(), {"train", "cnn", "--resume", "--out", "run3", "--steps", "4", "--activation-quantiser", "few-bit"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "--activation-quantiser: act-nn stored"));
  Args plain_loops = with(quick_cnn("ref", 1), {"--backend", "ref"});
  for (const char* option : {"--batch", "--validation", "--max-test"}) plain_loops = changed(plain_loops, option, "2");
  CHECK(run_program(folder.path(), plain_loops).code == 0);
  const Args without = changed(changed(quick_cnn("none", 2), "--validation", "0"), "--evaluate-every", "0");
  const Outcome none = run_program(folder.path(), without);
  CHECK(none.code == 0);
  CHECK_FALSE(has(none.out, "validation accuracy"));
  // Another name of the same activation.
  REQUIRE(run_program(folder.path(), with(quick_cnn("swish", 2), {"--activation", "swish"})).code == 0);
  const Outcome alias =
      run_program(folder.path(), {"train", "cnn", "--resume", "--out", "swish", "--steps", "3", "--activation", "silu"});
  INFO(alias.out << alias.err);
  CHECK(alias.code == 0);
  // Evaluations took 256 images at once, whatever memory there was.
  Args narrow = with(changed(quick_cnn("narrow", 1, "airbench94"), "--batch", "8"), {"--memory", "64MiB"});
  const Outcome fits = run_program(folder.path(), changed(narrow, "--validation", "100"));
  INFO(fits.out << fits.err);
  CHECK(fits.code == 0);
  // The kept model is that of the evaluation with the lowest loss, and what is measured at the end is it.
  const Outcome best = run_program(folder.path(), with(quick_cnn("best", 12), {"--keep", "best", "--learning-rate", "3"}));
  INFO(best.out << best.err);
  REQUIRE(best.code == 0);
  // Beyond what a loss can be, it is said: sums of such losses overflowed, and a negative one was the best.
  const Outcome far = run_program(folder.path(), with(quick_cnn("far", 8), {"--keep", "best", "--learning-rate", "1000"}));
  CHECK(far.code == 3);
  CHECK_FALSE(has(far.out, "loss -"));
  const Json measured = Json::parse(run_program(folder.path(), {"eval", "best", "--json"}).out);
  // Images in batches of other sizes may differ in last bits, of a large loss.
  const std::size_t tested = best.out.find("loss ", best.out.find("test accuracy"));
  REQUIRE(tested != std::string::npos);
  CHECK(std::stod(best.out.substr(tested + 5)) == Approx(measured["loss"].get<double>()).epsilon(1e-4));
  const Json result = lines_of(folder / "best", "result").at(0);
  for (const Json& line : lines_of(folder / "best", "evaluation")) CHECK(line["loss"] >= result["best_validation_loss"]);
  const Json on_validation = Json::parse(
      run_program(folder.path(), {"eval", "best", "--json", "--split", "validation", "--mirror", "off", "--shift", "0"}).out);
  CHECK(on_validation["loss"].get<double>() == Approx(result["best_validation_loss"].get<double>()).epsilon(1e-5));
}
