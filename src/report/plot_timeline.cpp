#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/scale.h"
#include "report/svg.h"

namespace bitloom::report {
namespace {

constexpr double row_height = 30, box_height = 20, strip_height = 4;
constexpr double least_width = 0.4;  // of a box: shorter ones still show

bool drawable(const TimelineBox& box) { return plottable(box.from, false) && plottable(box.to, false) && box.to >= box.from; }

std::string draw(const TimelineBox& box, const TimelineKind& kind, double x, double width, double y) {
  const double height = kind.thin ? strip_height : box_height;
  const double top = kind.thin ? y + box_height + 1 : y;
  const std::string what = fmt::format("{}{}{}: {:.4g}", kind.name, box.label.empty() ? "" : " ", box.label, box.to - box.from);
  std::string svg =
      fmt::format(R"(<rect{} x="{}" y="{}" width="{}" height="{}" style="fill:{}"><title>{}</title></rect>)",
                  box.pale ? " class=\"odd\"" : "", at(x), at(top), at(width), height, colour_of(kind.colour), escape(what));
  if (!kind.thin && !box.label.empty() && text_width(box.label, 11) + 2 <= width) {
    svg += svg_text(x + width / 2, y + 14.5, "middle", box.label, R"( class="in-box")");
  }
  return svg;
}

}  // namespace

std::string to_svg(const TimelineChart& chart) {
  constexpr std::size_t longest_label = 24;
  Range range;
  double label_width = 0;
  std::vector<bool> occurs(chart.kinds.size(), false);
  for (const TimelineRow& row : chart.rows) {
    label_width = std::max(label_width, text_width(shorten(row.name, longest_label), chart_font));
    for (const TimelineBox& box : row.boxes) {
      if (box.kind >= chart.kinds.size()) {
        fail(ErrorKind::usage, "row \"{}\" has a box of kind {}: expected one of {}", row.name, box.kind, chart.kinds.size());
      }
      if (!drawable(box)) continue;
      range.add(box.from);
      range.add(box.to);
      occurs[box.kind] = true;
    }
  }
  std::vector<LegendEntry> entries;
  for (std::size_t i = 0; i < chart.kinds.size(); ++i) {
    if (occurs[i]) entries.push_back({chart.kinds[i].name, chart.kinds[i].colour, LegendEntry::Mark::square});
  }
  const double left = label_width + 10, right = chart.width - 14;
  const Legend legend = make_legend(entries, left, title_height, chart.width - left);
  const double top = title_height + legend.height;
  const double bottom = top + row_height * static_cast<double>(std::max<std::size_t>(chart.rows.size(), 2)) + 2;
  std::string svg = svg_open(chart.title, chart.width, bottom + 44) + svg_title(chart.title);
  if (range.empty()) return svg + svg_no_data(chart.width / 2, (top + bottom) / 2) + "</svg>\n";
  svg += legend.svg;
  const Scale scale = make_scale(range, false, static_cast<int>((right - left) / 90), Fit::tight);
  const auto px = [&](double value) { return left + scale.at(value) * (right - left); };
  for (std::size_t i = 0; i < chart.rows.size(); ++i) {
    const TimelineRow& row = chart.rows[i];
    const double y = top + row_height * static_cast<double>(i);
    svg += fmt::format(R"(<rect class="lane" x="{}" y="{}" width="{}" height="{}"/>)", at(left), at(y), at(right - left),
                       box_height);
    svg += fmt::format("<g><title>{}</title>", escape(row.name)) +
           svg_text(left - 8, y + 14.5, "end", shorten(row.name, longest_label)) + "</g>";
    for (const TimelineBox& box : row.boxes) {
      if (!drawable(box)) continue;
      // A gap between neighbours, as thin as a line, where they are wide enough to spare it.
      const double width = px(box.to) - px(box.from);
      svg += draw(box, chart.kinds[box.kind], px(box.from), std::max(least_width, width > 4 ? width - 0.7 : width), y);
    }
  }
  svg += fmt::format(R"(<path class="axis" d="M{} {}H{}"/>)", at(left), at(bottom), at(right));
  for (const Tick& tick : scale.ticks) {
    svg += fmt::format(R"(<path class="axis" d="M{} {}v4"/>)", at(px(tick.value)), at(bottom));
    svg += svg_text(px(tick.value), bottom + 16, "middle", tick.label);
  }
  svg += svg_text((left + right) / 2, bottom + 34, "middle", chart.x.title, R"( class="axis-title")");
  return svg + "</svg>\n";
}

}  // namespace bitloom::report
