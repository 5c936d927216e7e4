#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/scale.h"
#include "report/svg.h"

namespace bitloom::report {

std::string to_svg(const BarChart& chart) {
  constexpr double row_height = 26, bar_height = 17;
  constexpr std::size_t longest_label = 24;
  const auto usable = [](double value) { return plottable(value, false) && value > 0 ? value : 0.0; };
  std::vector<double> sums(chart.rows.size(), 0);
  std::vector<LegendEntry> entries;
  for (const BarSeries& series : chart.series) {
    if (series.values.size() != chart.rows.size()) {
      fail(ErrorKind::usage, "series \"{}\" has {} values: expected {}, one per row", series.name, series.values.size(),
           chart.rows.size());
    }
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += usable(series.values[i]);
    entries.push_back({series.name, series.colour, LegendEntry::Mark::square});
  }
  if (!chart.row_notes.empty() && chart.row_notes.size() != chart.rows.size()) {
    fail(ErrorKind::usage, "row_notes has {} entries: expected {}, one per row", chart.row_notes.size(), chart.rows.size());
  }
  Range range{0, chart.limit};
  double label_width = 0, note_width = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    range.add(sums[i]);
    label_width = std::max(label_width, text_width(shorten_middle(chart.rows[i], longest_label), chart_font));
    if (!chart.row_notes.empty()) note_width = std::max(note_width, text_width(chart.row_notes[i], chart_font));
  }
  const double left = label_width + 10;
  const double right = chart.width - std::max(14.0, note_width + 12);
  const Legend legend = make_legend(entries, left, title_height, chart.width - left);
  const double top = title_height + legend.height;
  const double bottom = top + row_height * static_cast<double>(std::max<std::size_t>(chart.rows.size(), 2)) + 4;
  std::string svg = svg_open(chart.title, chart.width, bottom + 44) + svg_title(chart.title);
  if (!(range.high > 0)) return svg + svg_no_data(chart.width / 2, (top + bottom) / 2) + "</svg>\n";
  svg += legend.svg;

  const Scale scale = make_scale(range, false, static_cast<int>((right - left) / 90), Fit::tight);
  const auto px = [&](double value) { return left + scale.at(value) * (right - left); };
  for (const Tick& tick : scale.ticks) {
    svg += fmt::format(R"(<path class="grid" d="M{} {}V{}"/>)", at(px(tick.value)), at(top), at(bottom));
    svg += svg_text(px(tick.value), bottom + 16, "middle", tick.label);
  }
  svg += svg_text((left + right) / 2, bottom + 34, "middle", chart.x.title, R"( class="axis-title")");
  for (std::size_t i = 0; i < chart.rows.size(); ++i) {
    const double y = top + row_height * static_cast<double>(i) + (row_height - bar_height) / 2 + 2;
    svg += fmt::format("<g><title>{}</title>", escape(chart.rows[i])) +
           svg_text(left - 8, y + 13, "end", shorten_middle(chart.rows[i], longest_label)) + "</g>";
    double sum = 0;
    for (const BarSeries& series : chart.series) {
      const double value = usable(series.values[i]);
      const double from = px(sum), to = px(sum + value);
      sum += value;
      if (!(to - from > 0.05)) continue;
      svg += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" style="fill:{}"><title>{}: {:.4g}</title></rect>)",
                         at(from), at(y), at(to - from), bar_height, colour_of(series.colour), escape(series.name), value);
    }
    if (!chart.row_notes.empty()) svg += svg_text(px(sum) + 6, y + 13, "start", chart.row_notes[i]);
  }
  svg += fmt::format(R"(<path class="axis" d="M{} {}V{}"/>)", at(left), at(top), at(bottom));
  return svg + "</svg>\n";
}

}  // namespace bitloom::report
