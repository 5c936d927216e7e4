#include "data/pairs/scene.h"

#include <algorithm>
#include <cstdlib>

#include "core/error.h"
#include "core/field.h"
#include "core/text.h"

namespace bitloom::data {
namespace {

// Shapes are drawn in coordinates u (to the right) and v (down) in which they fill about -1024 .. 1024.
constexpr int scene_unit = 1024;

bool scene_disc(int u, int v, int radius) { return u * u + v * v < radius * radius; }
bool scene_circle(int u, int v) { return scene_disc(u, v, 960); }
bool scene_square(int u, int v) { return std::max(std::abs(u), std::abs(v)) < 840; }
// Equilateral, a corner at the top; 887 / 512 is the square root of 3.
bool scene_triangle(int u, int v) { return v < 512 && 887 * std::abs(u) - 512 * v < 1024 * 512; }
bool in_diamond(int u, int v) { return std::abs(u) + std::abs(v) < 1024; }
bool scene_cross(int u, int v) { return std::min(std::abs(u), std::abs(v)) < 300 && std::max(std::abs(u), std::abs(v)) < 960; }
// A pentagram with a tip at the top: at most one of the half-planes of its inner pentagon is left.
bool scene_star(int u, int v) {
  constexpr std::array<std::array<int, 2>, 5> normals{{{0, -1024}, {974, -316}, {602, 828}, {-602, 828}, {-974, -316}}};
  const auto outside = std::count_if(normals.begin(), normals.end(),
                                     [&](const std::array<int, 2>& n) { return n[0] * u + n[1] * v > 316 * 1024; });
  return outside <= 1;
}
bool scene_ring(int u, int v) { return scene_disc(u, v, 980) && !scene_disc(u, v, 560); }
// A square on its corner, with half discs on its upper sides.
bool in_heart(int u, int v) {
  return std::abs(u) + std::abs(v - 80) < 800 || scene_disc(u - 400, v + 320, 566) || scene_disc(u + 400, v + 320, 566);
}

constexpr std::array<bool (*)(int u, int v), shape_names.size()> contains{
    &scene_circle, &scene_square, &scene_triangle, &in_diamond, &scene_cross, &scene_star, &scene_ring, &in_heart};

// Uniform in low .. high, in 256ths of a pixel; bounds are shares of the side.
std::int64_t draw_length(Random& random, double low, double high, std::size_t side) {
  const auto first = static_cast<std::int64_t>(low * 256 * static_cast<double>(side));
  const auto last = static_cast<std::int64_t>(high * 256 * static_cast<double>(side));
  return first + random.below(static_cast<std::uint32_t>(last - first + 1));
}

template <std::size_t N>
std::uint8_t index_of(const std::array<std::string_view, N>& names, std::string_view word) {
  const auto found = std::find(names.begin(), names.end(), word);
  return found == names.end() ? Scene::nothing : static_cast<std::uint8_t>(found - names.begin());
}

// Puts a word's index into a field that has none yet; false for a second one.
bool take(std::uint8_t index, std::uint8_t& field) {
  if (field != Scene::nothing) return false;
  field = index;
  return true;
}

}  // namespace

std::string caption_of(const Scene& scene) {
  const std::string_view place = name_in(place_names, scene.place);
  return fmt::format("a {} {} {} {} the {}", name_in(size_names, scene.size), name_in(colour_names, scene.colour),
                     name_in(shape_names, scene.shape), place == "centre" ? "in" : "at", place);
}

std::optional<Scene> parse_scene(std::string_view caption) {
  constexpr std::array<std::string_view, 5> fillers{"a", "an", "at", "in", "the"};
  // Rows and columns of places, in their order.
  constexpr std::array<std::string_view, 3> rows{"top", "centre", "bottom"};
  constexpr std::array<std::string_view, 3> columns{"left", "centre", "right"};
  Scene scene;
  std::uint8_t row = Scene::nothing, column = Scene::nothing;
  std::string text(caption);
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  for (const std::string& word : split(text, ' ')) {
    if (word.empty() || std::find(fillers.begin(), fillers.end(), word) != fillers.end()) continue;
    bool good = false;
    if (const auto colour = index_of(colour_names, word); colour != Scene::nothing) good = take(colour, scene.colour);
    if (const auto shape = index_of(shape_names, word); shape != Scene::nothing) good = take(shape, scene.shape);
    if (const auto size = index_of(size_names, word); size != Scene::nothing) good = take(size, scene.size);
    if (word == "centre") {
      good = take(1, row) && take(1, column);
    } else {
      if (const auto index = index_of(rows, word); index != Scene::nothing) good = take(index, row);
      if (const auto index = index_of(columns, word); index != Scene::nothing) good = take(index, column);
    }
    if (!good) return {};
  }
  if (scene.colour == Scene::nothing || scene.shape == Scene::nothing) return {};
  if (row != Scene::nothing || column != Scene::nothing) {
    scene.place = static_cast<std::uint8_t>(3 * (row == Scene::nothing ? 1 : row) + (column == Scene::nothing ? 1 : column));
  }
  return scene;
}

std::vector<std::uint8_t> shape_coverage(std::uint8_t shape, const Placement& placement, std::size_t side, int samples) {
  const auto per_pixel = static_cast<std::size_t>(samples);
  // Along an axis: the pixels that a disc of the radius touches, and the shape's coordinates of all sample points.
  struct Axis {
    std::size_t first, end;
    std::vector<int> points;
  };
  const auto along = [&](std::int64_t centre) {
    const std::int64_t reach = placement.radius + 256, step = 256 / samples;
    Axis axis{
        static_cast<std::size_t>(std::max<std::int64_t>(0, (centre - reach) / 256)),
        static_cast<std::size_t>(std::clamp<std::int64_t>((centre + reach) / 256 + 1, 0, static_cast<std::int64_t>(side))),
        std::vector<int>(side * per_pixel)};
    for (std::size_t i = axis.first * per_pixel; i < axis.end * per_pixel; ++i) {
      const std::int64_t from_centre = static_cast<std::int64_t>(i) * step + step / 2 - centre;
      axis.points[i] = static_cast<int>(from_centre * scene_unit / placement.radius);
    }
    return axis;
  };
  const Axis down = along(placement.centre_y), across = along(placement.centre_x);
  std::vector<std::uint8_t> covered(side * side);
  const auto inside = contains[shape];
  for (std::size_t y = down.first * per_pixel; y < down.end * per_pixel; ++y) {
    std::uint8_t* row = covered.data() + y / per_pixel * side;
    for (std::size_t x = across.first; x < across.end; ++x) {
      for (std::size_t k = 0; k < per_pixel; ++k)
        row[x] = static_cast<std::uint8_t>(row[x] + inside(across.points[x * per_pixel + k], down.points[y]));
    }
  }
  return covered;
}

double shape_area(std::uint8_t shape) {
  constexpr int step = 8;
  int inside = 0, all = 0;
  for (int v = -scene_unit + step / 2; v < scene_unit; v += step) {
    for (int u = -scene_unit + step / 2; u < scene_unit; u += step, ++all) inside += contains[shape](u, v);
  }
  return static_cast<double>(inside) / all;
}

Image draw_scene(const Scene& scene, std::size_t side, Random random) {
  if (side < 16 || side > 512) fail_field(ErrorKind::usage, "side", "{}; expected 16 to 512 pixels", side);
  const auto [smallest, largest] = size_bounds[scene.size];
  const double middle_y = place_middles[scene.place / 3], middle_x = place_middles[scene.place % 3];
  Placement placement;
  placement.radius = draw_length(random, smallest, largest, side);
  placement.centre_y = draw_length(random, middle_y - place_jitter, middle_y + place_jitter, side);
  placement.centre_x = draw_length(random, middle_x - place_jitter, middle_x + place_jitter, side);
  constexpr int samples = 8, full = samples * samples, tint = 10;
  Image image{{side, side, 3}, std::vector<std::uint8_t>(3 * side * side)};
  const std::vector<std::uint8_t> covered = shape_coverage(scene.shape, placement, side, samples);
  for (std::size_t c = 0; c < 3; ++c) {
    const int colour = colour_values[scene.colour][c] + static_cast<int>(random.below(2 * tint + 1)) - tint;
    for (std::size_t i = 0; i < side * side; ++i) {
      image.pixels[c * side * side + i] =
          static_cast<std::uint8_t>((covered[i] * colour + (full - covered[i]) * ground_colour[c] + full / 2) / full);
    }
  }
  return image;
}

}  // namespace bitloom::data
