#include "report/step_chart.h"

#include <algorithm>

#include "core/error.h"
#include "report/markup.h"
#include "report/scale.h"

namespace bitloom::report {
namespace {

constexpr double width = 760, height = 460;
constexpr double left = 66, right = width - 22, top = 88, bottom = height - 58;
constexpr Colour step_ink{28, 36, 48}, step_muted{102, 112, 133}, step_grid{233, 236, 241}, step_axis{152, 162, 179};
constexpr Colour curve_colour{47, 111, 208}, steps_colour{224, 123, 31}, boundary_colour{170, 178, 192};
constexpr double tick_font = 13;
constexpr double curve_width = 1.8, steps_width = 4;  // the curve lies on the steps: where they agree, both show

struct StepFrame {
  Scale x, y;

  Point at(double px, double py) const { return {left + x.at(px) * (right - left), bottom - y.at(py) * (bottom - top)}; }
};

// The steps that the chart shows: from its left end over the boundaries within to its right end.
struct Step {
  double from = 0, to = 0, level = 0;
};

std::vector<Step> shown_steps(const StepChart& chart) {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < chart.levels.size(); ++i) {
    const double from = i == 0 ? chart.low : std::max(chart.low, chart.boundaries[i - 1]);
    const double to = i + 1 == chart.levels.size() ? chart.high : std::min(chart.high, chart.boundaries[i]);
    if (from < to) steps.push_back({from, to, chart.levels[i]});
  }
  return steps;
}

StepFrame make_frame(const StepChart& chart, const std::vector<Step>& steps) {
  Range range_x, range_y;
  range_x.add(chart.low);
  range_x.add(chart.high);
  for (const std::vector<Point>& piece : chart.curve) {
    for (const Point& point : piece) range_y.add(point.y);
  }
  for (const Step& step : steps) range_y.add(step.level);
  return {make_scale(range_x, false, 10, Fit::tight), make_scale(range_y, false, 6, Fit::round)};
}

void add_axes(const StepChart& chart, const StepFrame& frame, Picture& picture) {
  for (const Tick& tick : frame.y.ticks) {
    const double y = frame.at(chart.low, tick.value).y;
    picture.shapes.push_back(Stroke{{{left, y}, {right, y}}, step_grid, 1, {}});
    picture.shapes.push_back(Words{{left - 8, y + 4.5}, tick.label, Words::Anchor::end, tick_font, step_ink});
  }
  picture.shapes.push_back(Stroke{{{left, bottom}, {right, bottom}}, step_axis, 1.2, {}});
  for (const Tick& tick : frame.x.ticks) {
    const double x = frame.at(tick.value, frame.y.low).x;
    picture.shapes.push_back(Stroke{{{x, bottom}, {x, bottom + 5}}, step_axis, 1.2, {}});
    picture.shapes.push_back(Words{{x, bottom + 20}, tick.label, Words::Anchor::middle, tick_font, step_ink});
  }
  picture.shapes.push_back(
      Words{{(left + right) / 2, height - 14}, chart.x_title, Words::Anchor::middle, tick_font, step_muted});
  picture.shapes.push_back(
      Words{{20, (top + bottom) / 2}, chart.y_title, Words::Anchor::middle, tick_font, step_muted, false, true});
}

void add_steps(const StepFrame& frame, const std::vector<Step>& steps, Picture& picture) {
  for (std::size_t i = 1; i < steps.size(); ++i) {
    const double x = frame.at(steps[i].from, 0).x;
    picture.shapes.push_back(Stroke{{{x, top}, {x, bottom}}, boundary_colour, 1, {3, 3}});
  }
  std::vector<Point> path;
  for (const Step& step : steps) {
    path.push_back(frame.at(step.from, step.level));
    path.push_back(frame.at(step.to, step.level));
  }
  picture.shapes.push_back(Stroke{std::move(path), steps_colour, steps_width, {}});
}

void add_curve(const StepChart& chart, const StepFrame& frame, Picture& picture) {
  for (const std::vector<Point>& piece : chart.curve) {
    std::vector<Point> path;
    for (const Point& point : piece) path.push_back(frame.at(point.x, point.y));
    if (path.size() > 1) picture.shapes.push_back(Stroke{std::move(path), curve_colour, curve_width, {}});
  }
}

void add_legend(const StepChart& chart, Picture& picture) {
  double x = left;
  const auto entry = [&](const std::string& name, Colour colour, double stroke, std::vector<double> dashes) {
    if (name.empty()) return;
    picture.shapes.push_back(Stroke{{{x, top - 21}, {x + 24, top - 21}}, colour, stroke, std::move(dashes)});
    picture.shapes.push_back(Words{{x + 31, top - 16.5}, name, Words::Anchor::start, tick_font, step_ink});
    x += 31 + text_width(name, tick_font) + 20;
  };
  entry(chart.curve_name, curve_colour, curve_width, {});
  entry(chart.steps_name, steps_colour, steps_width, {});
  entry(chart.boundaries_name, boundary_colour, 1.4, {3, 3});
}

}  // namespace

Picture draw(const StepChart& chart) {
  if (!(chart.low < chart.high)) fail(ErrorKind::usage, "chart: from {} to {}", chart.low, chart.high);
  if (chart.levels.size() != chart.boundaries.size() + 1) {
    fail(ErrorKind::usage, "chart: {} levels and {} boundaries, expected one level more", chart.levels.size(),
         chart.boundaries.size());
  }
  const std::vector<Step> steps = shown_steps(chart);
  const StepFrame frame = make_frame(chart, steps);
  Picture picture{width, height, chart.title, {}};
  picture.shapes.push_back(Words{{left, 26}, chart.title, Words::Anchor::start, 16, step_ink, true});
  picture.shapes.push_back(Words{{left, 46}, chart.subtitle, Words::Anchor::start, tick_font, step_muted});
  add_legend(chart, picture);
  add_axes(chart, frame, picture);
  add_steps(frame, steps, picture);
  add_curve(chart, frame, picture);
  return picture;
}

}  // namespace bitloom::report
