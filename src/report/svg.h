// Parts that the charts share; private to this folder.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/plot.h"

namespace bitloom::report {

struct LegendEntry {
  std::string name;
  int colour = 0;
  enum class Mark { square, line, dashed } mark = Mark::square;
};

struct Legend {
  std::string svg;
  double height = 0;
};

// CSS colour of a series.
std::string colour_of(int colour);
// A coordinate, rounded to a tenth of a unit.
std::string at(double value);
// <text> with its anchor ("start", "middle", "end"); `attributes` is markup and starts with a space.
std::string svg_text(double x, double y, std::string_view anchor, std::string_view text, std::string_view attributes = "");
// The title of a vertical axis, in the left margin, centred at y.
std::string svg_vertical_title(double y, std::string_view text);
// The opening tag, with the title for those who cannot see the picture.
std::string svg_open(std::string_view title, double width, double height);
// The visible title at the top left; charts begin below `title_height`.
std::string svg_title(std::string_view title);
inline constexpr double title_height = 30;
// Entries in rows of at most `width` from (x, y) downwards; nothing for fewer than two entries.
Legend make_legend(const std::vector<LegendEntry>& entries, double x, double y, double width);
// The words that stand in an empty chart.
std::string svg_no_data(double x, double y);

}  // namespace bitloom::report
