// Pictures of one coloured shape, and their captions: a small language with known meaning, for models of text and images whose
// samples can be judged exactly (scene_check.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/random.h"
#include "data/image.h"

namespace bitloom::data {

using Colour = std::array<std::uint8_t, 3>;

inline constexpr std::array<std::string_view, 8> colour_names{"red",  "orange", "yellow", "green",
                                                              "cyan", "blue",   "purple", "black"};
inline constexpr std::array<Colour, 8> colour_values{{{215, 35, 35},
                                                      {240, 125, 15},
                                                      {230, 215, 20},
                                                      {30, 150, 50},
                                                      {40, 195, 205},
                                                      {45, 65, 200},
                                                      {140, 45, 165},
                                                      {25, 25, 25}}};
inline constexpr Colour ground_colour{240, 240, 240};
inline constexpr std::array<std::string_view, 8> shape_names{"circle", "square", "triangle", "diamond",
                                                             "cross",  "star",   "ring",     "heart"};
inline constexpr std::array<std::string_view, 2> size_names{"small", "large"};
// Rows of three.
inline constexpr std::array<std::string_view, 9> place_names{"top left", "top",         "top right", "left",        "centre",
                                                             "right",    "bottom left", "bottom",    "bottom right"};

// One of the names of each; `nothing` where it is not known or not said.
struct Scene {
  static constexpr std::uint8_t nothing = 255;
  std::uint8_t colour = nothing, shape = nothing, size = nothing, place = nothing;
  bool operator==(const Scene&) const = default;
};

// The name, or "none".
template <std::size_t N>
constexpr std::string_view name_in(const std::array<std::string_view, N>& names, std::uint8_t index) {
  return index < N ? names[index] : std::string_view("none");
}

// "a small red circle at the top left", "a large blue ring in the centre".
std::string caption_of(const Scene& scene);
// A caption of that kind; size and place may be missing, and the order does not matter. Nothing for other words, a word of one
// kind that comes twice, or a caption without colour or shape.
std::optional<Scene> parse_scene(std::string_view caption);

// Bounds of radius and place, as shares of the side. A shape's centre is within `jitter` of the middle of its place.
inline constexpr std::array<std::array<double, 2>, 2> size_bounds{{{0.14, 0.17}, {0.21, 0.24}}};
inline constexpr std::array<double, 3> place_middles{0.27, 0.5, 0.73};
inline constexpr double place_jitter = 0.03;

// Where a shape is drawn, in 256ths of a pixel.
struct Placement {
  std::int64_t centre_y = 0, centre_x = 0, radius = 0;
};

// Coverage of each pixel of side x side by a shape, 0 to samples^2: samples x samples points of each are tried. Integer
// arithmetic.
std::vector<std::uint8_t> shape_coverage(std::uint8_t shape, const Placement& placement, std::size_t side, int samples);
// Share of the square of side 2 x radius that a shape covers.
double shape_area(std::uint8_t shape);

// A picture of the scene, all of whose fields are known, 3 x side x side: radius, centre and tint vary with `random`. The same
// bytes on every machine. Throws Error(usage) unless side is 16 to 512.
Image draw_scene(const Scene& scene, std::size_t side, Random random);

}  // namespace bitloom::data
