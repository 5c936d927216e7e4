// `bitloom report` for runs of binary nets: the images that they are most wrong about.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "core/metrics.h"
#include "tests/cli/commands.h"
#include "tests/cli/program.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::test;

TEST_CASE("the report of a binary net's run shows its surest mistakes, or why it cannot", "[report]") {
  const TempDir folder;
  REQUIRE(run_program(folder.path(), {"data", "synth", "--train", "300", "--test", "60", "--out", "images"}).code == 0);
  const Outcome train = run_program(folder.path(), {"train", "binary", "--net", "tiny", "--data", "images", "--epochs", "1",
                                                    "--batch", "32", "--out", "run"});
  INFO(train.out << train.err);
  REQUIRE(train.code == 0);
  const auto page = [&] {
    const Outcome report = run_program(folder.path(), {"report", "run"});
    INFO(report.out << report.err);
    REQUIRE(report.code == 0);
    return read_file(folder / "run/report.html");
  };
  const std::string html = page();
  const nlohmann::json result = read_metrics(folder / "run/metrics.jsonl").back();
  const auto images = result["images"].get<int>();
  const double correct = result["test_accuracy"].get<double>() * images;
  // As many as the run counted, by the net's own views.
  CHECK(has(html, fmt::format("Of the {:.0f} test images that were classified wrongly", images - correct)));
  const std::size_t begin = html.find("id=\"mistakes\"");
  REQUIRE(begin != std::string::npos);
  std::size_t figures = 0;
  for (std::size_t at = begin; (at = html.find("<figure><img", at)) != std::string::npos; ++at) ++figures;
  CHECK(figures == 24);

  const auto reason = [&](const std::string& expected) {
    const std::string without = page();
    INFO(without.substr(without.find("id=\"mistakes\""), 300));
    CHECK(has(without, "There are no images here: the run"));
    CHECK(has(without, expected));
    CHECK(without.find("<figure><img") == std::string::npos);
  };
  std::filesystem::rename(folder / "images", folder / "elsewhere");
  reason(" test images cannot be used (");
  REQUIRE(
      run_program(folder.path(), {"data", "synth", "--train", "300", "--test", "60", "--seed", "9", "--out", "images"}).code ==
      0);
  reason("they are not those of the run any more");
  std::string metrics = read_file(folder / "run/metrics.jsonl");
  metrics.replace(metrics.find("\"test_hash\""), 11, "\"unknown\"");
  write_file(folder / "run/metrics.jsonl", metrics);
  reason("did not note its mistakes");
}
