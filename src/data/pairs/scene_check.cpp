#include "data/pairs/scene_check.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "data/pairs/square_crop.h"

namespace bitloom::data {
namespace {

using Vector = std::array<double, 3>;

double dot(const Vector& a, const Vector& b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

double pixel(const Image& image, std::size_t c, std::size_t i) {
  return image.pixels[c * image.shape.height * image.shape.width + i];
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The border of a picture, of which shapes cover little: its colour, and the variance of its noise, channel by channel.
struct Ground {
  Vector colour{}, variance{};
};

Ground ground_of(const Image& image) {
  const std::size_t side = image.shape.height;
  Ground ground;
  for (std::size_t c = 0; c < 3; ++c) {
    std::vector<double> border;
    for (std::size_t i = 0; i < side; ++i) {
      for (const std::size_t at : {i, (side - 1) * side + i, i * side, i * side + side - 1})
        border.push_back(pixel(image, c, at));
    }
    ground.colour[c] = median(border);
    for (double& value : border) value = std::abs(value - ground.colour[c]);
    // Deviation of a normal distribution. A border of two colours is not noise.
    const double deviation = std::min(40.0, 1.4826 * median(border));
    ground.variance[c] = deviation * deviation;
  }
  return ground;
}

Vector from_ground(std::uint8_t colour) {
  Vector difference{};
  for (std::size_t c = 0; c < 3; ++c)
    difference[c] = static_cast<double>(colour_values[colour][c]) - static_cast<double>(ground_colour[c]);
  return difference;
}

// The picture as multiples of a colour's difference from the ground.
struct Amounts {
  std::size_t side = 0;
  std::uint8_t colour = Scene::nothing;
  std::vector<double> amount;  // (side, side): 0 is the ground, 1 the full colour
  double norm = 0;             // of all differences from the ground but its noise, in units of the colour's
};

// Differences from the ground, (side x side).
std::vector<Vector> differences(const Image& image, const Vector& ground) {
  std::vector<Vector> result(image.shape.height * image.shape.width);
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t c = 0; c < 3; ++c) result[i][c] = pixel(image, c, i) - ground[c];
  }
  return result;
}

// The colour whose direction is nearest to that of the strongest differences, within 15 degrees; colours are 17 apart at least.
std::uint8_t colour_of(const std::vector<Vector>& differences) {
  double strongest = 0;
  for (const Vector& each : differences) strongest = std::max(strongest, dot(each, each));
  Vector sum{};
  for (const Vector& each : differences) {
    if (dot(each, each) < strongest / 4) continue;
    for (std::size_t c = 0; c < 3; ++c) sum[c] += each[c];
  }
  const double length = std::sqrt(dot(sum, sum));
  std::uint8_t best = Scene::nothing;
  double nearest = std::cos(15 * std::acos(-1.0) / 180);
  for (std::uint8_t colour = 0; colour < colour_names.size() && length > 0; ++colour) {
    const Vector direction = from_ground(colour);
    const double cosine = dot(sum, direction) / (length * std::sqrt(dot(direction, direction)));
    if (cosine > nearest) {
      nearest = cosine;
      best = colour;
    }
  }
  return best;
}

Amounts amounts_of(const std::vector<Vector>& differences, std::size_t side, std::uint8_t colour, const Vector& variance) {
  Amounts result{side, colour, std::vector<double>(differences.size()), 0};
  const Vector direction = from_ground(colour);
  const double square = dot(direction, direction);
  for (std::size_t i = 0; i < differences.size(); ++i) {
    result.amount[i] = dot(differences[i], direction) / square;
    result.norm += dot(differences[i], differences[i]) / square;
  }
  const double noise = static_cast<double>(differences.size()) * (variance[0] + variance[1] + variance[2]) / square;
  result.norm = std::sqrt(std::max(result.norm - noise, result.norm / 2));  // noise alone does not fit either
  return result;
}

// A shape at a place, and how well it fits.
struct Fit {
  std::uint8_t shape = 0;
  Placement placement;
  std::size_t blur = 0;  // number in `blurs`
  double fit = -1;
};

// Widths of blur that templates are tried with (standard deviation of a Gaussian), as shares of the side.
constexpr std::array<double, 4> blurs{0, 0.02, 0.04, 0.065};

// In place, each axis by itself; beyond the picture there is 0.
void blur(std::vector<double>& values, std::size_t side, double sigma) {
  const auto reach = static_cast<std::ptrdiff_t>(std::ceil(3 * sigma));
  std::vector<double> weights;
  double sum = 0;
  for (std::ptrdiff_t i = -reach; i <= reach; ++i) {
    weights.push_back(std::exp(-static_cast<double>(i * i) / (2 * sigma * sigma)));
    sum += weights.back();
  }
  const auto size = static_cast<std::ptrdiff_t>(side);
  std::vector<double> line(side);
  for (const auto& [step, next] : {std::pair<std::ptrdiff_t, std::ptrdiff_t>{1, size}, {size, 1}}) {
    for (std::ptrdiff_t row = 0; row < size; ++row) {
      double* at = values.data() + row * next;
      for (std::ptrdiff_t x = 0; x < size; ++x) line[static_cast<std::size_t>(x)] = at[x * step];
      for (std::ptrdiff_t x = 0; x < size; ++x) {
        double total = 0;
        for (std::ptrdiff_t i = std::max(-reach, -x); i <= std::min(reach, size - 1 - x); ++i)
          total += weights[static_cast<std::size_t>(i + reach)] * line[static_cast<std::size_t>(x + i)];
        at[x * step] = total / sum;
      }
    }
  }
}

double fit_of(const Amounts& picture, const Fit& candidate) {
  constexpr int samples = 4;
  const std::vector<std::uint8_t> covered = shape_coverage(candidate.shape, candidate.placement, picture.side, samples);
  std::vector<double> pattern(covered.begin(), covered.end());
  const double sigma = blurs[candidate.blur] * static_cast<double>(picture.side);
  if (sigma > 0) blur(pattern, picture.side, sigma);
  double product = 0, square = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    product += pattern[i] * picture.amount[i];
    square += pattern[i] * pattern[i];
  }
  return square > 0 && picture.norm > 0 ? product / (std::sqrt(square) * picture.norm) : 0;
}

// A radius no further than a tenth from those of shapes: a smaller one with more blur would fit as well.
std::int64_t within_bounds(std::int64_t radius, std::size_t side) {
  const double pixels = 256 * static_cast<double>(side);
  return std::clamp<std::int64_t>(radius, std::llround(0.9 * size_bounds[0][0] * pixels),
                                  std::llround(1.1 * size_bounds[1][1] * pixels));
}

// Where the shape would be by mass and centre of mass. Of a shape and its box, centres of mass differ little; refine() sees to
// it.
Fit first_guess(const Amounts& picture, std::uint8_t shape) {
  double mass = 0, weight = 0, y_sum = 0, x_sum = 0;
  for (std::size_t i = 0; i < picture.amount.size(); ++i) {
    const double amount = picture.amount[i];
    mass += amount;
    if (amount < 0.3) continue;  // noise
    weight += amount;
    y_sum += amount * (static_cast<double>(i / picture.side) + 0.5);
    x_sum += amount * (static_cast<double>(i % picture.side) + 0.5);
  }
  Fit fit{shape, {}, 0, -1};
  if (!(weight > 0)) return fit;
  const double radius = std::sqrt(std::max(0.0, mass) / (4 * shape_area(shape)));
  fit.placement = {std::llround(256 * y_sum / weight), std::llround(256 * x_sum / weight),
                   within_bounds(std::llround(256 * radius), picture.side)};
  fit.fit = fit_of(picture, fit);
  return fit;
}

// Steps along each of the four numbers for as long as one of them helps.
void refine(const Amounts& picture, std::int64_t step, Fit& best) {
  if (best.fit < 0) return;
  for (bool better = true; better;) {
    better = false;
    for (int move = 0; move < 8; ++move) {
      Fit candidate = best;
      const std::int64_t sign = move % 2 == 0 ? 1 : -1;
      if (move / 2 == 0) candidate.placement.centre_y += sign * step;
      if (move / 2 == 1) candidate.placement.centre_x += sign * step;
      if (move / 2 == 2) candidate.placement.radius += sign * step / 2;
      if (move / 2 == 3) candidate.blur += static_cast<std::size_t>(sign);  // below 0 it is out of range as well
      if (candidate.blur >= blurs.size() ||
          candidate.placement.radius != within_bounds(candidate.placement.radius, picture.side))
        continue;
      candidate.fit = fit_of(picture, candidate);
      if (!(candidate.fit > best.fit + 1e-6)) continue;
      best = candidate;
      better = true;
    }
  }
}

// Best fit of all shapes. Steps get finer for those that are not far behind.
Fit best_fit(const Amounts& picture) {
  std::vector<Fit> fits;
  for (std::uint8_t shape = 0; shape < shape_names.size(); ++shape) fits.push_back(first_guess(picture, shape));
  const auto worse = [](const Fit& a, const Fit& b) { return a.fit < b.fit; };
  const auto drop = [&](double far_behind) {
    const double best = std::max_element(fits.begin(), fits.end(), worse)->fit;
    std::erase_if(fits, [&](const Fit& fit) { return fit.fit < best - far_behind; });
  };
  drop(0.15);
  const auto unit = static_cast<std::int64_t>(256 * picture.side / 32);
  for (const std::int64_t step : {unit, unit / 2, unit / 4}) {
    for (Fit& fit : fits) refine(picture, step, fit);
    drop(0.03);
  }
  return *std::max_element(fits.begin(), fits.end(), worse);
}

// Row or column of a centre, as a share of the side. A place reaches half way to the next, and as far outwards.
std::uint8_t third_at(double centre) {
  for (std::uint8_t i = 0; i < place_middles.size(); ++i) {
    if (std::abs(centre - place_middles[i]) < (place_middles[1] - place_middles[0]) / 2) return i;
  }
  return Scene::nothing;
}

}  // namespace

SeenScene see_scene(const Image& image) {
  const std::size_t side = image.shape.height;
  if (image.shape.width != side || image.shape.channels != 3 || image.pixels.size() != image.shape.size() || side < 16 ||
      side > 512)
    fail(ErrorKind::usage, "a picture of {} x {} x {}, expected 3 x N x N, N from 16 to 512", image.shape.channels,
         image.shape.height, image.shape.width);
  SeenScene seen;
  const Ground ground = ground_of(image);
  // Colours would be others, too, on another ground.
  for (std::size_t c = 0; c < 3; ++c) {
    if (std::abs(ground.colour[c] - ground_colour[c]) > 40) return seen;
  }
  const std::vector<Vector> difference = differences(image, ground.colour);
  const std::uint8_t colour = colour_of(difference);
  if (colour == Scene::nothing) return seen;
  const Amounts picture = amounts_of(difference, side, colour, ground.variance);
  // Faint stains of a colour are not a shape of it.
  if (*std::max_element(picture.amount.begin(), picture.amount.end()) < 0.4) return seen;
  const Fit best = best_fit(picture);
  seen.fit = std::clamp(best.fit, 0.0, 1.0);
  if (!(best.fit >= scene_fit)) return seen;
  const double pixels = 256 * static_cast<double>(side);
  const double between_sizes = (size_bounds[0][1] + size_bounds[1][0]) / 2;
  const std::uint8_t size = static_cast<double>(best.placement.radius) / pixels < between_sizes ? 0 : 1;
  const std::uint8_t row = third_at(static_cast<double>(best.placement.centre_y) / pixels);
  const std::uint8_t column = third_at(static_cast<double>(best.placement.centre_x) / pixels);
  const bool placed = row != Scene::nothing && column != Scene::nothing;
  seen.scene = {colour, best.shape, size, placed ? static_cast<std::uint8_t>(3 * row + column) : Scene::nothing};
  return seen;
}

void SceneScore::add(const Scene& asked, const Scene& seen) {
  const auto right = [](std::uint8_t wanted, std::uint8_t found) { return wanted == Scene::nothing || wanted == found; };
  const bool good_colour = right(asked.colour, seen.colour), good_shape = right(asked.shape, seen.shape);
  const bool good_size = right(asked.size, seen.size), good_place = right(asked.place, seen.place);
  ++pictures;
  colour += good_colour ? 1U : 0U;
  shape += good_shape ? 1U : 0U;
  size += good_size ? 1U : 0U;
  place += good_place ? 1U : 0U;
  colour_and_shape += good_colour && good_shape ? 1U : 0U;
  all += good_colour && good_shape && good_size && good_place ? 1U : 0U;
  none += seen == Scene{} ? 1U : 0U;
}

SceneScore score_scenes(const Pairs& pairs, ProgressSink* progress) {
  std::vector<std::pair<std::size_t, Scene>> asked;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (const auto scene = parse_scene(pairs[i].caption)) asked.emplace_back(i, *scene);
  }
  SceneScore score;
  constexpr std::size_t piece = 256;
  for (std::size_t first = 0; first < asked.size(); first += piece) {
    std::vector<Scene> seen(std::min(piece, asked.size() - first));
    for_all_images(seen.size(), [&](std::size_t k) {
      const Image image = pairs.image(asked[first + k].first);
      const auto [height, width, channels] = image.shape;
      const std::size_t side = std::clamp<std::size_t>(std::min(height, width), 16, 512);
      const SquareCrop centre = draw_crop(CropKind::centre, height, width, side, Random(0, Stream::augment));
      seen[k] = see_scene(cut(image, centre, side)).scene;
    });
    for (std::size_t k = 0; k < seen.size(); ++k) score.add(asked[first + k].second, seen[k]);
    if (progress != nullptr) progress->update(fmt::format("{} of {} pictures looked at", first + seen.size(), asked.size()));
  }
  return score;
}

}  // namespace bitloom::data
