// `bitloom report` for runs of convolutional nets.
#include <fmt/format.h>

#include <csignal>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom::test;

namespace fs = std::filesystem;

namespace {

Args reported_cnn(const std::string& out, int steps = 12) {
  return {"train",
          "cnn",
          "--data",
          "images",
          "--net",
          "tiny",
          "--batch",
          "16",
          "--validation",
          "40",
          "--steps",
          fmt::format("{}", steps),
          "--evaluate-every",
          "4",
          "--log-every",
          "2",
          "--out",
          out};
}

std::string page_of(const fs::path& folder, const std::string& run) {
  const Outcome report = run_program(folder, {"report", run});
  INFO(report.out << report.err);
  REQUIRE(report.code == 0);
  return read_file(folder / run / "report.html");
}

}  // namespace

TEST_CASE("the report of a convolutional net's run shows what it does with the test images", "[cnn]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), {"data", "synth", "--train", "200", "--test", "60", "--out", "images"}).code == 0);
  const Outcome train = run_program(folder.path(), reported_cnn("run"));
  INFO(train.out << train.err);
  REQUIRE(train.code == 0);
  const std::string page = page_of(folder.path(), "run");
  for (const char* text :
       {"convolutional net tiny", ">Validation accuracy<", ">images/s<", "id=\"confusion\"", "id=\"mistakes\"", "id=\"layers\"",
        "basic_block", "16 filters of 3 x 3 pixels", "60 images, 6 views of each"}) {
    INFO(text);
    CHECK(has(page, text));
  }
  // As `eval` measures it.
  const Outcome eval = run_program(folder.path(), {"eval", "run", "--json"});
  REQUIRE(eval.code == 0);
  const auto json = nlohmann::json::parse(eval.out);
  CHECK(has(page, fmt::format(">{:.2f}%<", 100 * json["accuracy"].get<double>())));
  CHECK(has(page, fmt::format("Of the {} test images that were classified wrongly",
                              json["images"].get<int>() - json["correct"].get<int>())));
  CHECK_FALSE(has(page, "oken"));

  // On several processes one of them writes it.
  CHECK(run_ranks(folder.path(), 2, {"report", "run", "--out", "two.html"}).code == 0);
  CHECK(read_file(folder / "two.html") == page);

  // Without the images, and with other ones.
  fs::rename(folder / "images", folder / "away");
  const std::string without = page_of(folder.path(), "run");
  CHECK(has(without, "There is no confusion matrix here, and there are no images: the run&#39;s test images cannot be used ("));
  CHECK(has(without, (folder / "images").string()));
  CHECK_FALSE(has(without, "id=\"mistakes\""));
  CHECK(has(without, "16 filters of 3 x 3 pixels"));
  fs::create_directories(folder / "images/train/only");
  CHECK(has(page_of(folder.path(), "run"), "test images cannot be used"));
}

TEST_CASE("the report of a convolutional net's unfinished run is that of its checkpoint", "[cnn]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), {"data", "synth", "--train", "200", "--test", "60", "--out", "images"}).code == 0);
  {
    const Hold hold(folder.path(), 9);
    Background background(folder.path(), with(reported_cnn("stopped", 400), Hold::option()));
    REQUIRE(background.wait_for("step 8/400"));
    background.signal(SIGINT);
    CHECK(background.wait().code == 4);
  }
  const std::string page = page_of(folder.path(), "stopped");
  CHECK(has(page, "This run is unfinished"));
  CHECK(has(page, "6 views of each; the checkpoint after step "));
  CHECK(has(page, "id=\"confusion\""));
  CHECK(has(page, "16 filters of 3 x 3 pixels"));
  // The one before it serves where the newest is damaged.
  write_file(folder / "stopped/checkpoint.safetensors", "damaged");
  CHECK(has(page_of(folder.path(), "stopped"), "the checkpoint after step 0"));
  // Killed before there was any checkpoint: the layers are known by the metrics.
  fs::remove(folder / "stopped/checkpoint.safetensors");
  fs::remove(folder / "stopped/checkpoint.previous.safetensors");
  const std::string begun = page_of(folder.path(), "stopped");
  CHECK(has(begun, "the run has neither a model nor a checkpoint."));
  CHECK(has(begun, "basic_block"));
  CHECK_FALSE(has(begun, "id=\"filters\""));
}
