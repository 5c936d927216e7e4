#include "tests/cases/gradient.h"

#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>

#include "tests/cases/run.h"
#include "tests/support/compare.h"

namespace bitloom::test {
namespace {

// The sum of all outputs, weighted with their upstream gradients.
double objective(const OpCase& the_case, nn::Engine& engine) {
  const Outcome outcome = run(the_case, engine, DType::f64, {.backward = false});
  double sum = 0;
  for (const Slot& upstream : the_case.upstream) {
    const std::vector<double>& y = outcome.numbers.at(upstream.name.substr(1));
    for (std::size_t i = 0; i < y.size(); ++i) sum += upstream.numbers[i] * y[i];
  }
  return sum;
}

// The derivative of objective() along a direction in one input, by differences of fourth order: their error is below what
// rounding of the objective makes of it.
double difference(const OpCase& the_case, nn::Engine& engine, std::size_t input, std::span<const double> direction) {
  constexpr double step = 1e-4;
  const auto at = [&](double distance) {
    OpCase moved = the_case;
    std::vector<double>& numbers = moved.inputs[input].numbers;
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] += distance * direction[i];
    return objective(moved, engine);
  };
  const double slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step);
  return std::fabs(slope) < 1e-9 ? 0 : slope;  // rounding errors of a derivative of 0
}

std::size_t find(const std::vector<Slot>& slots, const std::string& name) {
  const auto found = std::ranges::find(slots, name, &Slot::name);
  if (found == slots.end()) throw std::logic_error("no slot named " + name);
  return static_cast<std::size_t>(found - slots.begin());
}

// Some elements of a tensor of n: all, or 12 that are spread over it.
std::vector<std::size_t> some_elements(std::size_t n) {
  std::vector<std::size_t> elements;
  const std::size_t count = n <= 24 ? n : 12;
  for (std::size_t i = 0; i < count; ++i) elements.push_back(n <= 24 ? i : (i * 0x9E3779B1U + i) % n);
  return elements;
}

}  // namespace

std::string check_gradients(const OpCase& the_case, nn::Engine& engine, double limit) {
  const Outcome outcome = run(the_case, engine, DType::f64);
  if (!outcome.problem.empty()) return outcome.problem;
  for (const Slot& slot : the_case.gradients) {
    const std::size_t input = find(the_case.inputs, slot.name.substr(1));
    std::vector<double> gradient = outcome.numbers.at(slot.name);
    if (slot.adds) {
      for (std::size_t i = 0; i < gradient.size(); ++i) gradient[i] -= slot.numbers[i];
    }
    if (gradient.size() != the_case.inputs[input].numbers.size()) return slot.name + ": another size than what it belongs to";
    if (gradient.empty()) continue;
    std::vector<double> actual;
    std::vector<double> expected;
    for (const std::size_t element : some_elements(gradient.size())) {
      std::vector<double> direction(gradient.size());
      direction[element] = 1;
      actual.push_back(gradient[element]);
      expected.push_back(difference(the_case, engine, input, direction));
    }
    std::string problem = compare(actual, expected, limit);
    for (const std::uint64_t seed : {901U, 902U}) {
      if (!problem.empty()) break;
      // A direction of length 1, so that no element moves far.
      std::vector<double> direction = normal_numbers(gradient.size(), seed);
      double squares = 0;
      for (const double x : direction) squares += x * x;
      double along = 0;
      double squares_of_gradient = 0;
      for (std::size_t i = 0; i < direction.size(); ++i) {
        direction[i] /= std::sqrt(squares);
        along += direction[i] * gradient[i];
        squares_of_gradient += gradient[i] * gradient[i];
      }
      const double error = std::fabs(along - difference(the_case, engine, input, direction));
      const double length = std::sqrt(squares_of_gradient);
      if (!(error < limit * std::max(length, 1e-3))) {
        problem = fmt::format("along a direction the error is {:.3g} of a gradient of length {:.3g}", error, length);
      }
    }
    if (!problem.empty()) return slot.name + ": " + problem;
  }
  return "";
}

}  // namespace bitloom::test
