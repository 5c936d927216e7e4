// The two halves of fit_few_bit(): the dynamic programme, and polishing.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "core/random.h"
#include "nn/few_bit_partition.h"
#include "nn/few_bit_polish.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::nn;

namespace {

// The error of one constant on some cells, from sums over them: not the formula of the code under test.
double cost_of(const std::vector<Moments>& cells, std::size_t begin, std::size_t end) {
  double weight = 0, product = 0, error = 0;
  for (std::size_t i = begin; i < end; ++i) {
    weight += cells[i].weight;
    product += cells[i].weight * cells[i].mean;
  }
  if (weight == 0) return 0;
  for (std::size_t i = begin; i < end; ++i) {
    const double distance = cells[i].mean - product / weight;
    error += cells[i].scatter + cells[i].weight * distance * distance;
  }
  return error;
}

double total_cost(const std::vector<Moments>& cells, const std::vector<std::size_t>& edges) {
  double error = 0;
  std::size_t begin = 0;
  for (const std::size_t edge : edges) {
    error += cost_of(cells, begin, edge);
    begin = edge;
  }
  return error + cost_of(cells, begin, cells.size());
}

// By trying every choice of edges.
double least_cost(const std::vector<Moments>& cells, std::size_t begin, std::size_t parts) {
  if (parts == 1) return cost_of(cells, begin, cells.size());
  double least = std::numeric_limits<double>::infinity();
  for (std::size_t edge = begin + 1; edge + parts - 1 <= cells.size(); ++edge) {
    least = std::min(least, cost_of(cells, begin, edge) + least_cost(cells, edge, parts - 1));
  }
  return least;
}

std::vector<Moments> random_cells(std::size_t count, std::uint64_t number) {
  Random random(7, Stream::test, number);
  std::vector<Moments> cells;
  for (std::size_t i = 0; i < count; ++i) {
    // Some repeat the one before (as on a plateau), some have no weight.
    if (i > 0 && random.below(4) == 0) {
      cells.push_back(cells.back());
      continue;
    }
    const double weight = random.below(6) == 0 ? 0 : random.uniform();
    cells.push_back({weight, random.normal(), weight * 0.1 * random.uniform()});
  }
  return cells;
}

FewBitProblem gelu_problem(bool normal = false) {
  return few_bit_problem(find_activation("gelu"), normal ? normal_weight() : uniform_weight(), -10, 10);
}

std::vector<double> dynamic_boundaries(const Cells& cells, std::size_t levels) {
  std::vector<double> boundaries;
  for (const std::size_t edge : best_partition(PartitionCost(cells.moments()), levels)) {
    boundaries.push_back(cells.edges()[edge]);
  }
  return boundaries;
}

}  // namespace

TEST_CASE("the dynamic programme finds what trying every division finds", "[few_bit]") {
  for (std::size_t count = 1; count <= 12; ++count) {
    for (std::size_t parts = 1; parts <= count; ++parts) {
      for (std::uint64_t number = 0; number < 10; ++number) {
        const std::vector<Moments> cells = random_cells(count, 1000 * count + number);
        const std::vector<std::size_t> edges = best_partition(PartitionCost(cells), parts);
        CAPTURE(count, parts, number, edges);
        REQUIRE(edges.size() + 1 == parts);
        std::size_t before = 0;
        for (const std::size_t edge : edges) {
          REQUIRE(edge > before);
          before = edge;
        }
        REQUIRE(before < count);
        CHECK(std::abs(total_cost(cells, edges) - least_cost(cells, 0, parts)) < 1e-12);
      }
    }
  }
}

TEST_CASE("the dynamic programme on a derivative finds what trying every division finds", "[few_bit]") {
  for (const char* name : {"gelu", "selu", "tanh", "relu"}) {
    const Cells cells(few_bit_problem(find_activation(name), uniform_weight(), -6, 6, false), 24);
    for (const std::size_t levels : {2U, 3U, 4U}) {
      CAPTURE(name, levels);
      const auto edges = best_partition(PartitionCost(cells.moments()), levels);
      CHECK(std::abs(total_cost(cells.moments(), edges) - least_cost(cells.moments(), 0, levels)) < 1e-12);
    }
  }
}

TEST_CASE("pruning and division in halves change nothing: all of (7) in a table gives the same error", "[few_bit]") {
  const Cells cells(gelu_problem(), 300);
  const PartitionCost cost(cells.moments());
  constexpr std::size_t most = 16;
  std::vector<std::vector<double>> table(most + 1,
                                         std::vector<double>(cost.cells() + 1, std::numeric_limits<double>::infinity()));
  for (std::size_t i = 1; i <= cost.cells(); ++i) table[1][i] = cost(0, i);
  for (std::size_t k = 2; k <= most; ++k) {
    for (std::size_t i = k; i <= cost.cells(); ++i) {
      for (std::size_t j = k - 1; j < i; ++j) table[k][i] = std::min(table[k][i], table[k - 1][j] + cost(j, i));
    }
  }
  for (std::size_t k = 1; k <= most; ++k) {
    CAPTURE(k);
    CHECK(std::abs(total_cost(cells.moments(), best_partition(cost, k)) - table[k][cost.cells()]) < 1e-12);
  }
}

TEST_CASE("levels are the best constants: moving any of them adds its weight times the square", "[few_bit]") {
  const Cells cells(gelu_problem(), 100);
  const Division division = divide_at(cells, {-1, 0, 1});
  for (std::size_t i = 0; i < division.parts.size(); ++i) {
    const double from = i == 0 ? -10 : division.boundaries[i - 1], to = i == 3 ? 10 : division.boundaries[i];
    const auto error = [&](double level) {
      const auto difference = [&](double x) { return std::pow(find_activation("gelu").derivative(x) - level, 2); };
      const Moments moments = integrate(difference, uniform_weight(), from, to);
      return moments.weight * moments.mean;
    };
    CAPTURE(i);
    CHECK(error(division.parts[i].mean) == Catch::Approx(division.parts[i].scatter).epsilon(1e-11));
    CHECK(error(division.parts[i].mean + 0.1) == Catch::Approx(division.parts[i].scatter + 0.01 * (to - from)).epsilon(1e-11));
  }
}

TEST_CASE("polishing never makes it worse, wherever it starts", "[few_bit]") {
  Random random(8, Stream::test);
  int better = 0, runs = 0;
  for (const Activation& activation : activations()) {
    for (const bool normal : {false, true}) {
      const auto weight = normal ? normal_weight(0, 2) : uniform_weight();
      const Cells cells(few_bit_problem(activation, weight, -10, 10), 100);
      for (int run = 0; run < 8; ++run) {
        const std::size_t levels = std::size_t{2} << random.below(4);
        std::vector<double> boundaries = dynamic_boundaries(cells, levels);
        if (run > 1) {
          const double span = cells.problem().high - cells.problem().low;
          for (double& s : boundaries) s = cells.problem().low + span * (0.001 + 0.998 * random.uniform());
          std::sort(boundaries.begin(), boundaries.end());
        }
        const Division start = divide_at(cells, boundaries), end = polish(cells, start);
        CAPTURE(activation.name, normal, levels, run, boundaries, end.boundaries);
        CHECK(end.error <= start.error);
        CHECK(end.error == divide_at(cells, end.boundaries).error);
        CHECK(std::is_sorted(end.boundaries.begin(), end.boundaries.end()));
        CHECK(end.boundaries.size() == boundaries.size());
        better += end.error < start.error ? 1 : 0;
        ++runs;
      }
    }
  }
  CHECK(better > runs / 2);
}

TEST_CASE("at polished boundaries the derivative is the mean of the levels beside them", "[few_bit]") {
  for (const char* name : {"gelu", "silu", "sigmoid", "tanh", "softplus", "gelu_tanh"}) {
    const Activation& activation = find_activation(name);
    const Cells cells(few_bit_problem(activation, uniform_weight(), -10, 10), 200);
    for (const std::size_t levels : {2U, 4U, 8U, 16U}) {
      const Division division = polish(cells, divide_at(cells, dynamic_boundaries(cells, levels)));
      for (std::size_t i = 0; i < division.boundaries.size(); ++i) {
        CAPTURE(name, levels, i, division.boundaries[i]);
        const double mean = 0.5 * (division.parts[i].mean + division.parts[i + 1].mean);
        CHECK(std::abs(activation.derivative(division.boundaries[i]) - mean) < 1e-8);
      }
    }
  }
}

TEST_CASE("a boundary stays on a jump that wants it, and leaves one that does not", "[few_bit]") {
  const Cells selu(few_bit_problem(find_activation("selu"), uniform_weight(), -10, 10), 100);
  CHECK(polish(selu, divide_at(selu, {-3, -1, 0})).boundaries.back() == 0);
  CHECK(polish(selu, divide_at(selu, {-3, -1, 0.3})).boundaries.back() == 0);  // it goes there, and stops

  // A small jump on a slope: with two levels the middle is better.
  FewBitProblem problem = few_bit_problem(find_activation("relu"), uniform_weight(), -10, 10);
  problem.derivative = [](double x) { return x + (x > -4 ? 0.1 : 0); };
  problem.kinks = {-4};
  const Cells cells(problem, 100);
  const Division division = polish(cells, divide_at(cells, {-4}));
  CHECK(std::abs(division.boundaries[0]) < 0.1);
  const double mean = 0.5 * (division.parts[0].mean + division.parts[1].mean);
  CHECK(std::abs(problem.derivative(division.boundaries[0]) - mean) < 1e-8);
}
