// Pictures that stand alone: the same shapes as SVG and as PNG.
#include "report/picture.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "data/image.h"
#include "report/net_picture.h"
#include "report/step_chart.h"
#include "tests/report/xml.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::report;
using namespace bitloom::test;

namespace {

// A red box on the left, a dashed blue line in the middle, words on the right.
Picture example() {
  Picture picture{100, 40, "a <title>", {}};
  picture.shapes.push_back(Box{0, 0, 20, 40, {255, 0, 0}});
  picture.shapes.push_back(Stroke{{{50, 0}, {50, 40}}, {0, 0, 255}, 4, {10, 10}});
  picture.shapes.push_back(Words{{95, 30}, "W & W", Words::Anchor::end, 14, {0, 0, 0}, true});
  return picture;
}

data::Image decoded(const std::string& png) {
  const TempDir folder;
  write_file(folder / "picture.png", png);
  return data::read_image(folder / "picture.png");
}

// The pixel at column x, row y.
Colour pixel(const data::Image& image, std::size_t x, std::size_t y) {
  const std::size_t plane = image.shape.height * image.shape.width, at = y * image.shape.width + x;
  return {image.pixels[at], image.pixels[plane + at], image.pixels[2 * plane + at]};
}

bool is(Colour a, Colour b) { return a.red == b.red && a.green == b.green && a.blue == b.blue; }
constexpr Colour white{255, 255, 255};

// Pixels in columns from..to-1 that are not white.
std::size_t ink(const data::Image& image, std::size_t from, std::size_t to) {
  std::size_t count = 0;
  for (std::size_t y = 0; y < image.shape.height; ++y) {
    for (std::size_t x = from; x < to; ++x) count += is(pixel(image, x, y), white) ? 0U : 1U;
  }
  return count;
}

StepChart chart() {
  StepChart chart;
  chart.title = "Derivative";
  chart.subtitle = "in three steps";
  chart.x_title = "input";
  chart.y_title = "slope";
  chart.low = -2;
  chart.high = 2;
  chart.curve = {{{-2, 0}, {-0.5, 0.2}}, {{-0.5, 0.4}, {2, 1}}};
  chart.curve_name = "exact";
  chart.boundaries = {-5, -0.5, 1};
  chart.levels = {7, 0.1, 0.5, 0.9};
  chart.steps_name = "steps";
  chart.boundaries_name = "where they begin";
  return chart;
}

}  // namespace

TEST_CASE("a picture as SVG is a document with its shapes", "[picture]") {
  const std::string svg = to_svg(example());
  CHECK(xml_problem(svg) == "");
  for (const char* part : {R"(xmlns="http://www.w3.org/2000/svg" width="100" height="40")", "a &lt;title&gt;", "W &amp; W",
                           R"(fill="#ff0000")", R"(stroke="#0000ff" stroke-width="4")", R"(stroke-dasharray="10 10")",
                           R"(text-anchor="end")", "font-weight=\"bold\"", "fill=\"#ffffff\""}) {
    CAPTURE(part);
    CHECK(has(svg, part));
  }
}

TEST_CASE("a picture as PNG has its shapes where they belong", "[picture]") {
  const data::Image image = decoded(to_png(example(), 3));
  REQUIRE(image.shape.width == 300);
  REQUIRE(image.shape.height == 120);
  CHECK(is(pixel(image, 30, 60), {255, 0, 0}));
  CHECK(is(pixel(image, 59, 119), {255, 0, 0}));
  CHECK(is(pixel(image, 61, 60), white));
  CHECK(is(pixel(image, 150, 15), {0, 0, 255}));  // a dash
  CHECK(is(pixel(image, 150, 45), white));        // between dashes
  CHECK(is(pixel(image, 299, 119), white));
  // Words: there is ink, it ends at the anchor, and more of them reach further to the left.
  CHECK(ink(image, 170, 286) > 300);
  CHECK(ink(image, 287, 300) == 0);
  Picture longer = example();
  std::get<Words>(longer.shapes[2]).text = "W & W W";
  CHECK(ink(decoded(to_png(longer, 3)), 170, 286) > ink(image, 170, 286));
}

TEST_CASE("words that go upwards are taller than wide", "[picture]") {
  Picture picture{60, 60, "", {Words{{40, 50}, "upwards", Words::Anchor::start, 10, {0, 0, 0}, false, true}}};
  const data::Image image = decoded(to_png(picture, 2));
  CHECK(ink(image, 56, 90) > 50);
  CHECK(ink(image, 0, 56) + ink(image, 90, 120) == 0);
  CHECK(has(to_svg(picture), "rotate(-90 40 50)"));
}

TEST_CASE("pictures of no size or too large a size are refused", "[picture]") {
  const auto message = [](double width, double height) {
    return message_of(ErrorKind::usage, [&] { to_png(Picture{width, height, "", {}}, 1); });
  };
  CHECK(message(1, 1) == "no error");
  for (const double bad : {0.0, -5.0, 1e6, std::numeric_limits<double>::quiet_NaN()}) {
    CAPTURE(bad);
    CHECK(has(message(bad, 10), "picture: "));
  }
  CHECK(has(message(20000, 20000), "100 million"));
}

TEST_CASE("the ending of a file says how a picture is written", "[picture]") {
  CHECK(picture_format("a.svg", "--out")(example()).starts_with("<svg"));
  CHECK(picture_format("folder.svg/a.PNG", "--out")(example()).substr(1, 3) == "PNG");
  CHECK(message_of(ErrorKind::usage, [] { picture_format("a.svgz", "--out"); }) ==
        "--out: 'a.svgz' ends in neither .svg nor .png");
}

TEST_CASE("a step chart has axes, legend, curve, and the steps that lie within", "[picture]") {
  const Picture picture = draw(chart());
  const std::string svg = to_svg(picture);
  CHECK(xml_problem(svg) == "");
  for (const char* text : {">Derivative<", ">in three steps<", ">input<", ">slope<", ">exact<", ">steps<", ">where they begin<",
                           ">0<", ">1.0<", ">-2.0<", ">-1.0<"}) {
    CAPTURE(text);
    CHECK(has(svg, text));
  }
  CHECK_FALSE(has(svg, ">7<"));                     // the level that is not shown does not stretch the axis
  CHECK(count_of(svg, "stroke=\"#2f6fd0\"") == 3);  // two pieces of the curve, and the legend
  CHECK(count_of(svg, "stroke-dasharray") == 3);    // boundaries -0.5 and 1, and the legend
  CHECK(count_of(svg, "stroke=\"#e07b1f\"") == 2);  // one line of steps, and the legend
  const auto steps = std::find_if(picture.shapes.begin(), picture.shapes.end(), [](const auto& shape) {
    const auto* stroke = std::get_if<Stroke>(&shape);
    return stroke != nullptr && stroke->points.size() == 6;
  });
  REQUIRE(steps != picture.shapes.end());
  const auto& points = std::get<Stroke>(*steps).points;
  CHECK(points[0].y == points[1].y);
  CHECK(points[1].x == points[2].x);
  CHECK(points[2].y < points[1].y);  // higher levels are drawn higher
}

TEST_CASE("step charts whose sizes disagree are refused", "[picture]") {
  StepChart wrong = chart();
  wrong.levels.pop_back();
  CHECK(message_of(ErrorKind::usage, [&] { draw(wrong); }) == "chart: 3 levels and 3 boundaries, expected one level more");
  wrong = chart();
  wrong.low = wrong.high;
  CHECK(has(message_of(ErrorKind::usage, [&] { draw(wrong); }), "chart: from 2 to 2"));
}

namespace {

NetPicture small_net() {
  NetPicture net;
  net.title = "tiny <net>";
  net.height = net.width = 2;
  net.rgb = {255, 0, 0, 0, 255, 0, 0, 0, 255, 10, 20, 30};
  net.maps = {{"encoder", "2 x 2 x 2", 2, 2, {{1, 1, 0, 0}, {0, 1, 0, 1}}}, {"layer1", "1 x 1 x 1", 1, 1, {{1}}}};
  net.scores = {{"cat", 0.7}, {"dog", 0.3}};
  net.truth = "cat";
  return net;
}

}  // namespace

TEST_CASE("the picture of a net shows image, bits, verdict and training", "[picture]") {
  const std::string still = to_svg(draw(small_net()));
  REQUIRE(xml_problem(still) == "");
  for (const char* text :
       {"tiny &lt;net&gt;", ">encoder<", ">layer1<", ">heads<", "2 x 2 x 2 bits", ">cat<", ">dog<", "pixels: cat"}) {
    INFO(text);
    CHECK(still.find(text) != std::string::npos);
  }
  for (const char* colour : {"#ff0000", "#00ff00", "#0000ff", "#0a141e"}) CHECK(still.find(colour) != std::string::npos);
  CHECK(count_of(still, "#264682") == 4);  // runs of set bits: one, two of one bit, one
  CHECK(still.find("flip") == std::string::npos);

  NetPicture trained = small_net();
  for (int epoch = 1; epoch <= 3; ++epoch) {
    trained.metrics.push_back({{"event", "epoch"},
                               {"stage", "layer1"},
                               {"seconds", 10 * epoch},
                               {"heads", {{{"layer", "layer1"}, {"validation_accuracy", 0.1 * epoch}}}},
                               {"layers", {{{"layer", "layer1"}, {"flips_per_step", 1000 / epoch}}}}});
  }
  const Picture picture = draw(trained);
  const std::string svg = to_svg(picture);
  REQUIRE(xml_problem(svg) == "");
  CHECK(svg.find("weights that flip in a step") != std::string::npos);
  CHECK(count_of(svg, ">layer1<") == 2);  // at its maps and in the legend
  CHECK(picture.height > draw(small_net()).height);
  const data::Image image = decoded(to_png(picture, 1));
  CHECK(image.shape.width == 1200);
}

TEST_CASE("the picture of a net refuses sizes that disagree", "[picture]") {
  NetPicture net = small_net();
  net.rgb.pop_back();
  CHECK(has(message_of(ErrorKind::usage, [&] { draw(net); }), "11 bytes for an image of 2 x 2"));
  net = small_net();
  net.maps[0].channels[1].pop_back();
  CHECK(has(message_of(ErrorKind::usage, [&] { draw(net); }), "'encoder' has 3 bits, expected 2 x 2"));
}
