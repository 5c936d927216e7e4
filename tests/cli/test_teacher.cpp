// Teachers: trained nets whose probabilities others learn from.
#include <csignal>
#include <filesystem>
#include <string>

#include "core/metrics.h"
#include "core/safetensors.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("a net learns from a teacher, stops and goes on without it", "[train][mpi]") {
  const TempDir folder;
  const Args cnn = {"train",      "cnn", "--data",  "synth", "--net",   "tiny", "--max-train", "300",
                    "--max-test", "20",  "--batch", "20",    "--steps", "30",   "--out",       "teacher"};
  REQUIRE(run_program(folder.path(), cnn).code == 0);
  const Args taught = {"--teacher", "teacher", "--cache", "none"};
  const Outcome straight = run_program(folder.path(), with(quick_training("straight"), taught));
  INFO(straight.out << straight.err);
  REQUIRE(straight.code == 0);
  CHECK(has(straight.out, "/teacher/model.safetensors labelled 260 images in "));
  CHECK(has(straight.out, ", each at 9 places 3 pixels apart\n"));
  CHECK(has(straight.out, "of the training images as labelled; their labels have a probability of 0."));
  REQUIRE(run_program(folder.path(), with(quick_training("untaught"), {"--cache", "none"})).code == 0);
  CHECK_FALSE(same_tensors(folder / "straight/model.safetensors", folder / "untaught/model.safetensors"));

  CHECK(run_program(folder.path(), with(with(quick_training("stopped"), taught), {"--stop-after-steps", "5"})).code == 4);
  // Options that a run began with serve as a configuration.
  const Args configured = {"train", "binary", "--config", "straight/options.ini", "--out", "configured"};
  const Outcome alike = run_program(folder.path(), configured);
  INFO(alike.out << alike.err);
  REQUIRE(alike.code == 0);
  CHECK(same_tensors(folder / "straight/model.safetensors", folder / "configured/model.safetensors"));
  const Args plain = {"train", "binary", "--config", "untaught/options.ini", "--out", "plain"};
  REQUIRE(run_program(folder.path(), plain).code == 0);
  CHECK(same_tensors(folder / "untaught/model.safetensors", folder / "plain/model.safetensors"));
  REQUIRE(run_program(folder.path(),
                      {"train", "binary", "--config", "untaught/options.ini", "--out", "late", "--teacher", "teacher"})
              .code == 0);
  CHECK(same_tensors(folder / "straight/model.safetensors", folder / "late/model.safetensors"));

  std::filesystem::rename(folder / "teacher", folder / "gone");
  const Outcome other =
      run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped", "--teacher", "straight"});
  CHECK(other.code == 2);
  CHECK(has(other.err, "\n  the teacher's soft labels (--teacher): "));
  const Outcome fewer = run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped", "--max-train", "100"});
  CHECK(fewer.code == 2);
  CHECK(has(fewer.err, "expected the images that the run began with"));
  // Also by the command of its beginning, as `launch` repeats it.
  const Outcome resumed =
      run_program(folder.path(), {"train", "binary", "--resume", "--out", "stopped", "--teacher", "teacher"});
  INFO(resumed.out << resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK(same_tensors(folder / "straight/model.safetensors", folder / "stopped/model.safetensors"));

  // No teacher is another one, also for a run that is finished.
  const Outcome none = run_program(folder.path(), {"train", "binary", "--resume", "--out", "straight", "--teacher", ""});
  INFO(none.out << none.err);
  CHECK(none.code == 2);
  CHECK(has(none.err, "is finished"));

  // Soft labels that a run left are a teacher, too, which any number of ranks reads alike; and so is a binary net.
  const Outcome ranks = run_ranks(
      folder.path(), 2, with(quick_training("ranks"), {"--teacher", "straight/soft-labels.safetensors", "--cache", "none"}));
  INFO(ranks.out << ranks.err);
  REQUIRE(ranks.code == 0);
  CHECK(same_tensors(folder / "straight/model.safetensors", folder / "ranks/model.safetensors"));
  const Outcome binary = run_ranks(folder.path(), 2, with(quick_training("binary"), {"--teacher", "straight"}));
  INFO(binary.out << binary.err);
  CHECK(binary.code == 0);
  CHECK(has(binary.out, "/straight/model.safetensors labelled 260 images in "));
  REQUIRE(run_program(folder.path(), with(quick_training("binary1"), {"--teacher", "straight"})).code == 0);
  // A binary net that stops where an image is sure labels as if it did not.
  const Args hasty = {"--teacher", "straight/soft-labels.safetensors", "--set", "net.sure=0.01", "--cache", "none"};
  REQUIRE(run_program(folder.path(), with(quick_training("hasty"), hasty)).code == 0);
  REQUIRE(same_tensors(folder / "straight/model.safetensors", folder / "hasty/model.safetensors"));
  REQUIRE(run_program(folder.path(), with(quick_training("patient"), {"--teacher", "hasty", "--cache", "none"})).code == 0);
  CHECK(same_tensors(folder / "binary1/soft-labels.safetensors", folder / "patient/soft-labels.safetensors"));
  CHECK(read_file(folder / "binary/soft-labels.safetensors") == read_file(folder / "binary1/soft-labels.safetensors"));
}

TEST_CASE("teachers that cannot teach are refused", "[train]") {
  const TempDir folder;
  const auto refusal = [&](const Args& more, int code) {
    const Outcome outcome = run_program(folder.path(), with(quick_training("run"), more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == code);
    CHECK_FALSE(std::filesystem::exists(folder / "run"));
    return outcome.err;
  };
  CHECK(has(refusal({"--teacher", "nowhere"}, 3), "nowhere: there is no such model file or run folder"));
  write_file(folder / "text", "no model");
  CHECK(has(refusal({"--teacher", "text"}, 3), "text' is not a good safetensors file"));
  CHECK(has(refusal({"--teacher-share", "0.5"}, 2), "--teacher-share: 0.5 has no effect; it needs --teacher"));
  CHECK(has(refusal({"--set", "layer1.teacher_share=0.5"}, 2),
            "--teacher-share: 0.5 in stage 'layer1', but there is no teacher"));
  REQUIRE(run_program(folder.path(), with(quick_training("other"), {"--max-train", "100"})).code == 0);
  const Args exact = {"--teacher", "other", "--signal", "exact"};
  CHECK(has(refusal(exact, 2), "no teacher (0.7) in stage"));
  Args training = with(quick_training("taught"), {"--teacher", "other"});
  REQUIRE(run_program(folder.path(), training).code == 0);
  CHECK(has(refusal({"--teacher", "taught/soft-labels.safetensors", "--split-seed", "2"}, 3), "soft labels of other images"));
}

TEST_CASE("a teacher labels images as far as augmentation moves them, and runs keep how far", "[train]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), with(quick_training("other"), {"--max-train", "100"})).code == 0);
  const auto taught = [&](const std::string& out, const Args& more) {
    const Outcome outcome = run_program(folder.path(), with(with(quick_training(out), {"--teacher", "other"}), more));
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
    return outcome.out;
  };
  const auto step_of = [&](const std::string& run) {
    const std::string options = read_file(folder / run / "options.ini"), key = "\nteacher-shift = ";
    return options.substr(options.find(key) + key.size(), 1);
  };
  CHECK(has(taught("cut", {"--augment", "crop2"}), ", each at 9 places 2 pixels apart\n"));
  CHECK(step_of("cut") == "2");
  for (const Args& more : {Args{"--teacher-shift", "0"}, Args{"--augment", "flip"}}) {
    const std::string out = more.back() == "0" ? "zero" : "flip";
    CHECK_FALSE(has(taught(out, more), "9 places"));
    CHECK(step_of(out) == "0");
  }
  CHECK(TensorFile::load(folder / "zero/soft-labels.safetensors").get("soft_labels").shape.size() == 2);
  CHECK(TensorFile::load(folder / "cut/soft-labels.safetensors").get("soft_labels").shape.at(1) == 9);

  const std::string labels = "cut/soft-labels.safetensors";
  CHECK(has(run_program(folder.path(), with(quick_training("file"), {"--teacher", labels})).out,
            labels + ": labels of images at 9 places 2 pixels apart\n"));
  CHECK(step_of("file") == "2");
  const auto is_refused = [&](const Args& more, const std::string& message) {
    const Outcome outcome = run_program(folder.path(), with(quick_training("refused"), more));
    INFO(outcome.out << outcome.err);
    CHECK(outcome.code == 2);
    CHECK(has(outcome.err, message));
    CHECK_FALSE(std::filesystem::exists(folder / "refused"));
  };
  is_refused({"--teacher", labels, "--teacher-shift", "1"},
             "--teacher-shift: 1; the soft labels that are there are of images moved by 2");
  is_refused({"--teacher", "other", "--augment", "crop2", "--teacher-shift", "4"},
             "--teacher-shift: 4; expected at most the pixels by which crops of --augment move images, 2");
  is_refused({"--teacher-shift", "1"}, "--teacher-shift: 1 has no effect; it needs --teacher");
}

TEST_CASE("a float net learns from a teacher, alone and by ranks, and goes on without it", "[train][mpi]") {
  const TempDir folder;
  const auto cnn = [](const std::string& out, const Args& more = {}) {
    return with({"train",        "cnn", "--data",  "synth", "--net",   "tiny", "--max-train",      "240", "--max-test", "20",
                 "--validation", "40",  "--batch", "20",    "--steps", "24",   "--evaluate-every", "4",   "--out",      out},
                more);
  };
  const auto ends = [&](const Args& args, int code = 0) {
    const Outcome outcome = run_program(folder.path(), args);
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == code);
    return outcome.out + outcome.err;
  };
  const auto same = [&](const std::string& a, const std::string& b) {
    return same_tensors(folder / a / "model.safetensors", folder / b / "model.safetensors");
  };
  ends(cnn("teacher", {"--seed", "2"}));
  const Args taught{"--teacher", "teacher", "--augment", "crop2"};
  const std::string said = ends(cnn("taught", taught));
  CHECK(has(said, "/teacher/model.safetensors labelled 200 images in "));
  CHECK(has(said, ", each at 9 places 2 pixels apart\n"));
  ends(cnn("untaught", {"--augment", "crop2"}));
  CHECK_FALSE(same("taught", "untaught"));
  ends(cnn("whole", with(taught, {"--teacher-share", "1"})));
  CHECK_FALSE(same("taught", "whole"));

  // The run keeps the labels.
  {
    const Hold hold(folder.path(), 13);
    Background background(folder.path(), cnn("stopped", with(taught, Hold::option())));
    REQUIRE(background.wait_for("step 12/24"));
    background.signal(SIGTERM);
    CHECK(background.wait().code == 4);
  }
  std::filesystem::rename(folder / "teacher", folder / "gone");
  const std::string other = ends({"train", "cnn", "--resume", "--out", "stopped", "--teacher", "untaught"}, 2);
  CHECK(has(other, "the teacher's soft labels (--teacher)"));
  CHECK(has(ends({"train", "cnn", "--resume", "--out", "stopped", "--teacher-share", "0.5"}, 2), "--teacher-share"));
  ends({"train", "cnn", "--resume", "--out", "stopped"});
  CHECK(same("taught", "stopped"));

  // Labels that a run left are a teacher, too, of which several processes learn alike: by one mini-batch, up to the statistics.
  const Outcome ranks =
      run_ranks(folder.path(), 2, cnn("ranks", {"--teacher", "taught/soft-labels.safetensors", "--augment", "crop2"}));
  INFO(ranks.out << ranks.err);
  REQUIRE(ranks.code == 0);
  CHECK(has(ranks.out, "labels of images at 9 places 2 pixels apart"));
  const auto loss_of = [&](const std::string& name) {
    for (const auto& line : read_metrics(folder / name / "metrics.jsonl")) {
      if (line["event"] == "result") return line["training_loss"].get<double>();
    }
    return 0.0;
  };
  CHECK(loss_of("ranks") == Approx(loss_of("taught")).epsilon(0.02));
  CHECK(loss_of("untaught") != Approx(loss_of("taught")).epsilon(0.02));
  CHECK(read_file(folder / "ranks/soft-labels.safetensors") == read_file(folder / "taught/soft-labels.safetensors"));
  // And a float net's labels are a binary net's.
  ends(with(quick_training("binary"), {"--teacher", "untaught", "--cache", "none"}));

  CHECK(has(ends(cnn("refused", {"--teacher-share", "0.5"}), 2), "--teacher-share: 0.5 has no effect; it needs --teacher"));
  CHECK(has(ends(cnn("refused", {"--teacher", "untaught", "--teacher-share", "1", "--label-smoothing", "0.1"}), 2),
            "--label-smoothing: 0.1 has no effect, since labels have no share in the targets"));
  CHECK(has(ends(cnn("refused", {"--teacher", "nowhere"}), 3), "nowhere: there is no such model file or run folder"));
  CHECK_FALSE(std::filesystem::exists(folder / "refused"));
}
