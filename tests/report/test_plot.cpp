#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "report/plot.h"
#include "tests/report/xml.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::report;

namespace {

const double not_a_number = std::numeric_limits<double>::quiet_NaN();
const double infinity = std::numeric_limits<double>::infinity();

// Well-formed, and no coordinate is NaN or infinite.
void require_sound(const std::string& svg) {
  REQUIRE(xml_problem(svg) == "");
  REQUIRE(svg.find("nan") == std::string::npos);
  REQUIRE(svg.find("inf") == std::string::npos);
}

LineChart line(std::vector<double> x, std::vector<double> y) {
  LineChart chart;
  chart.title = "Loss";
  chart.x.title = "time (s)";
  chart.y.title = "cross-entropy (nats)";
  chart.series.push_back({"layer1", std::move(x), std::move(y)});
  return chart;
}

std::string message_of(const auto& chart) {
  try {
    to_svg(chart);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    return error.what();
  }
  return "nothing thrown";
}

}  // namespace

TEST_CASE("the well-formedness check finds what is wrong") {
  CHECK(xml_problem("<a b=\"c\">d &amp; e<f/></a>\n") == "");
  for (const char* bad :
       {"", "text", "<a>", "<a></b>", "<a><b></a></b>", "<a/><a/>", "<a b=c/>", "<a b=\"1\" b=\"2\"/>", "<a>1 < 2</a>",
        "<a>&</a>", "<a>&nbsp;</a>", "<a b=\"<\"/>", "<a b=\"1\"c=\"2\"/>", "<a", "<a b=\"1", "<a>\x01</a>"}) {
    INFO(bad);
    CHECK(xml_problem(bad) != "");
  }
}

TEST_CASE("a line chart has title, axes, legend and bands") {
  LineChart chart = line({1, 2, 3}, {0.9, 0.5, 0.4});
  chart.series.push_back({"layer2", {2, 3}, {0.8, 0.7}, 1});
  chart.series.push_back({"layer1", {1, 2, 3}, {1.0, 0.6, 0.5}, 0, true});
  chart.solid_note = "validation";
  chart.faint_note = "training";
  chart.bands = {{0, 2, "first"}, {2, 3, "second"}};
  const std::string svg = to_svg(chart);
  require_sound(svg);
  for (const char* text : {">Loss<", ">time (s)<", ">cross-entropy (nats)<", ">layer2<", ">validation<", ">training<",
                           ">first<", ">second<", ">0.6<", ">2.0<"}) {
    INFO(text);
    CHECK(svg.find(text) != std::string::npos);
  }
  CHECK(count_of(svg, ">layer1<") == 1);              // the dashed twin is not in the legend
  CHECK(count_of(svg, "class=\"line faint\"") == 2);  // the twin, and the legend's mark
}

TEST_CASE("line charts survive one point, gaps and constants") {
  const std::string one = to_svg(line({5}, {0.7}));
  require_sound(one);
  CHECK(count_of(one, "<circle") == 1);

  // The gap splits the line, and the lone point after it is visible.
  const std::string gaps = to_svg(line({1, 2, 3, 4, not_a_number}, {1, 2, not_a_number, 4, 5}));
  require_sound(gaps);
  CHECK(count_of(gaps, "<circle") == 3);
  CHECK(count_of(gaps, "r=\"3.5\"") == 1);

  require_sound(to_svg(line({1, 2, 3}, {0.5, 0.5, 0.5})));
  require_sound(to_svg(line({0, 0}, {0, 0})));
  require_sound(to_svg(line({1, 2}, {1e300, 3})));

  for (const auto& empty : {line({}, {}), line({1, 2}, {not_a_number, infinity})}) {
    const std::string svg = to_svg(empty);
    require_sound(svg);
    CHECK(svg.find("nothing recorded") != std::string::npos);
  }

  LineChart logarithmic = line({1, 2, 3}, {0, 100, -5});
  logarithmic.y.logarithmic = true;
  const std::string svg = to_svg(logarithmic);
  require_sound(svg);
  CHECK(count_of(svg, "<circle") == 1);

  LineChart band = line({1, 2}, {1, 2});
  band.bands = {{not_a_number, 2, "a"}, {0, infinity, "b"}, {2, 1, "c"}};
  require_sound(to_svg(band));
}

// Lines of many points, dashed ones and areas had no values under the pointer.
TEST_CASE("under the pointer a line chart has the values of every curve, in few columns however many points there are") {
  LineChart chart = line({}, {});
  for (int i = 0; i < 5000; ++i) {
    chart.series[0].x.push_back(i);
    chart.series[0].y.push_back(i == 4999 ? 0.125 : 1);
  }
  chart.series.push_back({"", {0, 4999}, {123456, 2}, 1, true});
  chart.series.push_back({"are<a>", {4999, 5000}, {not_a_number, 7}, 2});
  chart.series.back().filled = true;
  const std::string svg = to_svg(chart);
  require_sound(svg);
  const std::string columns = svg.substr(svg.find("<g class=\"values\""));
  CHECK(count_of(columns, "<title>") <= 1080 / 18);
  CHECK(count_of(columns, "<title>") > 40);
  CHECK(columns.find("<title>time (s) 0\nlayer1: 1\nLoss: 123,456</title>") == std::string::npos);  // not the middle
  // A curve that has no point there shows its nearest one, too.
  CHECK(count_of(columns, "\nlayer1: ") == count_of(columns, "<title>"));
  CHECK(count_of(columns, "\nLoss: 123,456 (at 0)\n") > 20);
  CHECK(count_of(columns, "\nare&lt;a&gt;: 7 (at 5000)</title>") == count_of(columns, "<title>"));
  CHECK(columns.size() < 16000);

  // Few points: the columns meet between them and reach both ends.
  chart = line({1, 2, not_a_number, 4}, {0.5, 0.25, 1, 3});
  chart.bands = {{0, 3, "first"}, {3, 4, "second"}};
  const std::string few = to_svg(chart);
  require_sound(few);
  CHECK(few.find("<title>time (s) 1, first\nlayer1: 0.5</title>") != std::string::npos);
  CHECK(few.find("<title>time (s) 4, second\nlayer1: 3</title>") != std::string::npos);
  const std::string own = few.substr(few.find("<g class=\"values\""));
  REQUIRE(count_of(own, "<rect") == 3);
  double end = -1, total = 0;
  for (std::size_t place = own.find("<rect"); place != std::string::npos; place = own.find("<rect", place + 1)) {
    const auto number = [&](const std::string& name) { return std::stod(own.substr(own.find(name, place) + name.size())); };
    if (end >= 0) CHECK(std::abs(number("x=\"") - end) < 0.2);
    end = number("x=\"") + number("width=\"");
    total += number("width=\"");
  }
  CHECK(std::abs(end - (1080 - 14)) < 0.2);
  CHECK(total > 900);
}

TEST_CASE("labels of narrow bands are cut") {
  LineChart chart = line({0, 100}, {1, 2});
  chart.bands = {{0, 6, "a-long-name-of-a-stage"}, {6, 6.5, "tiny"}, {6.5, 100, "wide"}};
  const std::string svg = to_svg(chart);
  require_sound(svg);
  CHECK(svg.find("…</text>") != std::string::npos);
  CHECK(svg.find("<title>a-long-name-of-a-stage</title>") != std::string::npos);
  CHECK(svg.find(">tiny</text>") == std::string::npos);
  CHECK(svg.find(">wide</text>") != std::string::npos);
}

TEST_CASE("bar charts stack what can be drawn") {
  BarChart chart;
  chart.title = "Time";
  chart.x.title = "seconds";
  chart.rows = {"one", "two"};
  chart.series = {{"forward", {3, not_a_number}, 0}, {"update", {1, -2}, 1}};
  chart.row_notes = {"4 s", "—"};
  const std::string svg = to_svg(chart);
  require_sound(svg);
  CHECK(svg.find("forward: 3<") != std::string::npos);
  CHECK(svg.find("update: 1<") != std::string::npos);
  CHECK(svg.find("update: -2") == std::string::npos);
  CHECK(svg.find(">4 s<") != std::string::npos);

  BarChart empty;
  empty.title = "Nothing";
  require_sound(to_svg(empty));
  CHECK(to_svg(empty).find("nothing recorded") != std::string::npos);

  chart.series[1].values.pop_back();
  CHECK(message_of(chart) == "series \"update\" has 1 values: expected 2, one per row");
}

TEST_CASE("heat maps show counts and their shares") {
  HeatMap map;
  map.title = "Confusion";
  map.labels = {"cat", "dog"};
  map.counts = {{9, 1}, {not_a_number, -3}};
  const std::string svg = to_svg(map);
  require_sound(svg);
  CHECK(svg.find("cat → dog: 1 (10.0%)") != std::string::npos);
  CHECK(svg.find("cat → cat: 9 (90.0%)") != std::string::npos);
  CHECK(svg.find("dog → ") == std::string::npos);

  map.labels.assign(100, "x");
  map.counts.assign(100, std::vector<double>(100, 1));
  require_sound(to_svg(map));
  CHECK(to_svg(map).find(">x</text>") == std::string::npos);  // no room

  HeatMap none;
  require_sound(to_svg(none));
  none.labels = {"a"};
  CHECK(message_of(none).find("not 1 rows of 1") != std::string::npos);
}

TEST_CASE("an area is filled down to 0, in parts where values are missing") {
  LineChart chart = line({0, 1, 2, 3}, {4, 4, not_a_number, 2});
  chart.series[0].filled = true;
  const std::string svg = to_svg(chart);
  require_sound(svg);
  CHECK(count_of(svg, "style=\"fill:var(--s0)\"") == 1);
  CHECK(svg.find(">0</text>") != std::string::npos);  // the axis begins there, not at 2
  const std::string area = svg.substr(svg.find("style=\"fill:var(--s0)\""));
  CHECK(count_of(area.substr(0, area.find("/>")), "Z") == 2);
  CHECK(count_of(svg, "<circle") == 0);
  chart.series[0].y.assign(4, not_a_number);
  require_sound(to_svg(chart));
}

TEST_CASE("a map of values has a colour for each, the largest the strongest, and frames the diagonal") {
  ValueMap map;
  map.title = "Cosines";
  map.rows = {"a <cat>", "a dog"};
  map.column_images = {"x", "y"};
  map.values = {{0.75, -0.25}, {not_a_number, 0.5}};
  const std::string svg = to_svg(map);
  require_sound(svg);
  CHECK(svg.find("a &lt;cat&gt;, 1: 0.75") != std::string::npos);
  CHECK(svg.find("fill-opacity=\"0.94\"") != std::string::npos);
  CHECK(svg.find("fill-opacity=\"0.04\"") != std::string::npos);
  CHECK(count_of(svg, "fill-opacity") == 3);  // a gap
  CHECK(count_of(svg, "class=\"own\"") == 2);
  CHECK(svg.find("href=\"data:image/png;base64,eA==\"") != std::string::npos);
  map.width = 350;
  map.rows.assign(2, std::string(300, 'm'));
  require_sound(to_svg(map));
  map.values = {{1, 1}, {1, 1}};  // all alike
  require_sound(to_svg(map));
  map.values[1].pop_back();
  CHECK(message_of(map) == "values of map \"Cosines\" are not 2 rows of 2");
  const ValueMap none;
  CHECK(to_svg(none).find("nothing recorded") != std::string::npos);
}

TEST_CASE("tiles are scaled one by one") {
  TileChart tiles{"Filters", 3, 1, 2, 3, {0, 0.5F, -0.5F, 0, 0, 0, /**/ 0, 0, 0, 0, 0, 0, /**/ 100, 0, 0, 0, -100, 50}};
  const std::string svg = to_svg(tiles);
  require_sound(svg);
  CHECK(count_of(svg, "#80ff00") == 1);
  CHECK(count_of(svg, "#ff8080") == 1);
  CHECK(count_of(svg, "#8000bf") == 1);
  CHECK(count_of(svg, "<path") == 4);  // the tile of zeros is left out

  const float bad = std::numeric_limits<float>::quiet_NaN();
  require_sound(to_svg(TileChart{"Grey", 1, 1, 2, 1, {bad, 1}}));
  CHECK(to_svg(TileChart{"Grey", 1, 1, 2, 1, {bad, 1}}).find("#ffffff") != std::string::npos);
  CHECK(to_svg(TileChart{}).find("nothing recorded") != std::string::npos);

  TileChart limited{"Many", 4, 1, 1, 1, {1, 1, 1, 1}};
  limited.limit = 2;
  CHECK(count_of(to_svg(limited), "<path") == 2);

  CHECK(message_of(TileChart{"Wrong", 2, 2, 2, 3, {1, 2}}).find("do not fit 2 values") != std::string::npos);
  // 2^32 * 2^32 wraps around to 0.
  CHECK(message_of(TileChart{"Huge", std::size_t{1} << 32, std::size_t{1} << 32, 1, 1, {}}).find("do not fit") !=
        std::string::npos);
}
