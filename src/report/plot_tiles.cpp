#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "core/error.h"
#include "report/markup.h"
#include "report/plot.h"
#include "report/scale.h"
#include "report/svg.h"

namespace bitloom::report {

namespace {

double usable(double value) { return plottable(value, false) && value > 0 ? value : 0; }

// The counts with missing ones as 0, and what the colours are scaled by.
struct Table {
  std::vector<std::vector<double>> shares;  // share of the row's sum
  double largest_error = 0;                 // the largest share off the diagonal
};

Table shares_of(const HeatMap& chart) {
  Table table;
  const std::size_t n = chart.labels.size();
  table.shares.assign(n, std::vector<double>(n, 0));
  for (std::size_t i = 0; i < n; ++i) {
    double sum = 0;
    for (const double count : chart.counts[i]) sum += usable(count);
    for (std::size_t j = 0; j < n; ++j) {
      table.shares[i][j] = sum > 0 ? usable(chart.counts[i][j]) / sum : 0;
      if (i != j) table.largest_error = std::max(table.largest_error, table.shares[i][j]);
    }
  }
  return table;
}

std::string heat_cell(const HeatMap& chart, const Table& table, std::size_t i, std::size_t j, double x, double y, double side) {
  const double share = table.shares[i][j];
  if (!(share > 0)) return "";
  const double strength = i == j ? share : share / table.largest_error;
  const double opacity = 0.06 + 0.86 * strength;
  std::string svg = fmt::format(
      R"(<g><title>{} → {}: {} ({:.1f}%)</title><rect x="{}" y="{}" width="{}" height="{}" style="fill:{}" fill-opacity="{:.2f}"/>)",
      escape(chart.labels[i]), escape(chart.labels[j]), grouped(chart.counts[i][j]), 100 * share, at(x), at(y), at(side),
      at(side), i == j ? "var(--heat-good)" : "var(--heat-bad)", opacity);
  const std::string text = grouped(chart.counts[i][j]);
  if (text_width(text, chart_font) + 4 < side) {
    svg += svg_text(x + side / 2, y + side / 2 + 4, "middle", text, opacity > 0.6 ? R"( class="on-strong")" : "");
  }
  return svg + "</g>";
}

// Whether the sizes multiply to `count`, none of them 0; without overflow, since they may come from a damaged file.
bool multiply_to(std::size_t count, std::initializer_list<std::size_t> sizes) {
  for (const std::size_t size : sizes) {
    if (size == 0 || count % size != 0) return false;
    count /= size;
  }
  return count == 1;
}

struct Tile {
  std::size_t index = 0;
  double largest = 0;  // magnitude
};

// The tiles to draw: those with any value but 0, up to the chart's limit.
std::vector<Tile> tiles_of(const TileChart& chart, std::size_t taps) {
  std::vector<Tile> tiles;
  for (std::size_t tile = 0; tile < chart.count && tiles.size() < chart.limit; ++tile) {
    double largest = 0;
    for (std::size_t i = tile * taps; i < (tile + 1) * taps; ++i) {
      if (plottable(chart.values[i], false)) largest = std::max(largest, std::abs(static_cast<double>(chart.values[i])));
    }
    if (largest > 0) tiles.push_back({tile, largest});
  }
  return tiles;
}

std::string grey_hex(double level) {
  const int value = static_cast<int>(std::lround(std::clamp(level, 0.0, 1.0) * 255));
  return fmt::format("{:02x}", value);
}

}  // namespace

std::string to_svg(const HeatMap& chart) {
  const std::size_t n = chart.labels.size();
  const bool square = chart.counts.size() == n &&
                      std::all_of(chart.counts.begin(), chart.counts.end(), [&](const auto& row) { return row.size() == n; });
  if (!square) fail(ErrorKind::usage, "counts of heat map \"{}\" are not {} rows of {}", chart.title, n, n);
  if (n == 0) {
    return svg_open(chart.title, chart.width, 120) + svg_title(chart.title) + svg_no_data(chart.width / 2, 70) + "</svg>\n";
  }
  // Labels need a row of at least their own height.
  constexpr std::size_t longest_label = 14;
  const bool labelled = (chart.width - 130) / static_cast<double>(n) >= chart_font + 2;
  std::vector<std::string> labels;
  std::vector<double> widths;
  for (const std::string& label : chart.labels) {
    labels.push_back(labelled ? shorten(label, longest_label) : "");
    widths.push_back(text_width(labels.back(), chart_font));
  }
  const double label_width = *std::max_element(widths.begin(), widths.end());
  constexpr double slope = 0.71;  // column labels stand at 45 degrees
  const double left = 24 + label_width + 6;
  const double top = title_height + 22 + slope * label_width + (labelled ? 14 : 0);
  // Labels of the last columns reach beyond the table: by how much, if its cells have the smallest possible size.
  double overhang = 4;
  const double least_side = (chart.width - left - slope * label_width - chart_font) / static_cast<double>(n);
  for (std::size_t j = 0; j < n; ++j) {
    overhang = std::max(overhang, slope * widths[j] + chart_font - (static_cast<double>(n - j) - 0.5) * least_side);
  }
  const double side = (chart.width - left - overhang) / static_cast<double>(n);
  const double bottom = top + side * static_cast<double>(n);
  const double right = left + side * static_cast<double>(n);

  std::string svg = svg_open(chart.title, chart.width, bottom + 8) + svg_title(chart.title);
  svg += svg_text((left + right) / 2, title_height + 12, "middle", chart.column_title, R"( class="axis-title")");
  svg += svg_vertical_title((top + bottom) / 2, chart.row_title);
  const Table table = shares_of(chart);
  svg += fmt::format(R"(<rect class="heat-frame" x="{}" y="{}" width="{}" height="{}"/>)", at(left), at(top), at(right - left),
                     at(bottom - top));
  for (std::size_t i = 0; i < n; ++i) {
    const double offset = side * static_cast<double>(i);
    if (labelled) {
      const double x = left + offset + side / 2 + 2, y = top - 6;
      const std::string slanted = " transform=\"rotate(-45 " + at(x) + " " + at(y) + ")\"";
      svg += svg_text(x, y, "start", labels[i], slanted);
      svg += svg_text(left - 7, top + offset + side / 2 + 4, "end", labels[i]);
    }
    const double gap = labelled ? 1 : 0;
    for (std::size_t j = 0; j < n; ++j) {
      svg += heat_cell(chart, table, i, j, left + side * static_cast<double>(j) + gap / 2, top + offset + gap / 2, side - gap);
    }
  }
  return svg + "</svg>\n";
}

std::string to_svg(const TileChart& chart) {
  const bool empty = chart.count == 0 && chart.values.empty();
  if (!empty && !multiply_to(chart.values.size(), {chart.count, chart.tile_height, chart.tile_width, chart.colours})) {
    fail(ErrorKind::usage, "tiles of {} x {} x {} x {} (count, height, width, colours) do not fit {} values", chart.count,
         chart.tile_height, chart.tile_width, chart.colours, chart.values.size());
  }
  const std::size_t pixels = chart.tile_height * chart.tile_width, taps = pixels * chart.colours;
  constexpr double gap = 8;
  const double pixel =
      std::clamp(48.0 / static_cast<double>(std::max<std::size_t>({chart.tile_height, chart.tile_width, 1})), 1.0, 16.0);
  const double tile_width = pixel * static_cast<double>(chart.tile_width),
               tile_height = pixel * static_cast<double>(chart.tile_height);
  const std::vector<Tile> drawn = tiles_of(chart, taps);
  // Rows of equal length, as far as the number of tiles allows.
  const auto most_columns = std::max<std::size_t>(1, static_cast<std::size_t>((chart.width + gap) / (tile_width + gap)));
  const std::size_t rows = (drawn.size() + most_columns - 1) / most_columns;
  const std::size_t columns = rows == 0 ? 1 : (drawn.size() + rows - 1) / rows;

  std::string tiles;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const auto [tile, largest] = drawn[i];
    const float* values = chart.values.data() + tile * taps;
    const double x = static_cast<double>(i % columns) * (tile_width + gap);
    const double y = title_height + static_cast<double>(i / columns) * (tile_height + gap);
    tiles +=
        fmt::format(R"svg(<g transform="translate({} {}) scale({})" shape-rendering="crispEdges"><title>filter {}</title>)svg",
                    at(x), at(y), at(pixel), tile);
    for (std::size_t p = 0; p < pixels; ++p) {
      const auto level = [&](std::size_t colour) {
        const double value = values[p * chart.colours + colour];
        return plottable(value, false) ? 0.5 + 0.5 * value / largest : 0.5;
      };
      std::string hex;
      if (chart.colours == 3) {
        hex = grey_hex(level(0)) + grey_hex(level(1)) + grey_hex(level(2));
      } else {
        double sum = 0;
        for (std::size_t c = 0; c < chart.colours; ++c) sum += level(c);
        const std::string grey_level = grey_hex(sum / static_cast<double>(chart.colours));
        hex = grey_level + grey_level + grey_level;
      }
      tiles += fmt::format(R"(<path fill="#{}" d="M{} {}h1v1h-1z"/>)", hex, p % chart.tile_width, p / chart.tile_width);
    }
    tiles += "</g>";
  }
  const double height = drawn.empty() ? 80 : title_height + static_cast<double>(rows) * (tile_height + gap);
  std::string svg = svg_open(chart.title, chart.width, height) + svg_title(chart.title);
  return svg + (drawn.empty() ? svg_no_data(chart.width / 2, 50) : tiles) + "</svg>\n";
}

}  // namespace bitloom::report
