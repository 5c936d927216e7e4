#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/text.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/scale.h"
#include "report/svg.h"

namespace bitloom::report {
namespace {

constexpr double largest_cell = 48;
constexpr std::size_t longest_label = 22;

// Rows of labels with at most a third of the width.
std::string label_of(const ValueMap& chart, std::size_t row) {
  const auto room = static_cast<std::size_t>(chart.width / 3 / text_width("m", chart_font));
  return shorten(chart.rows[row], std::clamp<std::size_t>(room, 4, longest_label));
}

std::string cell(const ValueMap& chart, std::size_t i, std::size_t j, double strength, double x, double y, double side) {
  const double opacity = 0.04 + 0.9 * strength;
  const std::string text = fmt::format("{:.2f}", chart.values[i][j]);
  std::string svg = fmt::format(
      R"svg(<g><title>{}, {}: {}</title><rect x="{}" y="{}" width="{}" height="{}" style="fill:var(--heat-good)" )svg"
      R"svg(fill-opacity="{:.2f}"/>)svg",
      escape(chart.rows[i]), j + 1, text, at(x + 0.5), at(y + 0.5), at(side - 1), at(side - 1), opacity);
  if (text_width(text, chart_font) + 4 < side) {
    svg += svg_text(x + side / 2, y + side / 2 + 4, "middle", text, opacity > 0.6 ? R"( class="on-strong")" : "");
  }
  return svg + "</g>";
}

}  // namespace

std::string to_svg(const ValueMap& chart) {
  const std::size_t columns = chart.column_images.size();
  if (chart.values.size() != chart.rows.size() ||
      std::ranges::any_of(chart.values, [&](const auto& row) { return row.size() != columns; })) {
    fail(ErrorKind::usage, "values of map \"{}\" are not {} rows of {}", chart.title, chart.rows.size(), columns);
  }
  Range range;
  for (const std::vector<double>& row : chart.values) {
    for (const double value : row) {
      if (plottable(value, false)) range.add(value);
    }
  }
  if (range.empty()) {
    return svg_open(chart.title, chart.width, 120) + svg_title(chart.title) + svg_no_data(chart.width / 2, 70) + "</svg>\n";
  }
  double label_width = 0;
  for (std::size_t i = 0; i < chart.rows.size(); ++i) {
    label_width = std::max(label_width, text_width(label_of(chart, i), chart_font));
  }
  const double left = 24 + label_width + 8;
  const double side = std::min(largest_cell, (chart.width - left - 4) / static_cast<double>(columns));
  const double head = title_height + 20;
  const double top = head + side + 6;
  const double right = left + side * static_cast<double>(columns);
  const double bottom = top + side * static_cast<double>(chart.rows.size());
  std::string svg = svg_open(chart.title, chart.width, bottom + 8) + svg_title(chart.title);
  svg += svg_text((left + right) / 2, head - 6, "middle", chart.column_title, R"( class="axis-title")");
  svg += svg_vertical_title((top + bottom) / 2, chart.row_title);
  for (std::size_t j = 0; j < columns; ++j) {
    svg += fmt::format(R"(<image x="{}" y="{}" width="{}" height="{}" href="data:image/png;base64,{}"/>)",
                       at(left + side * static_cast<double>(j) + 1), at(head), at(side - 2), at(side - 2),
                       base64(chart.column_images[j]));
  }
  const double span = std::max(range.high - range.low, std::numeric_limits<double>::min());
  for (std::size_t i = 0; i < chart.rows.size(); ++i) {
    const double y = top + side * static_cast<double>(i);
    svg += fmt::format("<g><title>{}</title>{}</g>", escape(chart.rows[i]),
                       svg_text(left - 7, y + side / 2 + 4, "end", label_of(chart, i)));
    for (std::size_t j = 0; j < columns; ++j) {
      const double value = chart.values[i][j];
      const double x = left + side * static_cast<double>(j);
      if (plottable(value, false)) svg += cell(chart, i, j, (value - range.low) / span, x, y, side);
    }
  }
  for (std::size_t i = 0; i < std::min(columns, chart.rows.size()); ++i) {
    const double offset = side * static_cast<double>(i);
    svg += fmt::format(R"(<rect class="own" x="{}" y="{}" width="{}" height="{}"/>)", at(left + offset + 0.5),
                       at(top + offset + 0.5), at(side - 1), at(side - 1));
  }
  return svg + "</svg>\n";
}

}  // namespace bitloom::report
