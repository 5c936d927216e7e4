// Integrals of a function under a weight over an interval, in the form that few-bit tables need: what the best constant is, and
// what error it leaves. Private to src/nn.
#pragma once

#include <functional>

namespace bitloom::nn {

using RealFunction = std::function<double(double)>;

// Moments of f under w on an interval. Kept as a mean and the error around it, not as the sums of (8): T = F2 - y^2 W is a
// difference of large numbers, and its rounding errors would hide the small errors of many levels.
struct Moments {
  double weight = 0;   // integral of w
  double mean = 0;     // integral of f w / weight: the best constant, (4). Where the weight is 0, some mean of f
  double scatter = 0;  // integral of (f - mean)^2 w: the error that this constant leaves, T of (7)
};

// Moments of two intervals together (Chan, Golub, LeVeque 1983, for sums).
Moments merge(const Moments& a, const Moments& b);

// From `from` to `to` > from, by Gauss-Legendre quadrature that halves the interval until halves and whole agree to 13 digits.
// Halving finds jumps too, but only those with a node on either side: divide at the known ones.
Moments integrate(const RealFunction& f, const RealFunction& w, double from, double to);

}  // namespace bitloom::nn
