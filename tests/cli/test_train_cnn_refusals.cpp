// Refusals of training and using a convolutional net, by their words, and runs of several processes or under the supervisor.
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
#include "train/run.h"

using namespace bitloom;
using namespace bitloom::test;

namespace {

Args training(const std::string& net, int images, int batch, const Args& more = {}) {
  return with({"train", "cnn", "--data", "synth", "--net", net, "--max-train", fmt::format("{}", images), "--max-test", "30",
               "--validation", "40", "--batch", fmt::format("{}", batch)},
              more);
}

std::vector<double> evaluations(const std::filesystem::path& run) {
  std::vector<double> losses;
  for (const nlohmann::json& line : read_metrics(run / "metrics.jsonl")) {
    if (line["event"] == "evaluation") losses.push_back(line["loss"]);
  }
  return losses;
}

}  // namespace

TEST_CASE("what train cnn refuses, before it makes a folder", "[cnn]") {
  const TempDir folder;
  const auto refuses = [&](const Args& args, int code, const std::string& text) {
    const Outcome outcome = run_program(folder.path(), with(args, {"--out", "run"}));
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    CHECK(outcome.code == code);
    CHECK(has(outcome.err, text));
    CHECK_FALSE(std::filesystem::exists(folder / "run"));
  };
  const auto refuses_option = [&](const Args& more, const std::string& text) {
    refuses(training("tiny", 240, 20, more), 2, text);
  };
  refuses({"train", "cnn"}, 2, "--data: missing; expected synth, or a folder of images");
  refuses({"train", "cnn", "--data", "none"}, 3, "none");
  refuses({"train", "cnn", "--resume"}, 2, "there is no run in run");
  refuses(training("tinny", 240, 20), 2, "unknown net 'tinny'; did you mean 'tiny'?");
  refuses(training("none.json", 240, 20), 2, "none.json");
  refuses(training("tiny", 240, 201), 2, "--batch: 201; expected at most the 200 training images");
  refuses_option({"--micro-batch", "7"}, "--micro-batch: '7'; expected auto or a divisor of the batch, 20");
  refuses_option({"--memory", "1KiB"}, "--micro-batch: one image takes ");
  refuses_option({"--learning-rate", "nan"}, "--learning-rate: 'nan' is not a number");
  refuses_option({"--learning-rate", "0"}, "--learning-rate: '0' is out of range");
  refuses_option({"--epochs", "0"}, "--epochs: '0' is out of range");
  refuses_option({"--momentum", "1"}, "--momentum: 1; expected 0 up to 1, without 1");
  refuses_option({"--label-smoothing", "1"}, "--label-smoothing: 1; expected 0 up to 1");
  refuses_option({"--activation", "geluu"}, "--activation: 'geluu'; did you mean 'gelu'?");
  refuses_option({"--augment", "crop2,flip"},
                 "--augment: 'crop2,flip'; expected no flip or alternating in it; --flip says that");
  refuses_option({"--augment", "alternating"},
                 "--augment: 'alternating'; expected no flip or alternating in it; --flip says that");
  refuses_option({"--augment", "corp2"}, "unknown augmentation 'corp2'; did you mean 'crop'?");
  refuses_option({"--flip", "sometimes"}, "--flip: unknown value 'sometimes'");
  refuses_option({"--average", "0.9", "--lookahead", "5"}, "--average: 0.9; expected 0 with --lookahead 5");
  refuses_option({"--optimizer", "adamw"}, "--learning-rate: missing; the net's description has one for sgd alone");
  refuses_option({"--optimizer", "adamw", "--learning-rate", "0.01", "--weight-decay", "0", "--momentum", "0.5"},
                 "--momentum: 0.5 has no effect; it needs --optimizer sgd");
  refuses_option({"--validation", "0", "--evaluate-every", "4"}, "--evaluate-every: 4 has no effect without validation data");
  refuses_option({"--dtype", "f16"}, "--dtype: f16; backend cpu has no values of that type");
  refuses_option({"--device", "cuda:99"}, "--device: cuda:99: ");
  // It was refused when the training was over.
  refuses_option({"--shift", "32"}, "--shift: 32; expected less than the 32 pixels of an image");
  refuses(training("airbench94", 240, 20, {"--optimizer", "adamw", "--learning-rate", "0.01", "--weight-decay", "0"}), 2,
          "--optimizer: adamw; 'layers.2.norm1.bias' has a learning rate of its own; expected sgd");
  // One class: CIFAR's files, all of whose images have the label 0.
  REQUIRE(run_program(folder.path(), {"data", "synth", "--out", "one", "--train", "60", "--test", "10"}).code == 0);
  for (const auto& entry : std::filesystem::directory_iterator(folder / "one")) {
    std::string bytes = read_file(entry.path());
    if (entry.path().extension() != ".bin") continue;
    for (std::size_t i = 0; i < bytes.size(); i += 3073) bytes[i] = 0;
    write_file(entry.path(), bytes);
  }
  refuses({"train", "cnn", "--data", "one", "--net", "tiny", "--batch", "20"}, 3,
          "one: images of 1 class to train on; expected at least two classes");
  // It had 100% of them.
  refuses({"train", "binary", "--data", "one", "--net", "tiny", "--batch", "20"}, 3,
          "one: images of 1 class to train on; expected at least two classes");
}

TEST_CASE("a training that diverges says at which step, and leaves its last checkpoint", "[cnn]") {
  const TempDir folder;
  // Nothing normalises between its layers.
  write_file(folder / "net.json",
             R"({"name": "own", "activation": "relu", "layers": [{"kind": "conv", "channels": 6, "stride": 4},
    {"kind": "activation"}, {"kind": "conv", "channels": 6, "stride": 4}, {"kind": "activation"}, {"kind": "linear"}]})");
  const Outcome outcome =
      run_program(folder.path(), training("net.json", 240, 20, {"--steps", "60", "--learning-rate", "1e6", "--out", "run"}));
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "bitloom: step "));
  CHECK(has(outcome.err, " is not finite; the loss is "));
  CHECK(has(outcome.err, "A smaller learning rate or clipping may help"));
  CHECK(run_program(folder.path(), {"verify", "run"}).code == 0);
  // One value per channel has no variance.
  write_file(folder / "deep.json", R"({"name": "deep", "layers": [{"kind": "conv", "channels": 6, "stride": 15},
    {"kind": "max_pool", "kernel": 3}, {"kind": "norm"}, {"kind": "linear"}]})");
  const Outcome single =
      run_program(folder.path(), training("deep.json", 240, 20, {"--steps", "4", "--micro-batch", "1", "--out", "single"}));
  INFO(single.out << single.err);
  CHECK(single.code == 2);
  CHECK(has(single.err, "layers.2: x (1, 1, 1, 6), one value per channel, has no variance"));
}

TEST_CASE("what the other verbs refuse of a convolutional net", "[cnn]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), training("tiny", 240, 20, {"--steps", "2", "--out", "run"})).code == 0);
  const auto refuses = [&](const Args& args, int code, const std::string& text) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(fmt::format("{}", fmt::join(args, " ")) << "\n" << outcome.out << outcome.err);
    CHECK(outcome.code == code);
    CHECK(has(outcome.err, text));
  };
  refuses({"eval", "run", "--layers", "layer1"}, 2, "--layers: not for a model of kind cnn");
  refuses({"eval", "run", "--cloze", "x"}, 2, "--cloze: not for a model of kind cnn");
  refuses({"eval", "run", "--tokens", "1"}, 2, "--tokens: not for a model of kind cnn");
  refuses({"eval", "run", "--shift", "40"}, 2, "--shift: 40; expected less than the 32 pixels");
  refuses({"eval", "run", "--dtype", "f16"}, 2, "--dtype: f16");
  refuses({"eval", "run", "--device", "cuda:99"}, 2, "--device: cuda:99: ");
  refuses({"eval", "run/model.safetensors", "--data", "none"}, 3, "none");
  refuses({"predict", "run", "none.png"}, 3, "none.png");
  refuses({"predict", "run", "none.png", "--shift", "40"}, 2, "--shift: 40");
  refuses(training("airbench94", 240, 20, {"--init", "run", "--out", "other"}), 3,
          "/run/model.safetensors: a net of other layers");
  refuses(training("tiny", 240, 20, {"--init", "none", "--out", "other"}), 3, "none");
  REQUIRE(run_program(folder.path(), {"export", "run", "--out", "theirs"}).code == 0);
  refuses({"import", "cnn", "theirs/model.safetensors"}, 2, "--out: missing");
  refuses({"import", "cnn", "none", "--out", "a"}, 3, "none");
  TensorFile file = TensorFile::load(folder / "theirs/model.safetensors");
  const auto refuses_import = [&](const std::function<void(TensorFile&)>& change, int code, const std::string& text) {
    TensorFile other = file;
    change(other);
    other.save(folder / "changed.safetensors");
    refuses({"import", "cnn", "changed.safetensors", "--out", "a"}, code, text);
  };
  refuses_import([](TensorFile& t) { t.tensors.erase("layers.6.bias"); }, 3,
                 "changed.safetensors: the tensor 'layers.6.bias' is missing; expected one of shape (10)");
  refuses_import([](TensorFile& t) { t.put("layers.6.bias", {11}, std::vector<float>(11)); }, 3,
                 "the tensor 'layers.6.bias' has the shape (11); expected (10)");
  refuses_import([](TensorFile& t) { t.put("layers.6.bias", {10}, std::vector<double>(10)); }, 3,
                 "the tensor 'layers.6.bias' is of type F64; expected F32, F16 or BF16");
  refuses_import([](TensorFile& t) { t.put("layers.9.bias", {10}, std::vector<float>(10)); }, 3,
                 "the tensor 'layers.9.bias' has no place in the net 'tiny'");
  refuses_import([](TensorFile& t) { t.metadata.clear(); }, 2,
                 "--like: missing; the metadata of changed.safetensors describe no net");
  CHECK(run_program(folder.path(), {"import", "cnn", "changed.safetensors", "--out", "a", "--like", "run"}).code == 0);
  // But for the run's step.
  TensorFile trained = TensorFile::load(folder / "run/model.safetensors");
  CHECK(trained.metadata.erase(run::model_step_key) == 1);
  CHECK(TensorFile::load(folder / "a").serialize() == trained.serialize());
  std::filesystem::resize_file(folder / "run/model.safetensors", 5000);
  for (const Args& args : std::vector<Args>{{"eval", "run"}, {"inspect", "run"}, {"verify", "run"}}) {
    const Outcome outcome = run_program(folder.path(), args);
    CHECK(outcome.code == 3);
    CHECK(has(outcome.out + outcome.err, "model.safetensors"));
  }
}

TEST_CASE("two processes train one convolutional net", "[cnn][mpi]") {
  const TempDir folder;
  // With 10 images each: batch norm has the same statistics.
  const auto args = [](const std::string& out) {
    return training("tiny", 240, 20, {"--micro-batch", "10", "--steps", "12", "--evaluate-every", "4", "--out", out});
  };
  REQUIRE(run_program(folder.path(), args("one")).code == 0);
  const Outcome two = run_ranks(folder.path(), 2, args("two"));
  INFO(two.out << two.err);
  REQUIRE(two.code == 0);
  CHECK(has(two.out, "12 steps of 20 images in 2 processes"));
  const std::vector<double> expected = evaluations(folder / "one");
  const std::vector<double> losses = evaluations(folder / "two");
  REQUIRE(expected.size() == 3);
  REQUIRE(losses.size() == 3);
  for (std::size_t i = 0; i < 3; ++i) CHECK(losses[i] == Approx(expected[i]).epsilon(1e-3));
  // Evaluation by two processes counts what one counts.
  const auto measured = [](const Outcome& outcome) {
    REQUIRE(outcome.code == 0);
    nlohmann::json json = nlohmann::json::parse(outcome.out);
    json.erase("images_per_second");
    return json;
  };
  const Args eval = {"eval", "two", "--json", "--max-test", "600"};
  CHECK(measured(run_ranks(folder.path(), 2, eval)) == measured(run_program(folder.path(), eval)));

  const Outcome more = run_program(folder.path(), {"train", "cnn", "--resume", "--out", "two", "--steps", "16"});
  INFO(more.out << more.err);
  CHECK(more.code == 0);
  CHECK(has(more.out, "going on from step 12"));
  // An error of one process is one of all: none is left waiting.
  const Outcome other = run_ranks(folder.path(), 2, training("resnet18", 240, 20, {"--init", "two", "--out", "other"}));
  CHECK(other.code == 3);
  CHECK(has(other.err, "a net of other layers"));
  const Outcome odd = run_ranks(folder.path(), 2, training("tiny", 240, 15, {"--out", "odd"}));
  CHECK(odd.code == 2);
  CHECK(has(odd.err, "--batch: 15; expected a multiple of the 2 processes"));
  CHECK_FALSE(std::filesystem::exists(folder / "odd"));
}

TEST_CASE("a launched run of a convolutional net that is killed and stopped ends with the undisturbed model",
          "[cnn][launch][mpi]") {
  const TempDir folder;
  const auto args = [](const std::string& out) {
    return training("tiny", 240, 20, {"--steps", "40", "--evaluate-every", "4", "--checkpoint-seconds", "0", "--out", out});
  };
  REQUIRE(run_program(folder.path(), args("whole")).code == 0);
  const Args launch = with({"launch", "--"}, with(args("run"), Hold::option()));
  const Hold hold(folder.path(), 13);
  {
    Background background(folder.path(), launch, 0, mpi_settings());
    REQUIRE(background.wait_for("step 12/40"));
    kill(background.rank(0), SIGKILL);
    hold.until(25);
    REQUIRE(background.wait_for("back at work"));
    REQUIRE(background.wait_for("step 24/40"));
    background.signal(SIGTERM);
    const Outcome stopped = background.wait();
    INFO(stopped.out << stopped.err);
    CHECK(stopped.code == 4);
    CHECK(has(stopped.out, "signal 9"));
  }
  CHECK(train::step_of_checkpoint(TensorFile::load(folder / "run/checkpoint.safetensors").metadata) < 40);
  hold.release();
  const Outcome again = run_program(folder.path(), launch, mpi_settings());
  INFO(again.out << again.err);
  REQUIRE(again.code == 0);
  CHECK(same_tensors(folder / "run/checkpoint.safetensors", folder / "whole/checkpoint.safetensors"));
  CHECK(read_file(folder / "run/model.safetensors") == read_file(folder / "whole/model.safetensors"));
  CHECK(has(run_program(folder.path(), launch, mpi_settings()).out, "is done already"));
}

TEST_CASE("a convolutional net is trained in a grid, and another grid goes on with it", "[cnn][mpi][grid]") {
  const TempDir folder;
  const auto args = [](const std::string& out, const Args& more) {
    return with(training("tiny", 240, 20, {"--micro-batch", "5", "--steps", "12", "--evaluate-every", "4", "--out", out}),
                more);
  };
  const auto last_of = [&](const std::string& run) { return lines_of(folder / run, "result").back(); };
  const Outcome one = run_program(folder.path(), args("one", {}));
  INFO(one.out << one.err);
  REQUIRE(one.code == 0);
  // Stages do not change a bit, however the net is cut; what several views of an image say neither.
  const Outcome staged = run_ranks(folder.path(), 2, args("staged", {"--pipeline", "2", "--partition", "measured"}));
  INFO(staged.out << staged.err);
  REQUIRE(staged.code == 0);
  CHECK(has(staged.out, "2 processes: 1 data-parallel x 2 stages (1f1b)"));
  CHECK(read_file(folder / "staged/model.safetensors") == read_file(folder / "one/model.safetensors"));
  CHECK(last_of("staged")["validation_accuracy"] == last_of("one")["validation_accuracy"]);
  const auto tested = [](const Outcome& outcome) {
    const std::size_t at = outcome.out.find("test accuracy");
    return outcome.out.substr(at, outcome.out.find('\n', at) - at);
  };
  CHECK(tested(staged) == tested(one));
  // Two of two, sharded, are stopped; one process, whose micro-batch is the run's, goes on.
  {
    const Hold hold(folder.path(), 6);
    const Args grid = {"--pipeline", "2", "--pipeline-schedule", "gpipe", "--shard", "parameters", "--checkpoint-seconds", "0"};
    Background first(folder.path(), with(args("run", grid), Hold::option()), 4, mpi_settings());
    REQUIRE(first.wait_for("step 4/12"));
    kill(first.rank(0), SIGTERM);
    CHECK(first.wait().code != 0);
    hold.release();
  }
  const Outcome more = run_program(folder.path(), {"train", "cnn", "--resume", "--out", "run"});
  INFO(more.out << more.err);
  REQUIRE(more.code == 0);
  CHECK(has(more.out, "(5 at once)"));
  CHECK(last_of("run")["validation_loss"].get<double>() ==
        Approx(last_of("one")["validation_loss"].get<double>()).epsilon(1e-3));
  const Outcome impossible = run_ranks(folder.path(), 3, args("other", {"--pipeline", "2"}));
  CHECK(impossible.code == 2);
  CHECK(has(impossible.err, "--pipeline: 2 does not divide 3 ranks; possible near by"));
  const Outcome schedule = run_ranks(folder.path(), 2, args("other", {"--pipeline", "2", "--pipeline-schedule", "gpip"}));
  CHECK(schedule.code == 2);
  CHECK(has(schedule.err, "--pipeline-schedule: unknown value 'gpip'"));
  const Outcome small = run_ranks(folder.path(), 2, args("other", {"--pipeline", "2", "--memory", "64KiB"}));
  CHECK(small.code == 2);
  CHECK(has(small.err, "more than the 64.0 KiB there are"));
  CHECK_FALSE(std::filesystem::exists(folder / "other"));
}

// Batch norm takes the statistics of a micro-batch, of which nothing reminded a run that went on with another number of
// processes.
TEST_CASE("a run of a convolutional net keeps the micro-batch that it began with", "[cnn][launch][mpi]") {
  const TempDir folder;
  const Args begin = training("tiny", 240, 24, {"--steps", "4", "--evaluate-every", "4", "--out", "run"});
  const Outcome launched = run_program(folder.path(), with({"launch", "--local", "3", "--"}, begin), mpi_settings());
  INFO(launched.out << launched.err);
  REQUIRE(launched.code == 0);
  CHECK(has(launched.out, "4 steps of 24 images in 3 processes"));
  const Outcome one = run_program(folder.path(), {"train", "cnn", "--resume", "--out", "run", "--steps", "8"});
  INFO(one.out << one.err);
  REQUIRE(one.code == 0);
  CHECK(has(one.out, "(8 at once)"));
  const Outcome two = run_ranks(folder.path(), 2, {"train", "cnn", "--resume", "--out", "run", "--steps", "12"});
  CHECK(two.code == 2);
  CHECK(has(two.err,
            "the run in run has micro-batches of 8 images, whose statistics batch norm takes; a process's share of the "
            "batch would be 12"));
  // A launch of two processes uses one of them.
  const Outcome again = run_program(
      folder.path(), {"launch", "--local", "2", "--", "train", "cnn", "--out", "run", "--steps", "12"}, mpi_settings());
  INFO(again.out << again.err);
  CHECK(again.code == 0);
  CHECK(has(again.out, "(8 at once)"));
}

// It was told to be done already.
TEST_CASE("a finished run of a convolutional net is launched for more epochs", "[cnn][launch][mpi]") {
  const TempDir folder;
  const auto args = [](const Args& more) { return with(training("tiny", 240, 20, {"--out", "run"}), more); };
  REQUIRE(run_program(folder.path(), args({"--epochs", "1"})).code == 0);
  const auto launch = [&](const Args& more) {
    const Outcome outcome = run_program(folder.path(), with({"launch", "--"}, args(more)), mpi_settings());
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  CHECK(has(launch({"--epochs", "1"}), "is done already"));
  CHECK_FALSE(has(launch({"--epochs", "2"}), "is done already"));
  CHECK(lines_of(folder / "run", "result").back()["steps"] == 20);
  CHECK(has(launch({"--epochs", "2"}), "is done already"));
  // The nearer to the command line, the stronger.
  write_file(folder / "base.ini", "steps = 23\n");
  CHECK(has(launch({"--config", "base.ini", "--epochs", "2"}), "is done already"));
  CHECK_FALSE(has(launch({"--config", "base.ini"}), "is done already"));
  CHECK(lines_of(folder / "run", "result").back()["steps"] == 23);
  CHECK(has(launch({"--config", "base.ini"}), "is done already"));
}
