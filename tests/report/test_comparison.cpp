// The page that compares runs.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "report/report.h"
#include "tests/report/page.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::report;
using namespace bitloom::test;
using nlohmann::json;

namespace {

ReportInput binary_run(const std::string& title, double accuracy) {
  ReportInput run;
  run.title = title;
  run.config = json{{"net", "tiny"}, {"seed", title}, {"batch", "32"}};
  run.metrics.push_back(json{{"event", "start"}, {"net", "tiny"}, {"data", "cifar10"}, {"validation_images", 100}});
  for (int epoch = 1; epoch <= 2; ++epoch) {
    run.metrics.push_back(
        json{{"event", "epoch"},
             {"stage", "layer1"},
             {"epoch", epoch},
             {"seconds", 60.0 * epoch},
             {"heads", json::array({json{{"layer", "layer1"}, {"loss", 1.0}, {"validation_accuracy", accuracy}}})}});
  }
  run.metrics.push_back(json{{"event", "result"},
                             {"test_accuracy", accuracy},
                             {"validation_accuracy", accuracy},
                             {"images", 100},
                             {"seconds", 130.0},
                             {"model_bytes", 1 << 20}});
  return run;
}

ReportInput float_run(const std::string& title) {
  ReportInput run;
  run.title = title;
  run.config = json{{"net", "tiny"}, {"seed", "1"}, {"batch", "32"}, {"dtype", "bf16"}};
  run.metrics.push_back(
      json{{"event", "start"}, {"kind", "cnn"}, {"steps", 20}, {"steps_per_epoch", 10}, {"net", {{"name", "<small>"}}}});
  for (int step = 10; step <= 20; step += 10) {
    run.metrics.push_back(json{{"event", "step"}, {"step", step}, {"loss", 1.0}, {"seconds", 3.0 * step}});
    run.metrics.push_back(json{
        {"event", "evaluation"}, {"step", step}, {"loss", 1.5}, {"accuracy", 0.5}, {"targets", 100}, {"seconds", 3.0 * step}});
  }
  return run;
}

}  // namespace

TEST_CASE("runs of several kinds are compared on one page, the best first", "[report]") {
  const std::string page = render_comparison({binary_run("worse", 0.4), float_run("float"), binary_run("better", 0.6)});
  require_self_contained(page);
  CHECK(has(page, "<h1>3 runs</h1>"));
  const auto at = [&](const std::string& text) {
    INFO(text);
    REQUIRE(has(page, text));
    return page.find(text);
  };
  CHECK(at(">better</td>") < at(">float (unfinished)</td>"));
  CHECK(at(">float (unfinished)</td>") < at(">worse</td>"));
  // Wilson's interval of 50 of 100: 40.4 to 59.6%.
  at("50.00% <small>40.4 to 59.6</small>");
  at("cnn &lt;small&gt;");
  at("Validation accuracy by progress");  // all in epochs
  at("1.0 MiB");
  // Settings that all runs have alike are not shown, nor those that runs of one kind alone have.
  CHECK(!has(page, ">batch</td>"));
  CHECK(!has(page, ">dtype</td>"));
  at(">seed</td>");
  // No run sent anything.
  CHECK(!has(page, "sent in a step"));
}

// Runs of a search differ at the end of their names, which was cut.
TEST_CASE("names of curves that are too long keep their ends, and options that differ have columns of one width", "[report]") {
  const std::string name = "runs/of-a-search-over-very-many-nets/layer2.width=";
  const std::string page = render_comparison({binary_run(name + "64", 0.4), binary_run(name + "128", 0.5)});
  require_self_contained(page);
  CHECK(has(page, ">runs/of-a-sea…ayer2.width=64</text>"));
  CHECK(has(page, ">runs/of-a-sea…yer2.width=128</text>"));
  CHECK(has(page, "<div class=\"even\"><div class=\"scroll\"><table>"));
}

TEST_CASE("runs without metrics are compared by what there is", "[report]") {
  ReportInput empty;
  empty.title = "empty";
  ReportInput broken = float_run("broken");
  for (json& line : broken.metrics) {
    for (auto& [key, value] : line.items()) {
      if (key != "event" && key != "kind") value = "x";
    }
  }
  const std::string page = render_comparison({empty, broken, empty});
  require_self_contained(page);
  CHECK(has(page, ">empty (unfinished)</td>"));
  CHECK(has(page, ">broken (unfinished)</td>"));
}
