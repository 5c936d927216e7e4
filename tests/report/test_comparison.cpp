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

// A layer of which this share of single flips lowers the loss: one flip keeps its promise, a hundred keep `kept` percent of it.
json studied_layer(const char* name, double lower, double kept) {
  const auto together = [](int flips, double predicted, double realised) {
    return json{{"flips", flips}, {"predicted", predicted}, {"realised", realised}, {"on_others", realised / 2}};
  };
  return json{{"layer", name}, {"weights", 900},
              {"moves", 900},  {"lower", lower},
              {"neutral", 0},  {"together", {together(1, -0.001, -0.001), together(100, -0.08, -0.0008 * kept)}}};
}

ReportInput studied_run(const std::string& title, double accuracy, const std::vector<json>& layers) {
  ReportInput run = binary_run(title, accuracy);
  run.flips = json{{"images", 512}, {"others", 256}, {"others_are", "validation"}, {"layers", layers}};
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

TEST_CASE("what flips would do is drawn for all runs over each other, layer by layer", "[report]") {
  ReportInput shorter = studied_run("one <epoch>", 0.4, {studied_layer("a", 0.43, 50), studied_layer("b", 0.47, 60)});
  const ReportInput longer = studied_run("six epochs", 0.6, {studied_layer("a", 0.36, 20), studied_layer("b", 0.48, 30)});
  const std::string page = render_comparison({shorter, float_run("float"), longer, binary_run("plain & bare", 0.5)});
  require_self_contained(page);
  REQUIRE(has(page, "id=\"flips\""));
  CHECK(has(page, "Over 512 training images, and on 256 others"));
  for (const char* layer : {"a", "b"}) {
    CHECK(has(page, std::string(">") + layer + ": what many flips at once keep of their promise</text>"));
    CHECK(has(page, std::string(">") + layer + ": flips that lower the loss by themselves</text>"));
  }
  // Both runs' curves are in one chart, the best run first, and of each what holds of other images.
  const std::string place = "the best flips, made at once 100";
  CHECK(shows_value(page, place,
                    "six epochs, on the same images: 20\nsix epochs, on others: 10\none &lt;epoch&gt;, on the same images: 50\n"
                    "one &lt;epoch&gt;, on others: 25"));
  CHECK(shows_value(page, place, "six epochs, on the same images: 30"));
  for (const char* share : {"43.00%", "47.00%", "36.00%", "48.00%"}) CHECK(has(page, std::string(">") + share + "</text>"));
  // A float net has no flips to study.
  CHECK(has(page, "Without a study (<code>bitloom inspect RUN --flips</code>): plain &amp; bare.</p>"));
  // A run's colour is that of its other curves: of four runs the last is the last.
  const std::string charts = page.substr(page.find("id=\"flips\""));
  CHECK(has(charts, "<g style=\"--c:var(--s0)\">"));
  CHECK(has(charts, "<g style=\"--c:var(--s3)\">"));
  CHECK_FALSE(has(charts, "<g style=\"--c:var(--s1)\">"));

  shorter.flips["images"] = 100;
  const std::string of_two = render_comparison({shorter, longer});
  CHECK(has(of_two, "Over 100 to 512 training images"));
  CHECK_FALSE(has(of_two, "Without a study"));
}

TEST_CASE("of nets that differ the last layers' flips are drawn, and what is no study is none", "[report]") {
  ReportInput small = studied_run("small", 0.4, {studied_layer("a", 0.43, 50)});
  const ReportInput large = studied_run("large", 0.6, {studied_layer("a", 0.36, 20), studied_layer("b", 0.48, 30)});
  const std::string page = render_comparison({small, large});
  require_self_contained(page);
  CHECK(has(page, "The studied layers of these nets differ: shown is the last of each."));
  CHECK(has(page, ">the last layer: what many flips at once keep of their promise</text>"));
  CHECK(shows_value(page, "the best flips, made at once 100",
                    "large, on the same images: 30\nlarge, on others: 15\nsmall, on the same images: 50"));
  CHECK_FALSE(has(page, ">36.00%</text>"));

  for (const char* none : {"null", "[]", "{}", R"({"layers":3})", R"({"layers":[1,2]})"}) {
    INFO(none);
    small.flips = json::parse(none);
    const std::string of_one = render_comparison({small, large});
    CHECK(has(of_one, "Without a study (<code>bitloom inspect RUN --flips</code>): small.</p>"));
    CHECK(has(of_one, ">b: what many flips at once"));
    CHECK_FALSE(has(render_comparison({small, binary_run("other", 0.5)}), "id=\"flips\""));
  }
  // A study without figures has gaps in place of them.
  small.flips = json{{"layers", {json{{"layer", "bare"}}}}};
  require_self_contained(render_comparison({small, large}));
}
