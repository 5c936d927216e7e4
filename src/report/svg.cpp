#include "report/svg.h"

#include <fmt/format.h>

#include "report/markup.h"

namespace bitloom::report {

std::string colour_of(int colour) {
  if (colour < 0) return "var(--muted)";
  return fmt::format("var(--s{})", static_cast<std::size_t>(colour) % palette_size);
}

std::string at(double value) { return fmt::format("{:.5g}", value); }

std::string svg_text(double x, double y, std::string_view anchor, std::string_view text, std::string_view attributes) {
  return fmt::format(R"(<text x="{}" y="{}" text-anchor="{}"{}>{}</text>)", at(x), at(y), anchor, attributes, escape(text));
}

std::string svg_vertical_title(double y, std::string_view text) {
  const std::string attributes = " class=\"axis-title\" transform=\"rotate(-90 14 " + at(y) + ")\"";
  return svg_text(14, y, "middle", text, attributes);
}

std::string svg_open(std::string_view title, double width, double height) {
  return fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" role="img" aria-label="{}" font-size="{}">)", at(width),
      at(height), escape(title), chart_font);
}

std::string svg_title(std::string_view title) { return svg_text(0, 15, "start", title, R"( class="chart-title")"); }

std::string svg_no_data(double x, double y) { return svg_text(x, y, "middle", "nothing recorded", R"( class="no-data")"); }

Legend make_legend(const std::vector<LegendEntry>& entries, double x, double y, double width) {
  constexpr double mark = 20, gap = 16, row = 18;
  constexpr std::size_t longest = 28;
  Legend legend;
  if (entries.size() < 2) return legend;
  double dx = 0, dy = 0;
  for (const LegendEntry& entry : entries) {
    const std::string name = shorten_middle(entry.name, longest);
    const double needed = mark + text_width(name, chart_font) + gap;
    if (dx > 0 && dx + needed - gap > width) {
      dx = 0;
      dy += row;
    }
    const std::string colour = colour_of(entry.colour);
    if (entry.mark == LegendEntry::Mark::square) {
      legend.svg += fmt::format(R"(<rect x="{}" y="{}" width="12" height="12" rx="2" style="fill:{}"/>)", at(x + dx),
                                at(y + dy + 1), colour);
    } else {
      legend.svg += fmt::format(R"(<path class="line{}" style="--c:{}" d="M{} {}h15"/>)",
                                entry.mark == LegendEntry::Mark::dashed ? " faint" : "", colour, at(x + dx), at(y + dy + 7));
    }
    legend.svg += svg_text(x + dx + mark, y + dy + 11, "start", name);
    dx += needed;
  }
  legend.height = dy + row + 4;
  return legend;
}

}  // namespace bitloom::report
