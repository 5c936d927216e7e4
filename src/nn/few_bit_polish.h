// Boundaries off the grid: the error as a function of them alone, its gradient, and Newton's method. Private to src/nn.
#pragma once

#include <vector>

#include "nn/few_bit_cells.h"

namespace bitloom::nn {

// Boundaries s with what follows from them.
struct Division {
  std::vector<double> boundaries;  // K - 1, ascending, between low and high
  std::vector<Moments> parts;      // K; the best levels y(s) of (4) are their means
  double error = 0;                // L(s, y(s)) of (3)
};

Division divide_at(const Cells& cells, std::vector<double> boundaries);

// A local minimum near `start`: in it, f' at each boundary is the mean of the levels beside it, or the boundary stands on a
// kink. Never returns more error than `start` has.
Division polish(const Cells& cells, Division start);

}  // namespace bitloom::nn
