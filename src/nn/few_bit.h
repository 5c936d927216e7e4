// Few-bit tables: the derivative f' of an activation function, replaced by the piecewise constant function of 2^b levels that
// is nearest to it. The backward pass then needs b bits of each input instead of 32 (Novikov et al., "Few-bit backward", 2022;
// the equation numbers are theirs).
#pragma once

#include <bit>
#include <cstddef>
#include <functional>
#include <vector>

#include "nn/activation.h"

namespace bitloom::nn {

// The function to approximate, and where it counts: minimise L = integral of (f'(x) - q(x))^2 w(x) over [low, high], (3).
struct FewBitProblem {
  std::function<double(double)> derivative;  // f'
  std::function<double(double)> weight;      // w, not negative; need not integrate to 1
  double low = 0, high = 0;
  std::vector<double> kinks;  // where derivative or weight jump: boundaries may stand exactly there
  bool even = false;          // x stands for -x too: tables are looked up by |x|, and low >= 0
};

// w = 1, (10).
std::function<double(double)> uniform_weight();
// The density of the normal distribution; deviation > 0.
std::function<double(double)> normal_weight(double mean = 0, double deviation = 1);

// The problem for a function of the table over [low, high]. Where f' is even and `fold` holds, the sign of x is dropped: the
// weight of -x is added to that of x, so that all levels go to one side of the axis and the error still counts both ("which
// essentially doubles the memory budget", caption of figure 3). Sigmoid and tanh reach the errors of table 1 only this way.
FewBitProblem few_bit_problem(const Activation& activation, std::function<double(double)> weight, double low, double high,
                              bool fold = true);

// A piecewise constant function q, (2). Interval i is (boundaries[i - 1], boundaries[i]]: an x on a boundary belongs to the
// interval on its left, as with searchsorted in listing 1. The first and last intervals reach to infinity.
struct StepFunction {
  std::vector<double> boundaries;  // (levels - 1), ascending
  std::vector<double> levels;
  bool even = false;  // looked up by |x|

  // Bits of the number of an interval, if there are 2, 4, 8, ... of them.
  unsigned bits() const { return static_cast<unsigned>(std::bit_width(levels.size() - 1)); }
  // The number of boundaries below x (below |x| if even); 0 for NaN.
  std::size_t index(double x) const;
  double operator()(double x) const { return levels[index(x)]; }
};

// The same function of signed x: an even one has its intervals again on the left of 0.
StepFunction unfolded(const StepFunction& steps);

struct FewBitTable : StepFunction {
  double error = 0;  // L of (3): the squared L2 error, what table 1 calls "error"
  double rms = 0;    // sqrt(L / integral of w): the error of the derivative at a typical x
};

struct FewBitOptions {
  std::size_t points = 2000;  // n of (7): cells of the grid on which boundaries are searched first
  bool polish = true;         // then move the boundaries off the grid
};

// The best table of 2^bits levels, bits in 1..8: a dynamic programme on a grid finds the global optimum there (7), in O(n^2
// 2^b) time at most and O(n + 2^b) space; polishing by Newton's method on (5) moves the boundaries off the grid. Polishing
// never makes it worse. Throws a usage error if the problem is not one (functions missing, low >= high, negative or no weight,
// values that are not finite) or has fewer points than levels.
FewBitTable fit_few_bit(const FewBitProblem& problem, unsigned bits, const FewBitOptions& options = {});

}  // namespace bitloom::nn
