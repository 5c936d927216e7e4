// Pictures of which process did what when.
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "report/plot.h"
#include "report/sections.h"
#include "tests/report/page.h"

namespace bitloom::report {
namespace {

TimelineChart timeline_chart() {
  TimelineChart chart;
  chart.title = "Step <3>";
  chart.x.title = "time (ms)";
  chart.kinds = {{"forward", 0}, {"send", 2, true}, {"never", 3}};
  chart.rows = {{"process 0", {{0, 10, 0, "42"}, {10, 10.001, 0, "43"}, {10, 12, 1, ""}}},
                {"process & 1", {{10, 20, 0, "42", true}}}};
  return chart;
}

nlohmann::json line(double step, int rank, nlohmann::json events) {
  return {{"step", step}, {"rank", rank}, {"bubble", 0.25}, {"events", std::move(events)}};
}

nlohmann::json event(const char* kind, int micro_batch, int chunk, double begin, double end) {
  return {{"kind", kind}, {"micro_batch", micro_batch}, {"chunk", chunk}, {"begin", begin}, {"end", end}};
}

}  // namespace

TEST_CASE("a timeline has rows, boxes with labels where they fit, and a legend of what occurs", "[timeline]") {
  const std::string svg = to_svg(timeline_chart());
  REQUIRE(xml_problem(svg) == "");
  CHECK(test::has(svg, "Step &lt;3&gt;"));
  CHECK(test::has(svg, ">process &amp; 1<"));
  CHECK(count_of(svg, "class=\"lane\"") == 2);
  CHECK(count_of(svg, "<title>forward") == 3);
  CHECK(count_of(svg, ">42<") == 2);
  CHECK(count_of(svg, ">43<") == 0);             // too narrow for its label,
  CHECK(test::has(svg, "<title>forward 43: "));  // which is in its title
  CHECK(count_of(svg, "class=\"odd\"") == 1);
  CHECK(test::has(svg, ">send<"));
  CHECK(!test::has(svg, ">never<"));
  CHECK(test::has(svg, R"x(height="4" style="fill:var(--s2)")x"));
}

TEST_CASE("a timeline without anything to draw says so", "[timeline]") {
  TimelineChart empty = timeline_chart();
  for (TimelineRow& row : empty.rows) row.boxes.clear();
  CHECK(test::has(to_svg(empty), "nothing recorded"));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  empty.rows[0].boxes = {{nan, 1, 0, "", false}, {0, nan, 0, "", false}, {2, 1, 0, "", false}};
  const std::string svg = to_svg(empty);
  CHECK(test::has(svg, "nothing recorded"));
  CHECK(!test::has(svg, "nan"));
  TimelineChart wrong = timeline_chart();
  wrong.rows[1].boxes[0].kind = 3;
  CHECK(test::has(test::message_of(ErrorKind::usage, [&] { to_svg(wrong); }), "row \"process & 1\" has a box of kind 3"));
}

TEST_CASE("the section shows the last step of the log, and the bubble", "[timeline]") {
  CHECK(timeline({}) == "");
  const auto passes =
      nlohmann::json::array({event("forward", 0, 0, 0, 0.5), event("recompute", 1, 1, 0.5, 1), event("dance", 2, 0, 1, 1.5)});
  const auto none = nlohmann::json::array();
  // Step 8 was begun, resumed with fewer processes and done again.
  const std::string html = timeline({line(0, 0, passes), line(8, 0, none), line(8, 1, none), line(8, 2, none),
                                     line(8, 0, passes), line(8, 1, none), "noise"});
  REQUIRE(xml_problem(html) == "");
  CHECK(test::has(html, "Step 8: bubble 25.00%"));
  CHECK(test::has(html, "time (ms)"));
  CHECK(count_of(html, ">process 1<") == 4);  // in two charts, each as text and as its title
  CHECK(test::has(html, "forward again 1: 500"));
  CHECK(count_of(html, "class=\"odd\"") == 2);
  CHECK(!test::has(html, ">process 2<"));
  CHECK(!test::has(html, "dance"));
  // Long steps are in seconds.
  CHECK(test::has(timeline({line(0, 0, nlohmann::json::array({event("backward", 0, 0, 1, 3)}))}), "time (s)"));
}

TEST_CASE("the section survives lines that are none", "[timeline]") {
  for (const char* text :
       {R"({"step": 1})", R"({"step": 1, "events": 3})", R"({"step": 1, "events": [3, {"kind": "forward"}]})",
        R"({"step": "x"})", R"([])",
        R"({"step": 1, "rank": 0, "bubble": null, "events": [{"kind": "forward", "begin": 1, "end": 0}]})"}) {
    INFO(text);
    CHECK(xml_problem("<a>" + timeline({nlohmann::json::parse(text)}) + "</a>") == "");
  }
}

// Events beyond those that a log takes were missing without a word.
TEST_CASE("the section says how many events the log left out", "[timeline]") {
  nlohmann::json first = line(0, 0, nlohmann::json::array({event("forward", 0, 0, 0, 1)}));
  nlohmann::json second = line(0, 1, nlohmann::json::array({event("forward", 0, 0, 0, 1)}));
  first["left_out"] = 0;
  second["left_out"] = 0;
  CHECK(!test::has(timeline({first, second}), "left out"));
  first["left_out"] = 1200;
  second["left_out"] = 34;
  CHECK(test::has(timeline({first, second}), "The log left out the last 1,234 events,"));
}

TEST_CASE("of very many processes the first are shown", "[timeline]") {
  std::vector<nlohmann::json> lines;
  for (int rank = 0; rank < 70; ++rank) lines.push_back(line(0, rank, nlohmann::json::array({event("forward", 0, 0, 0, 1)})));
  const std::string html = timeline(lines);
  CHECK(test::has(html, "The first 64 of 70 processes are shown."));
  CHECK(count_of(html, "class=\"lane\"") == 2 * 64);
}

}  // namespace bitloom::report
