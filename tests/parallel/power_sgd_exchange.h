// PowerSGD over the processes of a test, and the options that tests of it choose.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "core/random.h"
#include "mpi/float_collectives.h"
#include "tests/support/mpi.h"
#include "train/parallel/power_sgd.h"

namespace bitloom::test {

// Both orientations, and what is sent as it is in between.
inline std::vector<train::PowerSgdShape> usual_shapes(std::size_t rank = 3) {
  return {{"wide", 12, 40, rank}, {"vector", 1, 33, 0}, {"tall", 30, 8, rank}, {"small", 3, 4, 0}};
}

// The gradient of a tensor that a rank has in a step.
inline std::vector<float> gradient_of(int rank, std::size_t tensor, std::uint64_t step, std::size_t size) {
  Random random(1000 * step + 10 * static_cast<std::uint64_t>(rank) + tensor, Stream::test);
  std::vector<float> values(size);
  for (float& x : values) x = static_cast<float>(0.1 * random.normal());
  return values;
}

using Matrices = std::vector<std::vector<double>>;

// Exchange among several processes of the gradients that gradient_of() gives them, or of others.
struct Exchange {
  explicit Exchange(std::vector<train::PowerSgdShape> all, const train::PowerSgdOptions& options = {},
                    mpi::Comm& group = world())
      : comm(group), shapes(all), power_sgd(engine, group, std::move(all), options) {}

  // This rank's gradients of a step.
  void draw(std::uint64_t step, int rank) {
    gradients.clear();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::size_t size = shapes[i].rows * shapes[i].columns;
      gradients.push_back(engine.from(std::span<const float>(gradient_of(rank, i, step, size)), {size}, nn::Use::gradients));
    }
  }
  train::PowerSgdReport step(std::uint64_t number) {
    draw(number, comm.rank());
    return power_sgd.exchange(gradients);
  }
  // Sums of the gradients now, in double precision, and of the error buffers: the same on all ranks.
  Matrices sums_of_gradients() {
    Matrices sums;
    for (const nn::Tensor& gradient : gradients) {
      sums.emplace_back(gradient.as<float>().begin(), gradient.as<float>().end());
      mpi::sum_in_order(comm, std::span(sums.back()));
    }
    return sums;
  }
  // Sums for the matrices that go by factors; empty for others.
  Matrices sums_of_errors() {
    Matrices sums(shapes.size());
    const train::PowerSgdState state = power_sgd.state();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const std::string name = "power_sgd.error." + shapes[i].name;
      const auto found = std::ranges::find(state, name, &train::PowerSgdState::value_type::first);
      if (found != state.end()) sums[i].assign(found->second.as<float>().begin(), found->second.as<float>().end());
    }
    return sums;
  }
  std::vector<double> result(std::size_t i) const { return {gradients[i].as<float>().begin(), gradients[i].as<float>().end()}; }

  nn::Engine engine;
  mpi::Comm& comm;
  std::vector<train::PowerSgdShape> shapes;
  train::PowerSgd power_sgd;
  std::vector<nn::Tensor> gradients;
};

// Largest difference relative to the largest number of b; NaN if there is any, and infinity for other sizes.
inline double difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  double most = 1e-30;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);
    most = std::max(most, std::abs(b[i]));
  }
  return largest / most;
}

inline std::vector<double> plus(std::vector<double> a, const std::vector<double>& b, double factor = 1) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += factor * b[i];
  return a;
}

inline double squares_of(const Matrices& matrices) {
  double sum = 0;
  for (const std::vector<double>& matrix : matrices)
    sum += std::inner_product(matrix.begin(), matrix.end(), matrix.begin(), 0.0);
  return sum;
}

inline train::PowerSgdOptions warm() {
  train::PowerSgdOptions options;
  options.warm_start = true;
  return options;
}

inline train::PowerSgdOptions narrow_messages() {
  train::PowerSgdOptions options;
  options.messages = train::FloatFormat::f1_6_9;
  return options;
}

inline train::PowerSgdOptions all_narrow() {
  train::PowerSgdOptions options = narrow_messages();
  options.error_buffers = train::FloatFormat::f1_6_9;
  return options;
}

}  // namespace bitloom::test
