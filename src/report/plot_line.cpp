#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>

#include "core/error.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/scale.h"
#include "report/svg.h"

namespace bitloom::report {

namespace {

// The rectangle inside the axes, and its scales.
struct Frame {
  double left = 0, top = 0, right = 0, bottom = 0;
  Scale x, y;

  double px(double value) const { return left + x.at(value) * (right - left); }
  double py(double value) const { return bottom - y.at(value) * (bottom - top); }
};

double widest_label(const Scale& scale) {
  double widest = 0;
  for (const Tick& tick : scale.ticks) widest = std::max(widest, text_width(tick.label, chart_font));
  return widest;
}

std::string draw_bands(const LineChart& chart, const Frame& frame) {
  std::string svg;
  bool shaded = false;
  for (const Band& band : chart.bands) {
    if (!plottable(band.from, false) || !plottable(band.to, false)) continue;
    const double from = std::clamp(frame.px(band.from), frame.left, frame.right);
    const double to = std::clamp(frame.px(band.to), frame.left, frame.right);
    if (to - from < 0.5) continue;
    svg += fmt::format(R"(<g><title>{}</title><rect class="{}" x="{}" y="{}" width="{}" height="{}"/>)", escape(band.label),
                       band.marked ? (shaded ? "band-marked" : "band-marked odd")
                       : shaded    ? "band"
                                   : "band-even",
                       at(from), at(frame.top), at(to - from), at(frame.bottom - frame.top));
    shaded = !shaded;
    // A label that does not fit is cut, and left out when nothing readable would remain.
    const auto room = static_cast<std::size_t>((to - from - 6) / text_width("m", chart_font - 1));
    if (room >= 3 || room >= count_characters(band.label)) {
      svg += svg_text((from + to) / 2, frame.top - 4, "middle", shorten(band.label, room), R"( class="band-label")");
    }
    svg += "</g>";
  }
  return svg;
}

std::string draw_axes(const LineChart& chart, const Frame& frame) {
  std::string svg;
  for (const Tick& tick : frame.y.ticks) {
    const double y = frame.py(tick.value);
    svg += fmt::format(R"(<path class="grid" d="M{} {}H{}"/>)", at(frame.left), at(y), at(frame.right));
    svg += svg_text(frame.left - 7, y + 4, "end", tick.label);
  }
  for (const Tick& tick : frame.x.ticks) {
    const double x = frame.px(tick.value);
    svg += fmt::format(R"(<path class="axis" d="M{} {}v5"/>)", at(x), at(frame.bottom));
    svg += svg_text(x, frame.bottom + 18, "middle", tick.label);
  }
  svg += fmt::format(R"(<path class="axis" d="M{} {}H{}"/>)", at(frame.left), at(frame.bottom), at(frame.right));
  svg += svg_text((frame.left + frame.right) / 2, frame.bottom + 36, "middle", chart.x.title, R"( class="axis-title")");
  return svg + svg_vertical_title((frame.top + frame.bottom) / 2, chart.y.title);
}

// The area between the points and 0, which a linear axis then has.
std::string draw_area(const LineChart& chart, const Series& series, const Frame& frame) {
  const double base = chart.y.logarithmic ? frame.bottom : frame.py(0);
  std::string path;
  bool continued = false;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    const bool drawn = plottable(series.x[i], chart.x.logarithmic) && plottable(series.y[i], chart.y.logarithmic);
    if (continued && !drawn) path += fmt::format("V{}Z", at(base));
    if (drawn && !continued) path += fmt::format("M{} {}", at(frame.px(series.x[i])), at(base));
    if (drawn) path += fmt::format("L{} {}", at(frame.px(series.x[i])), at(frame.py(series.y[i])));
    continued = drawn;
  }
  if (continued) path += fmt::format("V{}Z", at(base));
  return path.empty() ? "" : fmt::format(R"(<path style="fill:{}" d="{}"/>)", colour_of(series.colour), path);
}

std::string draw_series(const LineChart& chart, const Series& series, const Frame& frame) {
  constexpr std::size_t most_dots = 80;
  const auto drawn = [&](std::size_t i) {
    return i < series.x.size() && plottable(series.x[i], chart.x.logarithmic) && plottable(series.y[i], chart.y.logarithmic);
  };
  std::string path, dots;
  for (std::size_t i = 0; i < series.x.size(); ++i) {
    if (!drawn(i)) continue;
    const bool continued = i > 0 && drawn(i - 1);
    const double x = frame.px(series.x[i]), y = frame.py(series.y[i]);
    path += fmt::format("{}{} {}", continued ? 'L' : 'M', at(x), at(y));
    // A point without neighbours has no line to show it.
    const bool alone = !continued && !drawn(i + 1);
    if (alone || (!series.faint && series.x.size() <= most_dots)) {
      dots += fmt::format(R"(<circle cx="{}" cy="{}" r="{}"/>)", at(x), at(y), alone ? 3.5 : 2.4);
    }
  }
  if (path.empty()) return "";
  return fmt::format(R"(<g style="--c:{}"><path class="{}" d="{}"/>{}</g>)", colour_of(series.colour),
                     series.faint ? "line faint" : "line", path, dots);
}

// A point of a series, and where it is along the axis.
struct Spot {
  double px = 0;
  std::size_t series = 0, point = 0;
};

std::vector<Spot> spots_of(const LineChart& chart, const Frame& frame) {
  std::vector<Spot> spots;
  for (std::size_t s = 0; s < chart.series.size(); ++s) {
    const Series& series = chart.series[s];
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (plottable(series.x[i], chart.x.logarithmic) && plottable(series.y[i], chart.y.logarithmic))
        spots.push_back({frame.px(series.x[i]), s, i});
    }
  }
  std::ranges::stable_sort(spots, {}, &Spot::px);
  return spots;
}

// Below 10,000 after rounding to four digits; larger ones whole.
std::string value_text(double value) { return std::abs(value) < 9999.5 ? fmt::format("{:.4g}", value) : grouped(value); }

std::string name_of(const LineChart& chart, const Series& series) {
  constexpr std::size_t longest = 60;
  const std::string note = series.faint ? chart.faint_note : chart.solid_note;
  const std::string name = shorten(series.name.empty() ? chart.title : series.name, longest);
  return note.empty() || note == name ? name : name + ", " + note;
}

// The values at the x of that of `spots` which is nearest to their middle: of each series the value at its nearest spot.
// `by_series`: all spots of each, along the axis.
std::string words_for(const LineChart& chart, const std::vector<std::vector<Spot>>& by_series, std::span<const Spot> spots) {
  const double middle = (spots.front().px + spots.back().px) / 2;
  const auto is_nearer = [](double to) {
    return [to](const Spot& a, const Spot& b) { return std::abs(a.px - to) < std::abs(b.px - to); };
  };
  const Spot& chosen = *std::ranges::min_element(spots, is_nearer(middle));
  const double x = chart.series[chosen.series].x[chosen.point];
  std::string words = fmt::format("{} {}", chart.x.title, value_text(x));
  const auto band = std::ranges::find_if(chart.bands, [&](const Band& b) { return b.from <= x && x <= b.to; });
  if (band != chart.bands.end()) words += ", " + shorten(band->label, 60);
  for (const std::vector<Spot>& all : by_series) {
    if (all.empty()) continue;
    const auto next = std::ranges::lower_bound(all, chosen.px, {}, &Spot::px);
    const Spot spot = next == all.end()     ? all.back()
                      : next == all.begin() ? *next
                                            : std::min(*std::prev(next), *next, is_nearer(chosen.px));
    const Series& series = chart.series[spot.series];
    words += fmt::format("\n{}: {}", name_of(chart, series), value_text(series.y[spot.point]));
    if (series.x[spot.point] != x) words += fmt::format(" (at {})", value_text(series.x[spot.point]));
  }
  return words;
}

// Columns that no one sees, over the whole chart: under the pointer, each has the values of the points near it.
std::string draw_values(const LineChart& chart, const Frame& frame) {
  constexpr double least_column = 18;
  const std::vector<Spot> spots = spots_of(chart, frame);
  std::vector<std::vector<Spot>> by_series(chart.series.size());
  for (const Spot& spot : spots) by_series[spot.series].push_back(spot);
  std::string svg;
  double from = frame.left;
  for (std::size_t begin = 0; begin < spots.size();) {
    std::size_t end = begin;
    while (end < spots.size() && spots[end].px - spots[begin].px < least_column) ++end;
    const double to = end == spots.size() ? frame.right : (spots[end - 1].px + spots[end].px) / 2;
    svg += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>)", at(from), at(frame.top),
                       at(to - from), at(frame.bottom - frame.top),
                       escape(words_for(chart, by_series, std::span(spots).subspan(begin, end - begin))));
    from = to;
    begin = end;
  }
  return R"(<g class="values" fill="none" pointer-events="all">)" + svg + "</g>";
}

}  // namespace

std::string to_svg(const LineChart& chart) {
  Range range_x, range_y;
  for (const Series& series : chart.series) {
    if (series.x.size() != series.y.size()) {
      fail(ErrorKind::usage, "series \"{}\" has {} x values and {} y values: expected as many of both", series.name,
           series.x.size(), series.y.size());
    }
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      if (!plottable(series.x[i], chart.x.logarithmic) || !plottable(series.y[i], chart.y.logarithmic)) continue;
      range_x.add(series.x[i], chart.x.logarithmic);
      range_y.add(series.y[i], chart.y.logarithmic);
      if (series.filled) range_y.add(0, chart.y.logarithmic);
    }
  }
  const bool any = !range_x.empty();
  if (any && !chart.x.logarithmic) {
    for (const Band& band : chart.bands) {
      range_x.add(band.from);
      range_x.add(band.to);
    }
  }

  std::vector<LegendEntry> entries;
  for (const Series& series : chart.series) {
    if (!series.name.empty() && !series.faint)
      entries.push_back({series.name, series.colour, series.filled ? LegendEntry::Mark::square : LegendEntry::Mark::line});
  }
  if (!chart.solid_note.empty()) entries.push_back({chart.solid_note, grey, LegendEntry::Mark::line});
  if (!chart.faint_note.empty()) entries.push_back({chart.faint_note, grey, LegendEntry::Mark::dashed});

  Frame frame;
  frame.x = make_scale(range_x, chart.x.logarithmic, static_cast<int>(chart.width / 110), Fit::tight);
  frame.y = make_scale(range_y, chart.y.logarithmic, 6, Fit::round, chart.y.percent ? percentages : everything);
  // At least as wide as "0.25", so that most charts above one another share their time axis.
  frame.left = 34 + std::max(widest_label(frame.y), text_width("0.25", chart_font));
  frame.right = chart.width - 14;
  const Legend legend = make_legend(entries, frame.left, title_height, frame.right - frame.left);
  frame.top = title_height + legend.height + (chart.bands.empty() ? 6 : 18);  // names of bands stand above what is drawn
  frame.bottom = frame.top + chart.height - 90;
  const double height = frame.bottom + 44;

  std::string svg = svg_open(chart.title, chart.width, height) + svg_title(chart.title) + legend.svg;
  if (!any) return svg + svg_no_data((frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2) + "</svg>\n";
  svg += draw_bands(chart, frame) + draw_axes(chart, frame);
  for (const bool faint : {true, false}) {
    for (const Series& series : chart.series) {
      if (series.faint != faint) continue;
      svg += series.filled ? draw_area(chart, series, frame) : draw_series(chart, series, frame);
    }
  }
  return svg + draw_values(chart, frame) + "</svg>\n";
}

}  // namespace bitloom::report
