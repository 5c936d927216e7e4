#include "nn/few_bit_polish.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace bitloom::nn {
namespace {

constexpr int most_steps = 500;
constexpr int most_step_halvings = 40;

// The conditions of a minimum at the inner boundaries, linearised:
//   residual r_i = 2 f'(s_i) - y_i - y_(i-1) = 0, the first factor of (5),
// and its derivatives by s_(i-1), s_i, s_(i+1), from
//   dy_i/ds_i = w(s_i) (y_i - f'(s_i)) / W_i,   dy_i/ds_(i+1) = w(s_(i+1)) (f'(s_(i+1)) - y_i) / W_i.
struct Condition {
  double residual = 0, below = 0, at = 1, above = 0;
  double downhill = 0;  // a step against the gradient, of the length that f' alone suggests
};

double kink_near(const FewBitProblem& problem, double s) {
  const double near = 1e-12 * (problem.high - problem.low);
  for (const double kink : problem.kinks) {
    if (std::abs(s - kink) <= near) return kink;
  }
  return std::nan("");
}

// Where f' and w are read for boundary i: beside a kink, on the side to which the error falls; nothing if it falls to neither
// side, so that the boundary is where it should be.
std::optional<double> reading_place(const FewBitProblem& problem, const Division& division, std::size_t i) {
  const double s = division.boundaries[i];
  const double y_low = division.parts[i].mean, y_high = division.parts[i + 1].mean;
  const auto gradient = [&](double x) {
    return (2 * problem.derivative(x) - y_low - y_high) * (y_high - y_low) * problem.weight(x);
  };
  const double kink = kink_near(problem, s);
  if (std::isnan(kink)) return s;
  const double beside = 1e-9 * (problem.high - problem.low);
  if (gradient(kink + beside) < 0) return kink + beside;
  if (gradient(kink - beside) > 0) return kink - beside;
  return std::nullopt;
}

// f'' by differences that stay on one side of kinks.
double slope(const FewBitProblem& problem, double x) {
  const double step = 1e-6 * (problem.high - problem.low);
  double left = x - step, right = x + step;
  for (const double kink : problem.kinks) {
    if (left < kink && kink <= x) left = x;
    if (x < kink && kink < right) right = x;
  }
  return right > left ? (problem.derivative(right) - problem.derivative(left)) / (right - left) : 0;
}

std::vector<Condition> conditions(const FewBitProblem& problem, const Division& division) {
  const std::size_t count = division.boundaries.size();
  std::vector<Condition> rows(count);
  // w and f' at each boundary; w = 0 where it is not to move.
  std::vector<double> weight(count, 0), derivative(count, 0);
  for (std::size_t i = 0; i < count; ++i) {
    const Moments &low = division.parts[i], &high = division.parts[i + 1];
    const std::optional<double> place = reading_place(problem, division, i);
    if (!place || low.mean == high.mean || !(low.weight > 0) || !(high.weight > 0)) continue;
    weight[i] = problem.weight(*place);
    if (!(weight[i] > 0)) continue;
    derivative[i] = problem.derivative(*place);
    const double bend = slope(problem, *place);
    Condition& row = rows[i];
    row.residual = 2 * derivative[i] - low.mean - high.mean;
    row.at = 2 * bend - weight[i] * ((derivative[i] - low.mean) / low.weight + (high.mean - derivative[i]) / high.weight);
    const double rise = high.mean - low.mean;
    row.downhill = -std::copysign(row.residual / std::max(2 * std::abs(bend), 1e-6), row.residual * rise);
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (weight[i] == 0) continue;
    const Moments &low = division.parts[i], &high = division.parts[i + 1];
    if (i > 0) rows[i].below = -weight[i - 1] * (low.mean - derivative[i - 1]) / low.weight;
    if (i + 1 < count) rows[i].above = -weight[i + 1] * (derivative[i + 1] - high.mean) / high.weight;
  }
  return rows;
}

// Thomas' elimination; without pivoting, so the caller judges by what the step does.
std::vector<double> newton_step(const std::vector<Condition>& rows) {
  const std::size_t count = rows.size();
  std::vector<double> upper(count), step(count);
  for (std::size_t i = 0; i < count; ++i) {
    const Condition& row = rows[i];
    const double pivot = row.at - (i > 0 ? row.below * upper[i - 1] : 0);
    upper[i] = row.above / pivot;
    step[i] = (-row.residual - (i > 0 ? row.below * step[i - 1] : 0)) / pivot;
  }
  for (std::size_t i = count; i-- > 1;) step[i - 1] -= upper[i - 1] * step[i];
  return step;
}

std::vector<double> downhill_step(const std::vector<Condition>& rows) {
  std::vector<double> step;
  for (const Condition& row : rows) step.push_back(row.downhill);
  return step;
}

// s + share * step, stopped at kinks; nothing if boundaries would meet.
std::optional<std::vector<double>> moved(const FewBitProblem& problem, const std::vector<double>& s,
                                         const std::vector<double>& step, double share) {
  std::vector<double> result(s.size());
  double previous = problem.low;
  for (std::size_t i = 0; i < s.size(); ++i) {
    result[i] = s[i] + share * step[i];
    const double from_kink = kink_near(problem, s[i]);
    for (const double kink : problem.kinks) {
      if (kink != from_kink && (s[i] - kink) * (result[i] - kink) < 0) result[i] = kink;
    }
    if (!(result[i] > previous)) return std::nullopt;
    previous = result[i];
  }
  if (!(previous < problem.high)) return std::nullopt;
  return result;
}

double largest_residual(const std::vector<Condition>& rows) {
  double largest = 0;
  for (const Condition& row : rows) largest = std::max(largest, std::abs(row.residual));
  return largest;
}

// The first of step, step / 2, step / 4, ... that helps: less error, or, where the error is flat to its last digits, boundaries
// that fulfil their conditions better.
std::optional<Division> improved(const Cells& cells, const Division& now, const std::vector<double>& step, double residual,
                                 int halvings) {
  constexpr double flat = 1e-14;  // relative rounding error of the error
  double share = 1;
  for (int i = 0; i < halvings; ++i, share /= 2) {
    auto boundaries = moved(cells.problem(), now.boundaries, step, share);
    if (!boundaries || *boundaries == now.boundaries) continue;
    Division next = divide_at(cells, std::move(*boundaries));
    if (next.error < now.error * (1 - flat)) return next;
    if (next.error <= now.error * (1 + flat) && largest_residual(conditions(cells.problem(), next)) < 0.5 * residual)
      return next;
  }
  return std::nullopt;
}

}  // namespace

Division divide_at(const Cells& cells, std::vector<double> boundaries) {
  Division division;
  double from = cells.problem().low;
  for (std::size_t i = 0; i <= boundaries.size(); ++i) {
    const double to = i < boundaries.size() ? boundaries[i] : cells.problem().high;
    division.parts.push_back(cells.between(from, to));
    division.error += division.parts.back().scatter;
    from = to;
  }
  division.boundaries = std::move(boundaries);
  return division;
}

Division polish(const Cells& cells, Division start) {
  Division best = start;
  for (int i = 0; i < most_steps; ++i) {
    const std::vector<Condition> rows = conditions(cells.problem(), best);
    const double residual = largest_residual(rows);
    if (residual == 0) break;
    // Newton's method is not bound to go down: if neither it nor a short piece of it does, the gradient does.
    std::optional<Division> next = improved(cells, best, newton_step(rows), residual, 4);
    if (!next) next = improved(cells, best, downhill_step(rows), residual, most_step_halvings);
    if (!next) break;
    best = std::move(*next);
  }
  return best.error <= start.error ? best : start;
}

}  // namespace bitloom::nn
