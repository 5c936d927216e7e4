#include "report/net_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "report/markup.h"
#include "report/run_log.h"
#include "report/scale.h"

namespace bitloom::report {
namespace {

constexpr double page_width = 1200, margin = 36, gap = 26;
constexpr double tiles_top = 118;  // top of the row of images
constexpr Colour ink{28, 36, 48}, muted{102, 112, 133}, grid{233, 236, 241}, axis{152, 162, 179}, pale{236, 240, 247};
constexpr Colour bit_colour{38, 70, 130}, right_colour{42, 157, 104};
constexpr std::array<Colour, 6> palette = {
    {{47, 111, 208}, {224, 123, 31}, {42, 157, 104}, {200, 56, 90}, {132, 86, 196}, {138, 98, 66}}};
constexpr std::size_t across = 4, most_maps = 5, most_scores = 8;
constexpr double net_font = 13;
constexpr double seam = 0.3;  // by which boxes overlap their neighbours, so that no line shows between them

void put_box(Picture& picture, double x, double y, double width, double height, Colour colour) {
  const Box box{x, y, width, height, colour};
  picture.shapes.emplace_back(box);
}

void put(Picture& picture, double x, double y, const std::string& text, Colour colour, double size = net_font,
         bool bold = false, Words::Anchor anchor = Words::Anchor::start) {
  picture.shapes.push_back(Words{{x, y}, text, anchor, size, colour, bold});
}

void put_image(Picture& picture, const NetPicture& net, double x, double side) {
  const double pixel = side / static_cast<double>(std::max(net.height, net.width));
  for (std::size_t row = 0; row < net.height; ++row) {
    for (std::size_t column = 0; column < net.width; ++column) {
      const std::uint8_t* rgb = &net.rgb[3 * (row * net.width + column)];
      put_box(picture, x + pixel * static_cast<double>(column), tiles_top + pixel * static_cast<double>(row), pixel + seam,
              pixel + seam, {rgb[0], rgb[1], rgb[2]});
    }
  }
}

// Runs of set bits, as one box each.
void put_bits(Picture& picture, const BitMaps& maps, std::size_t channel, double x, double y, double side) {
  put_box(picture, x, y, side, side, pale);
  const std::vector<std::uint8_t>& bits = maps.channels[channel];
  const double high = side / static_cast<double>(maps.height), wide = side / static_cast<double>(maps.width);
  for (std::size_t row = 0; row < maps.height; ++row) {
    for (std::size_t begin = 0; begin < maps.width;) {
      std::size_t end = begin;
      while (end < maps.width && bits[row * maps.width + end] != 0) ++end;
      if (end > begin) {
        put_box(picture, x + wide * static_cast<double>(begin), y + high * static_cast<double>(row),
                wide * static_cast<double>(end - begin), high + seam, bit_colour);
      }
      begin = end + 1;
    }
  }
}

void put_maps(Picture& picture, const BitMaps& maps, double x, double side) {
  constexpr double between = 5;
  const double tile = (side - between * (across - 1)) / across;
  for (std::size_t c = 0; c < std::min(maps.channels.size(), across * across); ++c) {
    put_bits(picture, maps, c, x + (tile + between) * static_cast<double>(c % across),
             tiles_top + (tile + between) * static_cast<double>(c / across), tile);
  }
}

void put_scores(Picture& picture, const NetPicture& net, double x, double side) {
  const double row = side / most_scores;
  double label = 0;
  const std::size_t n = std::min(net.scores.size(), most_scores);
  for (std::size_t i = 0; i < n; ++i) label = std::max(label, text_width(shorten(net.scores[i].first, 12), net_font));
  for (std::size_t i = 0; i < n; ++i) {
    const auto& [name, share] = net.scores[i];
    const double y = tiles_top + row * static_cast<double>(i);
    put(picture, x + label, y + row / 2 + 4, shorten(name, 12), name == net.truth ? right_colour : ink, net_font,
        name == net.truth, Words::Anchor::end);
    const double bar = std::max(1.0, (side - label - 48) * std::clamp(share, 0.0, 1.0));
    put_box(picture, x + label + 8, y + 3, bar, row - 6, name == net.truth ? right_colour : axis);
    put(picture, x + label + 8 + bar + 5, y + row / 2 + 4, fmt::format("{:.0f}%", 100 * share), muted);
  }
}

void put_arrow(Picture& picture, double from, double y) {
  picture.shapes.push_back(Stroke{{{from + 5, y}, {from + gap - 6, y}}, axis, 1.6, {}});
  picture.shapes.push_back(
      Stroke{{{from + gap - 11, y - 4.5}, {from + gap - 6, y}, {from + gap - 11, y + 4.5}}, axis, 1.6, {}});
}

struct Curves {
  std::string title;
  double LayerEpoch::*field;
  double scale;
  bool logarithmic;
};

void put_curves(Picture& picture, const RunLog& log, const Curves& curves, double x, double top, double width, double height) {
  const std::vector<std::string> names = log.layer_names();
  Range range_x{0, 0}, range_y;
  std::vector<std::vector<Point>> lines(names.size());
  for (const EpochEvent& epoch : log.epochs) {
    for (const LayerEpoch& layer : epoch.layers) {
      const double y = layer.*curves.field * curves.scale;
      if (!plottable(epoch.axis_seconds, false) || !plottable(y, curves.logarithmic)) continue;
      const auto line = static_cast<std::size_t>(std::find(names.begin(), names.end(), layer.layer) - names.begin());
      lines[line].push_back({epoch.axis_seconds, y});
      range_x.add(epoch.axis_seconds);
      range_y.add(y, curves.logarithmic);
    }
  }
  put(picture, x, top - 16, curves.title, ink, 15, true);
  if (range_y.empty()) return put(picture, x, top + 20, "nothing recorded", muted);
  const Scale scale_x = make_scale(range_x, false, 5, Fit::tight),
              scale_y = make_scale(range_y, curves.logarithmic, 4, Fit::round, curves.scale == 100 ? percentages : everything);
  const double left = x + 44, bottom = top + height - 36;
  const auto at = [&](const Point& point) {
    return Point{left + scale_x.at(point.x) * (x + width - left), bottom - scale_y.at(point.y) * (bottom - top)};
  };
  for (const Tick& tick : scale_y.ticks) {
    const double y = at({0, tick.value}).y;
    picture.shapes.push_back(Stroke{{{left, y}, {x + width, y}}, grid, 1, {}});
    put(picture, left - 7, y + 4, tick.label, muted, 12, false, Words::Anchor::end);
  }
  picture.shapes.push_back(Stroke{{{left, bottom}, {x + width, bottom}}, axis, 1.2, {}});
  for (const Tick& tick : scale_x.ticks) {
    put(picture, left + scale_x.at(tick.value) * (x + width - left), bottom + 17, tick.label, muted, 12, false,
        Words::Anchor::middle);
  }
  put(picture, (left + x + width) / 2, bottom + 33, "seconds of training", muted, 12, false, Words::Anchor::middle);
  for (std::size_t l = 0; l < lines.size(); ++l) {
    const Colour colour = palette[l % palette.size()];
    std::vector<Point> path;
    for (const Point& point : lines[l]) path.push_back(at(point));
    for (const Point& point : path) put_box(picture, point.x - 2, point.y - 2, 4, 4, colour);
    if (path.size() > 1) picture.shapes.push_back(Stroke{path, colour, 2.2, {}});
  }
}

// The names of the curves of both charts, in a row.
void put_legend(Picture& picture, const RunLog& log, double y) {
  double x = margin;
  const std::vector<std::string> names = log.layer_names();
  for (std::size_t l = 0; l < names.size(); ++l) {
    const std::string name = shorten(names[l], 20);
    picture.shapes.push_back(Stroke{{{x, y - 4}, {x + 22, y - 4}}, palette[l % palette.size()], 3, {}});
    put(picture, x + 28, y, name, ink);
    x += 28 + text_width(name, net_font) + 22;
  }
}

void check(const NetPicture& net) {
  if (net.height == 0 || net.width == 0 || net.rgb.size() != 3 * net.height * net.width) {
    fail(ErrorKind::usage, "picture: {} bytes for an image of {} x {}, expected 3 for each pixel", net.rgb.size(), net.height,
         net.width);
  }
  for (const BitMaps& maps : net.maps) {
    for (const auto& channel : maps.channels) {
      if (maps.height == 0 || maps.width == 0 || channel.size() != maps.height * maps.width) {
        fail(ErrorKind::usage, "picture: a channel of '{}' has {} bits, expected {} x {}", maps.name, channel.size(),
             maps.height, maps.width);
      }
    }
  }
}

}  // namespace

Picture draw(const NetPicture& net) {
  check(net);
  const std::size_t maps = std::min(net.maps.size(), most_maps);
  const double columns = static_cast<double>(maps) + 2;
  const double side = std::min(210.0, (page_width - 2 * margin - gap * (columns - 1)) / columns);
  const double used = columns * side + (columns - 1) * gap;
  Picture picture{page_width, 0, net.title, {}};
  put(picture, margin, 40, net.title, ink, 20, true);
  put(picture, margin, 62, net.subtitle, muted);

  double x = margin + (page_width - 2 * margin - used) / 2;
  const auto column = [&](const std::string& name, const std::string& note, bool last = false) {
    put(picture, x, tiles_top - 12, shorten(name, 22), ink, 15, true);
    put(picture, x, tiles_top + side + 22, note, muted);
    if (!last) put_arrow(picture, x + side, tiles_top + side / 2);
  };
  column("image", fmt::format("{} x {} pixels{}", net.height, net.width, net.truth.empty() ? "" : ": " + net.truth));
  put_image(picture, net, x, side);
  for (std::size_t m = 0; m < maps; ++m) {
    x += side + gap;
    column(net.maps[m].name, net.maps[m].size + " bits");
    put_maps(picture, net.maps[m], x, side);
  }
  x += side + gap;
  column("heads", "probability of each class", true);
  put_scores(picture, net, x, side);

  const double charts_top = tiles_top + side + 104;
  const RunLog log = read_run(net.metrics);
  if (log.epochs.empty()) {
    picture.height = tiles_top + side + 44;
    return picture;
  }
  constexpr double height = 220, between = 48;
  const double half = (page_width - 2 * margin - between) / 2;
  put_legend(picture, log, charts_top - 44);
  put_curves(picture, log, {"validation accuracy of each layer's head (%)", &LayerEpoch::validation_accuracy, 100, false},
             margin, charts_top, half, height);
  put_curves(picture, log, {"weights that flip in a step", &LayerEpoch::flips_per_step, 1, true}, margin + half + between,
             charts_top, half, height);
  picture.height = charts_top + height + 24;
  return picture;
}

}  // namespace bitloom::report
