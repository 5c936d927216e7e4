#include "nn/moments.h"

#include <array>
#include <cmath>

namespace bitloom::nn {
namespace {

constexpr double tolerance = 1e-13;
constexpr int deepest = 48;          // halvings on the way to a jump, which then lies in 1e-14 of the interval
constexpr int most_halvings = 4096;  // limit for one integral: a function that is rough everywhere, or NaN, ends too

// Nodes and weights of Gauss and Legendre on [-1, 1], 8 points (Abramowitz, Stegun 1964, table 25.4).
struct Node {
  double place, weight;
};
constexpr std::array<Node, 4> nodes{{{0.183434642495649805, 0.362683783378361983},
                                     {0.525532409916328986, 0.313706645877887287},
                                     {0.796666477413626740, 0.222381034453374471},
                                     {0.960289856497536232, 0.101228536290376259}}};

Moments of_interval(const RealFunction& f, const RealFunction& w, double from, double to) {
  const double centre = 0.5 * (from + to), half = 0.5 * (to - from);
  std::array<double, 2 * nodes.size()> values{}, weights{};
  double plain = 0;
  Moments result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Node& node = nodes[i / 2];
    const double x = centre + (i % 2 == 0 ? -half : half) * node.place;
    values[i] = f(x);
    weights[i] = half * node.weight * w(x);
    result.weight += weights[i];
    result.mean += weights[i] * values[i];
    plain += 0.5 * node.weight * values[i];
  }
  result.mean = result.weight > 0 ? result.mean / result.weight : plain;
  for (std::size_t i = 0; i < values.size(); ++i) {
    result.scatter += weights[i] * (values[i] - result.mean) * (values[i] - result.mean);
  }
  return result;
}

struct Refinement {
  const RealFunction& f;
  const RealFunction& w;
  double allowed;  // error of the weight
  double scale;    // size of f
  int left = most_halvings;
};

Moments refine(Refinement& how, double from, double to, const Moments& whole, int depth) {
  const double middle = 0.5 * (from + to);
  const Moments left = of_interval(how.f, how.w, from, middle), right = of_interval(how.f, how.w, middle, to);
  const Moments both = merge(left, right);
  const bool agree = std::abs(both.weight - whole.weight) <= how.allowed &&
                     std::abs(both.weight * both.mean - whole.weight * whole.mean) <= how.allowed * how.scale &&
                     std::abs(both.scatter - whole.scatter) <= how.allowed * how.scale * how.scale;
  if (agree || depth == deepest || --how.left <= 0) return both;
  return merge(refine(how, from, middle, left, depth + 1), refine(how, middle, to, right, depth + 1));
}

}  // namespace

Moments merge(const Moments& a, const Moments& b) {
  const double weight = a.weight + b.weight;
  if (!(weight > 0)) return {weight, 0.5 * (a.mean + b.mean), 0};
  const double share = b.weight / weight;
  const double distance = b.mean - a.mean;
  return {weight, a.mean + distance * share, a.scatter + b.scatter + distance * distance * a.weight * share};
}

Moments integrate(const RealFunction& f, const RealFunction& w, double from, double to) {
  const Moments whole = of_interval(f, w, from, to);
  const double scale = std::abs(whole.mean) + (whole.weight > 0 ? std::sqrt(whole.scatter / whole.weight) : 0);
  Refinement how{f, w, tolerance * std::abs(whole.weight), scale};
  return refine(how, from, to, whole, 0);
}

}  // namespace bitloom::nn
