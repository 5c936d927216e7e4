// A drawing of lines, areas and words that stands alone as a file: SVG as text, or PNG. Unlike the charts of report/plot.h,
// which take their colours from the page around them, it brings its own. Sizes are in units of 1/96 inch, y grows downwards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace bitloom::report {

struct Colour {
  std::uint8_t red = 0, green = 0, blue = 0;
};

struct Point {
  double x = 0, y = 0;
};

struct Stroke {
  std::vector<Point> points;
  Colour colour;
  double width = 1;
  std::vector<double> dashes;  // lengths on, off, on, ...; empty: none
};

struct Box {
  double x = 0, y = 0, width = 0, height = 0;
  Colour colour;
};

struct Words {
  enum class Anchor { start, middle, end };

  Point at;  // place of the anchor on the base line
  std::string text;
  Anchor anchor = Anchor::start;
  double size = 12;
  Colour colour;
  bool bold = false;
  bool upwards = false;  // turned by 90 degrees, read from below
};

struct Picture {
  double width = 0, height = 0;
  std::string title;                                     // for those who cannot see it
  std::vector<std::variant<Box, Stroke, Words>> shapes;  // later ones on top; behind all is white
};

// A complete SVG document.
std::string to_svg(const Picture& picture);

// The bytes of a PNG file of width x height units, `scale` pixels each. Throws a usage error if that is nothing or more than
// 100 million pixels, an io error if it cannot be made.
std::string to_png(const Picture& picture, double scale = 2);

// The bytes of a PNG file of pixels (channels, height, width): red, green and blue where there are three channels or more,
// otherwise the first as grey. Throws a usage error where the sizes do not fit, an io error if it cannot be made.
std::string to_png(std::span<const std::uint8_t> pixels, std::size_t channels, std::size_t height, std::size_t width);

// The format that a file's ending asks for, .svg or .png in any case. Throws a usage error that names `argument`, the file and
// the endings otherwise.
using PictureFormat = std::string (*)(const Picture&);
PictureFormat picture_format(const std::string& file, std::string_view argument);

}  // namespace bitloom::report
