// SVG is written here, so that its words stay words; PNG is drawn by cairo, the only use of it.
#include "report/picture.h"

#include <cairo/cairo.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "core/text.h"
#include "report/markup.h"

namespace bitloom::report {
namespace {

constexpr char font[] = "DejaVu Sans";
constexpr std::array<const char*, 3> anchors{"start", "middle", "end"};
constexpr std::array<double, 3> anchor_shares{0, 0.5, 1};

std::string svg_colour(Colour colour) { return fmt::format("#{:02x}{:02x}{:02x}", colour.red, colour.green, colour.blue); }

// A coordinate to a hundredth of a unit.
std::string place(double value) { return fmt::format("{:g}", std::round(100 * value) / 100); }

std::string draw_svg(const Box& box) {
  return fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" fill="{}"/>)", place(box.x), place(box.y), place(box.width),
                     place(box.height), svg_colour(box.colour));
}

std::string draw_svg(const Stroke& stroke) {
  std::string path, dashes;
  for (const Point& point : stroke.points)
    path += fmt::format("{}{} {}", path.empty() ? 'M' : 'L', place(point.x), place(point.y));
  if (!stroke.dashes.empty()) dashes = fmt::format(R"( stroke-dasharray="{}")", fmt::join(stroke.dashes, " "));
  return fmt::format(R"(<path d="{}" fill="none" stroke="{}" stroke-width="{}" stroke-linejoin="round"{}/>)", path,
                     svg_colour(stroke.colour), place(stroke.width), dashes);
}

std::string draw_svg(const Words& words) {
  const std::string x = place(words.at.x), y = place(words.at.y);
  std::string attributes;
  if (words.bold) attributes += " font-weight=\"bold\"";
  if (words.upwards) attributes += fmt::format(" transform=\"rotate(-90 {} {})\"", x, y);
  return fmt::format(R"(<text x="{}" y="{}" text-anchor="{}" font-size="{}" fill="{}"{}>{}</text>)", x, y,
                     anchors[static_cast<std::size_t>(words.anchor)], place(words.size), svg_colour(words.colour), attributes,
                     escape(words.text));
}

void set_colour(cairo_t* canvas, Colour colour) {
  cairo_set_source_rgb(canvas, colour.red / 255.0, colour.green / 255.0, colour.blue / 255.0);
}

void draw(cairo_t* canvas, const Box& box) {
  set_colour(canvas, box.colour);
  cairo_rectangle(canvas, box.x, box.y, box.width, box.height);
  cairo_fill(canvas);
}

void draw(cairo_t* canvas, const Stroke& stroke) {
  set_colour(canvas, stroke.colour);
  cairo_set_line_width(canvas, stroke.width);
  cairo_set_line_join(canvas, CAIRO_LINE_JOIN_ROUND);
  cairo_set_dash(canvas, stroke.dashes.data(), static_cast<int>(stroke.dashes.size()), 0);
  cairo_new_path(canvas);
  for (const Point& point : stroke.points) cairo_line_to(canvas, point.x, point.y);
  cairo_stroke(canvas);
}

void draw(cairo_t* canvas, const Words& words) {
  const std::string& text = words.text;
  set_colour(canvas, words.colour);
  cairo_select_font_face(canvas, font, CAIRO_FONT_SLANT_NORMAL, words.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(canvas, words.size);
  cairo_text_extents_t extents;
  cairo_text_extents(canvas, text.c_str(), &extents);
  cairo_save(canvas);
  cairo_translate(canvas, words.at.x, words.at.y);
  if (words.upwards) cairo_rotate(canvas, -std::acos(0.0));
  cairo_move_to(canvas, -extents.x_advance * anchor_shares[static_cast<std::size_t>(words.anchor)], 0);
  cairo_show_text(canvas, text.c_str());
  cairo_restore(canvas);
}

cairo_status_t append(void* file, const unsigned char* bytes, unsigned size) {
  static_cast<std::string*>(file)->append(reinterpret_cast<const char*>(bytes), size);
  return CAIRO_STATUS_SUCCESS;
}

using Surface = std::unique_ptr<cairo_surface_t, void (*)(cairo_surface_t*)>;

Surface make_surface(double width, double height) {
  if (!(width >= 1) || !(height >= 1) || !(width * height <= 1e8) || !(std::max(width, height) <= 32767)) {
    fail(ErrorKind::usage, "picture: {} x {} pixels, expected 1 to 32767 each way and 100 million in all", width, height);
  }
  return {cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(width), static_cast<int>(height)),
          &cairo_surface_destroy};
}

void require(cairo_status_t status) {
  if (status != CAIRO_STATUS_SUCCESS) fail(ErrorKind::io, "the PNG cannot be made: {}", cairo_status_to_string(status));
}

std::string png_of(const Surface& surface) {
  std::string file;
  require(cairo_surface_write_to_png_stream(surface.get(), &append, &file));
  return file;
}

struct Format {
  const char* ending;
  PictureFormat write;
};
constexpr auto formats = std::to_array<Format>({{".svg", [](const Picture& picture) { return to_svg(picture); }},
                                                {".png", [](const Picture& picture) { return to_png(picture); }}});

}  // namespace

std::string to_svg(const Picture& picture) {
  std::string svg = fmt::format(
      R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}" )"
      "font-family=\"{3}, sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
      place(picture.width), place(picture.height), escape(picture.title), font);
  for (const auto& shape : picture.shapes) {
    svg += std::visit([](const auto& each) { return draw_svg(each); }, shape) + "\n";
  }
  return svg + "</svg>\n";
}

std::string to_png(const Picture& picture, double scale) {
  const Surface surface = make_surface(std::round(picture.width * scale), std::round(picture.height * scale));
  const std::unique_ptr<cairo_t, void (*)(cairo_t*)> canvas(cairo_create(surface.get()), &cairo_destroy);
  cairo_scale(canvas.get(), scale, scale);
  draw(canvas.get(), Box{0, 0, picture.width + 1, picture.height + 1, {255, 255, 255}});
  for (const auto& shape : picture.shapes) std::visit([&](const auto& each) { draw(canvas.get(), each); }, shape);
  require(cairo_status(canvas.get()));
  return png_of(surface);
}

std::string to_png(std::span<const std::uint8_t> pixels, std::size_t channels, std::size_t height, std::size_t width) {
  if (channels == 0 || pixels.size() != channels * height * width) {
    fail(ErrorKind::usage, "image: {} bytes; expected {} x {} x {} (channels, height, width)", pixels.size(), channels, height,
         width);
  }
  const Surface surface = make_surface(static_cast<double>(width), static_cast<double>(height));
  require(cairo_surface_status(surface.get()));
  unsigned char* const rows = cairo_image_surface_get_data(surface.get());
  const auto stride = static_cast<std::size_t>(cairo_image_surface_get_stride(surface.get()));
  const auto value = [&](std::size_t colour, std::size_t pixel) -> std::uint32_t {
    return pixels[(channels < 3 ? 0 : colour) * height * width + pixel];
  };
  for (std::size_t y = 0; y < height; ++y) {
    for (std::size_t x = 0; x < width; ++x) {
      const std::size_t pixel = y * width + x;
      const std::uint32_t word = value(0, pixel) << 16 | value(1, pixel) << 8 | value(2, pixel);  // in the machine's byte order
      std::memcpy(rows + y * stride + x * sizeof(word), &word, sizeof(word));
    }
  }
  cairo_surface_mark_dirty(surface.get());
  return png_of(surface);
}

PictureFormat picture_format(const std::string& file, std::string_view argument) {
  const std::string name = lower_case(file);
  for (const Format& format : formats) {
    if (name.ends_with(format.ending)) return format.write;
  }
  fail(ErrorKind::usage, "{}: '{}' ends in neither .svg nor .png", argument, file);
}

}  // namespace bitloom::report
