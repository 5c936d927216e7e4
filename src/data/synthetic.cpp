#include "data/synthetic.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/random.h"

namespace bitloom::data {
namespace {

constexpr int side = 32;
constexpr int channels = 3;
constexpr int plane = side * side;
// Positions are in quarter pixels: each pixel is the mean of 4 x 4 samples.
constexpr int sub = 4;
// Shapes are drawn in coordinates u, v in which they fill about -1024 .. 1024.
constexpr int unit = 1024;

using Colour = std::array<int, channels>;

// --- The classes: is the point (u, v) inside? ---

bool in_circle(int u, int v, int radius) { return u * u + v * v < radius * radius; }
bool in_square(int u, int v, int half) { return std::max(std::abs(u), std::abs(v)) < half; }
bool in_disc(int u, int v) { return in_circle(u, v, 860); }
bool in_ring(int u, int v) { return in_circle(u, v, 940) && !in_circle(u, v, 560); }
bool in_full_square(int u, int v) { return in_square(u, v, 780); }
bool in_frame(int u, int v) { return in_square(u, v, 850) && !in_square(u, v, 490); }
// Equilateral: the sides are at distance 500 from the centre; 887 / 512 is the square root of 3.
bool in_triangle(int u, int v) { return v > -500 && 887 * std::abs(u) + 512 * v < 1000 * 512; }
bool in_cross(int u, int v) { return (std::abs(u) < 270 && std::abs(v) < 960) || (std::abs(v) < 270 && std::abs(u) < 960); }
// Five points: a pentagram is where at most one of the five half-planes of its inner pentagon is left.
bool in_star(int u, int v) {
  constexpr std::array<std::array<int, 2>, 5> normals{{{0, 1024}, {974, 316}, {602, -828}, {-602, -828}, {-974, 316}}};
  const auto outside = std::count_if(normals.begin(), normals.end(),
                                     [&](const std::array<int, 2>& n) { return n[0] * u + n[1] * v > 410 * 1024; });
  return outside <= 1;
}
bool in_crescent(int u, int v) { return in_circle(u, v, 940) && !in_circle(u - 480, v, 760); }
bool in_stripes(int u, int v) { return in_square(u, v, 860) && (u + 860) / 344 % 2 == 0; }
bool in_checker(int u, int v) { return in_square(u, v, 900) && ((u + 900) / 450 + (v + 900) / 450) % 2 == 0; }

struct Shape {
  const char* name;
  bool (*contains)(int u, int v);
};

constexpr std::array<Shape, synthetic_classes> shapes{{{"disc", &in_disc},
                                                       {"ring", &in_ring},
                                                       {"square", &in_full_square},
                                                       {"frame", &in_frame},
                                                       {"triangle", &in_triangle},
                                                       {"cross", &in_cross},
                                                       {"star", &in_star},
                                                       {"crescent", &in_crescent},
                                                       {"stripes", &in_stripes},
                                                       {"checker", &in_checker}}};

// --- Painting ---

int between(Random& random, int low, int high) {
  return low + static_cast<int>(random.below(static_cast<std::uint32_t>(high - low + 1)));
}

Colour random_colour(Random& random, int low, int high) {
  Colour colour;
  for (int& value : colour) value = between(random, low, high);
  return colour;
}

// The weights of ITU-R BT.601 in 256ths.
int luma(const Colour& colour) { return (77 * colour[0] + 150 * colour[1] + 29 * colour[2]) >> 8; }

// Smooth noise of -128 .. 127: a lattice of random numbers every 2^log_cell pixels, bilinear in between.
struct Noise {
  Noise(Random& random, int log) : log_cell(log) {
    for (int& value : lattice) value = between(random, -128, 127);
  }
  int at(int y, int x) const {
    const int cell = 1 << log_cell;
    const int* corner = lattice.data() + (y >> log_cell) * pitch + (x >> log_cell);
    const int fx = x & (cell - 1);
    const int fy = y & (cell - 1);
    const int top = corner[0] * (cell - fx) + corner[1] * fx;
    const int bottom = corner[pitch] * (cell - fx) + corner[pitch + 1] * fx;
    return (top * (cell - fy) + bottom * fy) >> (2 * log_cell);
  }

  static constexpr int pitch = side / 4 + 1;
  int log_cell;  // 2 to 5
  std::array<int, pitch * pitch> lattice;
};

// A picture with room for values outside 0 .. 255 until it is finished: 3 x 32 x 32.
using Canvas = std::array<int, channels * plane>;

// Two colours mixed by coarse noise, plus fine noise; `strength` scales the texture.
void paint_background(Random& random, const Colour& base, int strength, Canvas& canvas) {
  const Noise coarse(random, 4);
  const Noise fine(random, between(random, 2, 3));
  const Colour tint = random_colour(random, -strength, strength);
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      const int shade = coarse.at(y, x);
      const int grain = fine.at(y, x) * strength;
      for (int c = 0; c < channels; ++c) {
        const auto k = static_cast<std::size_t>(c);
        canvas[static_cast<std::size_t>(c * plane + y * side + x)] = base[k] + ((shade * 2 * tint[k] + grain) >> 7);
      }
    }
  }
}

// Where a shape lies: u = (du.x x + du.y y) / 2^shift for (x, y) in quarter pixels from its centre, v by dv.
struct Placement {
  int centre_y = 0;  // quarter pixels
  int centre_x = 0;
  int reach = 0;  // no part of the shape is further from the centre, quarter pixels
  std::int64_t ux = 0, uy = 0, vx = 0, vy = 0;
  static constexpr int shift = 16;
};

// radius_u and radius_v: half the extent along each axis of the shape, quarter pixels.
Placement place(Random& random, int centre_y, int centre_x, int radius_u, int radius_v) {
  // A unit vector without trigonometry: ((1 - t^2) / (1 + t^2), 2t / (1 + t^2)) for t in -1 .. 1 is half of the circle,
  // a sign gives the other half. Scaled by 2^12.
  const std::int64_t t = between(random, -4096, 4096);
  const std::int64_t square = t * t;
  const std::int64_t one = 4096LL * 4096;
  const std::int64_t sign = random.below(2) == 0 ? 1 : -1;
  const std::int64_t cosine = sign * 4096 * (one - square) / (one + square);
  const std::int64_t sine = sign * 4096 * (2 * t * 4096) / (one + square);
  const std::int64_t mirrored = random.below(2) == 0 ? 1 : -1;
  constexpr std::int64_t scale = unit * (1LL << (Placement::shift - 12));
  Placement placement;
  placement.centre_y = centre_y;
  placement.centre_x = centre_x;
  placement.reach = 3 * std::max(radius_u, radius_v) / 2 + sub;
  placement.ux = cosine * scale / radius_u;
  placement.uy = sine * scale / radius_u;
  placement.vx = -mirrored * sine * scale / radius_v;
  placement.vy = mirrored * cosine * scale / radius_v;
  return placement;
}

// Mixes `colour` into the canvas by coverage; `opacity` of 16. The paint has a gradient and takes on a noise of its own.
void paint_shape(Random& random, const Placement& at, bool (*contains)(int, int), const Colour& colour, int texture,
                 int opacity, Canvas& canvas) {
  const Noise grain(random, 3);
  const int first_y = std::max(0, (at.centre_y - at.reach) / sub);
  const int last_y = std::min(side - 1, (at.centre_y + at.reach) / sub);
  const int first_x = std::max(0, (at.centre_x - at.reach) / sub);
  const int last_x = std::min(side - 1, (at.centre_x + at.reach) / sub);
  for (int y = first_y; y <= last_y; ++y) {
    for (int x = first_x; x <= last_x; ++x) {
      int covered = 0;
      for (int sample = 0; sample < sub * sub; ++sample) {
        const int dy = y * sub + sample / sub - at.centre_y;
        const int dx = x * sub + sample % sub - at.centre_x;
        const auto u = static_cast<int>((at.ux * dx + at.uy * dy) >> Placement::shift);
        const auto v = static_cast<int>((at.vx * dx + at.vy * dy) >> Placement::shift);
        covered += contains(u, v);
      }
      if (covered == 0) continue;
      const int weight = covered * opacity;  // in 256ths
      const int shade = (grain.at(y, x) * texture) >> 7;
      for (int c = 0; c < channels; ++c) {
        int& value = canvas[static_cast<std::size_t>(c * plane + y * side + x)];
        value += ((colour[static_cast<std::size_t>(c)] + shade - value) * weight) >> 8;
      }
    }
  }
}

// A small dot or bar: too small to be mistaken for a class, large enough to disturb.
void paint_distractor(Random& random, Canvas& canvas) {
  const int y = between(random, 0, side * sub - 1);
  const int x = between(random, 0, side * sub - 1);
  const bool dot = random.below(2) == 0;
  const int length = dot ? between(random, 4, 7) : between(random, 10, 18);
  const int breadth = dot ? length : between(random, 3, 4);
  const Colour colour = random_colour(random, 20, 235);
  paint_shape(random, place(random, y, x, length, breadth), dot ? &in_disc : &in_full_square, colour, 10, 14, canvas);
}

// Colours of the shape and its background: far enough apart in luma, in either direction.
std::array<Colour, 2> contrasting_colours(Random& random) {
  const int gap = between(random, 60, 110);
  std::array<Colour, 2> pair{random_colour(random, 30, 225), random_colour(random, 30, 225)};
  const int wanted = luma(pair[0]) + gap <= 225 && (random.below(2) == 0 || luma(pair[0]) - gap < 30) ? gap : -gap;
  const int shift = luma(pair[0]) + wanted - luma(pair[1]);
  for (int& value : pair[1]) value += shift;
  return pair;
}

void finish(Random& random, int noise, const Canvas& canvas, std::uint8_t* image) {
  for (int i = 0; i < plane; ++i) {
    std::uint64_t bits = random.next();
    for (int c = 0; c < channels; ++c) {
      // The sum of two uniform numbers of -64 .. 63, so nearer to normal than one.
      const int grain = static_cast<int>(bits & 127) + static_cast<int>(bits >> 7 & 127) - 127;
      bits >>= 14;
      const int value = canvas[static_cast<std::size_t>(c * plane + i)] + ((grain * noise) >> 6);
      image[c * plane + i] = static_cast<std::uint8_t>(std::clamp(value, 0, 255));
    }
  }
}

// Every block of ten consecutive images holds each class once, in random order.
std::uint16_t class_of(std::uint64_t seed, std::uint64_t index) {
  std::array<std::uint16_t, synthetic_classes> order;
  for (std::size_t k = 0; k < order.size(); ++k) order[k] = static_cast<std::uint16_t>(k);
  shuffle(order.data(), order.size(), Random(seed, Stream::synthetic_data, index / synthetic_classes, 1));
  return order[index % synthetic_classes];
}

void draw(std::uint64_t seed, std::uint64_t index, std::size_t label, std::uint8_t* image) {
  Random random(seed, Stream::synthetic_data, index, 0);
  Canvas canvas;
  const auto [behind, front] = contrasting_colours(random);
  paint_background(random, behind, between(random, 10, 40), canvas);
  const int before = between(random, 1, 3);
  for (int i = 0; i < before; ++i) paint_distractor(random, canvas);

  const int radius_u = between(random, 7 * sub, 13 * sub);
  const int radius_v = radius_u * between(random, 80, 125) / 100;
  const int room = std::max(radius_u, radius_v);
  const int low = std::min(room - sub, side * sub / 2 - 2 * sub);
  const int y = between(random, low, side * sub - low);
  const int x = between(random, low, side * sub - low);
  paint_shape(random, place(random, y, x, radius_u, radius_v), shapes[label].contains, front, between(random, 5, 30), 16,
              canvas);

  const int after = between(random, 0, 2);
  for (int i = 0; i < after; ++i) paint_distractor(random, canvas);
  finish(random, between(random, 4, 16), canvas, image);
}

}  // namespace

Dataset make_synthetic(std::uint64_t seed, std::size_t count, std::size_t first_index) {
  Dataset dataset{"synth", {side, side, channels}, {}, {}, {}};
  for (const Shape& shape : shapes) dataset.class_names.emplace_back(shape.name);
  dataset.labels.resize(count);
  dataset.pixels.resize(count * dataset.shape.size());
#pragma omp parallel for schedule(static)
  for (std::size_t i = 0; i < count; ++i) {
    dataset.labels[i] = class_of(seed, first_index + i);
    draw(seed, first_index + i, dataset.labels[i], dataset.pixels.data() + i * dataset.shape.size());
  }
  return dataset;
}

}  // namespace bitloom::data
