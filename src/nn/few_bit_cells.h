// The grid A = t_0 < t_1 < ... < t_n = B of (7) with the integrals over its cells. Private to src/nn.
#pragma once

#include <cstddef>
#include <vector>

#include "nn/few_bit.h"
#include "nn/moments.h"

namespace bitloom::nn {

class Cells {
 public:
  // About `points` cells, at least: half of them equal, with an edge on every kink within; then the cell with the most error
  // is halved, again and again. So edges lie where derivative and weight ask for boundaries, however wide the interval is:
  // equal errors on cells of width h mean h^3 f''^2 w = const, the spacing of the best boundaries of many levels. Throws a
  // usage error if the weight is negative or zero throughout, or something is not finite.
  Cells(const FewBitProblem& problem, std::size_t points);

  const FewBitProblem& problem() const { return problem_; }
  const std::vector<double>& edges() const { return edges_; }       // n + 1
  const std::vector<Moments>& moments() const { return moments_; }  // n

  // Moments of any interval from < to within: whole cells from memory, the rest by quadrature.
  Moments between(double from, double to) const;

 private:
  FewBitProblem problem_;
  std::vector<double> edges_;
  std::vector<Moments> moments_;
};

}  // namespace bitloom::nn
