// Charts as inline SVG: line, stacked bar, heat map, map of values, timeline, image tiles. They scale with the page (a viewBox,
// no fixed size), need no script, and take their colours from the custom properties of the page's style sheet
// (report/page_style.h), so that one picture serves light and dark pages. Every string is escaped here. Values that cannot be
// drawn (NaN, infinite, not positive on a logarithmic axis) are gaps; a chart without any value says so.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bitloom::report {

inline constexpr std::size_t palette_size = 10;  // colours 0..9; larger numbers wrap around
inline constexpr int grey = -1;                  // a colour for what is not part of the series
inline constexpr double chart_font = 12;         // in viewBox units, like all sizes below

struct Axis {
  std::string title;  // with its unit: "time (min)"
  bool logarithmic = false;
  bool percent = false;  // of a whole: the axis ends at 0 and 100
};

struct Series {
  std::string name;  // empty: not in the legend
  std::vector<double> x;
  std::vector<double> y;  // as many as x
  int colour = 0;
  bool faint = false;   // thin and dashed, behind the others
  bool filled = false;  // down to 0, without dots
};

// A part of the x axis with its own background and label: a stage of a run.
struct Band {
  double from = 0;
  double to = 0;
  std::string label;
  bool marked = false;  // hatched: not of this run
};

struct LineChart {
  std::string title;
  Axis x;
  Axis y;
  std::vector<Series> series;
  std::vector<Band> bands;
  std::string faint_note;  // meaning of dashed and solid lines; both empty: no such entries in the legend
  std::string solid_note;
  double width = 1080;
  double height = 340;
};

struct BarSeries {
  std::string name;
  std::vector<double> values;  // one per row
  int colour = 0;
};

// Horizontal bars, one row per label, the series stacked. Negative values count as missing.
struct BarChart {
  std::string title;
  Axis x;
  std::vector<std::string> rows;
  std::vector<BarSeries> series;       // more than one: with a legend
  std::vector<std::string> row_notes;  // text at the end of each bar; empty: nothing
  double limit = 0;                    // the axis reaches at least this far
  double width = 1080;
};

// A square table of counts with the same labels on both axes. Shares are of the row's sum; the diagonal has its own colour.
struct HeatMap {
  std::string title;
  std::string row_title;
  std::string column_title;
  std::vector<std::string> labels;
  std::vector<std::vector<double>> counts;  // (labels, labels); missing and negative ones count as 0
  double width = 530;
};

// A table of values as colours, the largest the strongest; the diagonal, on which own pairs stand, is framed.
struct ValueMap {
  std::string title;
  std::string row_title;
  std::string column_title;
  std::vector<std::string> rows;            // labels
  std::vector<std::string> column_images;   // PNG files of squares that head the columns
  std::vector<std::vector<double>> values;  // (rows, columns); those that are not finite are gaps
  double width = 530;
};

// A stretch of time in a row of a timeline.
struct TimelineBox {
  double from = 0, to = 0;
  std::size_t kind = 0;  // of TimelineChart::kinds
  std::string label;     // inside, where there is room
  bool pale = false;     // a second shade of the kind's colour
};

struct TimelineKind {
  std::string name;
  int colour = 0;
  bool thin = false;  // a strip below the row's boxes: what goes on beside them
};

struct TimelineRow {
  std::string name;
  std::vector<TimelineBox> boxes;
};

// Who did what when: rows of boxes over a common time.
struct TimelineChart {
  std::string title;
  Axis x;
  std::vector<TimelineKind> kinds;  // those that occur are in the legend
  std::vector<TimelineRow> rows;
  double width = 1080;
};

// Small pictures side by side.
struct TileChart {
  std::string title;
  std::size_t count = 0, tile_height = 0, tile_width = 0, colours = 0;
  std::vector<float>
      values;  // (count, tile_height, tile_width, colours); 3 colours are RGB, any other number is averaged to grey
  std::size_t limit = 256;  // tiles drawn at most
  double width = 1080;
};

// Each throws a usage error when the sizes within a chart do not agree.
std::string to_svg(const LineChart& chart);
std::string to_svg(const BarChart& chart);
std::string to_svg(const HeatMap& chart);
std::string to_svg(const ValueMap& chart);
std::string to_svg(const TimelineChart& chart);
// Every tile is scaled so that 0 is mid-grey and its largest magnitude is black or white; tiles of zeros are left out.
std::string to_svg(const TileChart& chart);

}  // namespace bitloom::report
