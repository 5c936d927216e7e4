#include "nn/few_bit.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "core/error.h"
#include "nn/few_bit_cells.h"
#include "nn/few_bit_partition.h"
#include "nn/few_bit_polish.h"

namespace bitloom::nn {
namespace {

void check_interval(double low, double high) {
  if (!std::isfinite(low) || !std::isfinite(high) || !(low < high)) {
    fail(ErrorKind::usage, "interval: from {} to {}; expected two finite numbers, the first one smaller", low, high);
  }
}

void check(const FewBitProblem& problem, unsigned bits, const FewBitOptions& options) {
  if (!problem.derivative) fail(ErrorKind::usage, "derivative: missing");
  if (!problem.weight) fail(ErrorKind::usage, "weight: missing");
  check_interval(problem.low, problem.high);
  if (problem.even && problem.low < 0) {
    fail(ErrorKind::usage, "interval: from {}; expected at least 0 where the sign of x is dropped", problem.low);
  }
  if (bits < 1 || bits > 8) fail(ErrorKind::usage, "bits: {}, expected 1 to 8", bits);
  const std::size_t levels = std::size_t{1} << bits;
  if (options.points < levels) {
    fail(ErrorKind::usage, "points: {}, expected at least {}, one per level of {} bits", options.points, levels, bits);
  }
}

}  // namespace

std::function<double(double)> uniform_weight() {
  return [](double) { return 1.0; };
}

std::function<double(double)> normal_weight(double mean, double deviation) {
  if (!std::isfinite(mean) || !std::isfinite(deviation) || !(deviation > 0)) {
    fail(ErrorKind::usage, "normal weight: mean {} and deviation {}; expected finite numbers, the second one above 0", mean,
         deviation);
  }
  const double height = std::numbers::inv_sqrtpi / (std::numbers::sqrt2 * deviation);
  return [=](double x) {
    const double z = (x - mean) / deviation;
    return height * std::exp(-0.5 * z * z);
  };
}

FewBitProblem few_bit_problem(const Activation& activation, std::function<double(double)> weight, double low, double high,
                              bool fold) {
  check_interval(low, high);
  if (!weight) fail(ErrorKind::usage, "weight: missing");
  FewBitProblem problem{activation.derivative, std::move(weight), low, high, {}, false};
  problem.kinks.assign(activation.kinks.begin(), activation.kinks.end());
  if (!fold || activation.symmetry != Symmetry::even) return problem;
  const auto inside = [low, high](double x) { return x >= low && x <= high; };
  problem.even = true;
  problem.weight = [inside, w = std::move(problem.weight)](double x) {
    return (inside(x) ? w(x) : 0) + (inside(-x) ? w(-x) : 0);
  };
  const double near = std::min(std::abs(low), std::abs(high)), far = std::max(std::abs(low), std::abs(high));
  problem.low = inside(0) ? 0 : near;
  problem.high = far;
  for (double& kink : problem.kinks) kink = std::abs(kink);
  if (inside(0) && near < far) problem.kinks.push_back(near);  // from here on one side of the axis counts
  return problem;
}

std::size_t StepFunction::index(double x) const {
  const double key = even ? std::abs(x) : x;
  return static_cast<std::size_t>(std::lower_bound(boundaries.begin(), boundaries.end(), key) - boundaries.begin());
}

StepFunction unfolded(const StepFunction& steps) {
  StepFunction result{steps.boundaries, steps.levels, false};
  if (!steps.even) return result;
  for (const double s : steps.boundaries) result.boundaries.insert(result.boundaries.begin(), -s);
  for (std::size_t i = 1; i < steps.levels.size(); ++i) result.levels.insert(result.levels.begin(), steps.levels[i]);
  return result;
}

FewBitTable fit_few_bit(const FewBitProblem& problem, unsigned bits, const FewBitOptions& options) {
  check(problem, bits, options);
  const Cells cells(problem, options.points);
  std::vector<double> boundaries;
  for (const std::size_t edge : best_partition(PartitionCost(cells.moments()), std::size_t{1} << bits)) {
    boundaries.push_back(cells.edges()[edge]);
  }
  Division division = divide_at(cells, std::move(boundaries));
  if (options.polish) division = polish(cells, std::move(division));
  FewBitTable table;
  double weight = 0;
  for (const Moments& part : division.parts) {
    table.levels.push_back(part.mean);
    weight += part.weight;
  }
  table.boundaries = std::move(division.boundaries);
  table.even = problem.even;
  table.error = division.error;
  table.rms = std::sqrt(table.error / weight);
  return table;
}

}  // namespace bitloom::nn
