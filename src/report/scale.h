// Axes: which part of the number line a chart shows, where its ticks are and what they say.
#pragma once

#include <limits>
#include <string>
#include <vector>

namespace bitloom::report {

struct Tick {
  double value = 0;
  std::string label;
};

// Maps values to 0..1 along an axis.
struct Scale {
  double low = 0;
  double high = 1;
  bool logarithmic = false;
  std::vector<Tick> ticks;  // ascending, all within low..high

  double at(double value) const;
};

// Whether a value can be drawn: finite, not absurdly large, and positive on a logarithmic axis. Others are gaps.
bool plottable(double value, bool logarithmic);

// The range of the plottable values seen.
struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();

  bool empty() const { return low > high; }
  void add(double value, bool logarithmic = false);
};

inline constexpr Range everything{-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
inline constexpr Range percentages{0, 100};

enum class Fit { tight, round };  // the range itself, or widened to the nearest ticks

// A scale over `range` with about `ticks` ticks at 1, 2 or 5 times a power of ten (logarithmic: powers of ten, with 2 and 5
// between them where there are few). A range of one value is widened around it, but for the values that are not `possible`; an
// empty one becomes 0..1 (1..10).
Scale make_scale(Range range, bool logarithmic, int ticks, Fit fit, Range possible = everything);

// "0", "0.25", "15", "1,500", "20k", "3M", "1e-6": a value on an axis whose ticks are `step` apart.
std::string tick_label(double value, double step);

// A whole number with its digits in groups of three, "?" when it is not finite.
std::string grouped(double value);

}  // namespace bitloom::report
