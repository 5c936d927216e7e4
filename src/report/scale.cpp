#include "report/scale.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace bitloom::report {

namespace {

constexpr double largest = 1e30;  // keeps the differences and powers below finite

double nice_step(double span, int ticks) {
  const double rough = span / std::max(1, ticks);
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  return power * (digit <= 1.5 ? 1 : digit <= 3.5 ? 2 : digit <= 7.5 ? 5 : 10);
}

Scale linear_scale(Range range, int ticks, Fit fit, Range possible) {
  if (range.empty()) range = {0, 1};
  // Also when the values differ by less than the ticks could resolve.
  const double magnitude = std::max(std::abs(range.low), std::abs(range.high));
  if (!(range.high - range.low > 1e-9 * magnitude)) {
    const double margin = magnitude > 0 ? 0.1 * magnitude : 1;
    const Range wide{range.low - margin, range.high + margin};
    // Values beyond what is possible are shown all the same.
    range = {std::max(wide.low, std::min(possible.low, range.low)), std::min(wide.high, std::max(possible.high, range.high))};
  }
  Scale scale;
  const double step = nice_step(range.high - range.low, ticks);
  constexpr double slack = 1e-6;  // share of a step: rounding errors of the divisions
  double first = std::ceil(range.low / step - slack);
  double last = std::floor(range.high / step + slack);
  scale.low = range.low;
  scale.high = range.high;
  if (fit == Fit::round) {
    first = std::floor(range.low / step + slack);
    last = std::ceil(range.high / step - slack);
    scale.low = first * step;
    scale.high = last * step;
  }
  for (double i = first; i <= last; ++i) scale.ticks.push_back({i * step, tick_label(i * step, step)});
  return scale;
}

Scale log_scale(Range range, int ticks) {
  if (range.empty()) range = {1, 10};
  double first = std::floor(std::log10(range.low) + 1e-9);
  double last = std::ceil(std::log10(range.high) - 1e-9);
  if (last <= first) last = first + 1;
  Scale scale;
  scale.logarithmic = true;
  scale.low = std::pow(10.0, first);
  scale.high = std::pow(10.0, last);
  const double stride = std::max(1.0, std::ceil((last - first) / std::max(1, ticks)));
  for (double power = first; power <= last; power += stride) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = digit * std::pow(10.0, power);
      if (digit > 1 && (last - first > 2 || power >= last)) break;
      scale.ticks.push_back({value, tick_label(value, value)});
    }
  }
  return scale;
}

}  // namespace

double Scale::at(double value) const {
  if (logarithmic) return std::log(value / low) / std::log(high / low);
  return (value - low) / (high - low);
}

bool plottable(double value, bool logarithmic) {
  if (logarithmic) return value >= 1 / largest && value <= largest;
  return std::abs(value) <= largest;
}

void Range::add(double value, bool logarithmic) {
  if (!plottable(value, logarithmic)) return;
  low = std::min(low, value);
  high = std::max(high, value);
}

Scale make_scale(Range range, bool logarithmic, int ticks, Fit fit, Range possible) {
  return logarithmic ? log_scale(range, ticks) : linear_scale(range, ticks, fit, possible);
}

std::string tick_label(double value, double step) {
  if (std::abs(value) < step * 1e-6) return "0";
  const double size = std::max(std::abs(value), step);
  if (size >= 1e13 || size < 1e-4) return fmt::format("{:.3g}", value);
  double unit = 1;
  const char* suffix = "";
  for (const auto& [from, name] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e4, "k"}}) {
    if (size >= from) {
      unit = from == 1e4 ? 1e3 : from;
      suffix = name;
      break;
    }
  }
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(step / unit) - 1e-9)), 0, 6);
  const std::string text = fmt::format("{:.{}f}", value / unit, decimals);
  return decimals == 0 && unit == 1 ? grouped(value) : text + suffix;
}

std::string grouped(double value) {
  if (!std::isfinite(value)) return "?";
  if (std::abs(value) >= 1e15) return fmt::format("{:.4g}", value);
  std::string text = fmt::format("{:.0f}", std::abs(value));
  for (std::ptrdiff_t i = static_cast<std::ptrdiff_t>(text.size()) - 3; i > 0; i -= 3) {
    text.insert(static_cast<std::size_t>(i), ",");
  }
  return (value <= -0.5 ? "−" : "") + text;
}

}  // namespace bitloom::report
