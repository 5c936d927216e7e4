// A function and the piecewise constant one that stands for it, as figure 1 of "Few-bit backward" (Novikov et al. 2022) has
// them.
#pragma once

#include <string>
#include <vector>

#include "report/picture.h"

namespace bitloom::report {

struct StepChart {
  std::string title, subtitle;
  std::string x_title, y_title;
  double low = 0, high = 0;               // shown range of the x axis
  std::vector<std::vector<Point>> curve;  // pieces between jumps, in the units of the axes
  std::string curve_name;
  std::vector<double> boundaries;  // ascending; those outside of low..high are not shown
  std::vector<double> levels;      // one more
  std::string steps_name, boundaries_name;
};

// Throws a usage error unless low < high and there is one level more than boundaries.
Picture draw(const StepChart& chart);

}  // namespace bitloom::report
