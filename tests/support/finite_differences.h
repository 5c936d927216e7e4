// Gradients of a float net's parameters beside differences of its loss.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "core/random.h"
#include "nn/engine.h"
#include "nn/parameter.h"

namespace bitloom::test {

struct Differences {
  std::vector<double> found, expected;  // central differences; gradients
};

// Differences, in f64, of the steepest element of each parameter that learns and of one at random, after a pass that left its
// gradients, which further ones may change. loss(): of a pass with the parameters' current values.
inline Differences differences(nn::Engine& engine, const std::vector<nn::Parameter*>& parameters,
                               const std::function<double()>& loss) {
  constexpr double step = 1e-5;
  std::vector<std::vector<double>> gradients;
  for (const nn::Parameter* each : parameters) gradients.push_back(engine.to_host<double>(each->gradient));
  Differences differences;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    nn::Parameter* parameter = parameters[p];
    if (parameter->is_frozen) continue;
    std::vector<double> values = engine.to_host<double>(parameter->value);
    const std::vector<double>& gradient = gradients[p];
    const auto steepest =
        std::max_element(gradient.begin(), gradient.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
    const std::size_t other = Random(1, Stream::test, values.size()).below(static_cast<std::uint32_t>(values.size()));
    for (const std::size_t i : {static_cast<std::size_t>(steepest - gradient.begin()), other}) {
      const double middle = values[i];
      const auto loss_at = [&](double value) {
        values[i] = value;
        engine.write(parameter->value, std::as_bytes(std::span(values)));
        return loss();
      };
      const double above = loss_at(middle + step);
      const double below = loss_at(middle - step);
      loss_at(middle);
      differences.found.push_back((above - below) / (2 * step));
      differences.expected.push_back(gradient[i]);
    }
  }
  return differences;
}

}  // namespace bitloom::test
