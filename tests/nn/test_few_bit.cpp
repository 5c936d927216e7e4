#include "nn/few_bit.h"

#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "nn/moments.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::nn;
using namespace bitloom::test;

namespace {

constexpr FewBitOptions quick{.points = 400, .polish = true};
constexpr FewBitOptions grid_only{.points = 400, .polish = false};

FewBitProblem uniform_problem(const char* name, double low = -10, double high = 10, bool fold = true) {
  return few_bit_problem(find_activation(name), uniform_weight(), low, high, fold);
}

// The error of a table over an interval of signed x, by quadrature of the squared difference between its boundaries.
double measured_error(const Activation& activation, const StepFunction& steps, const std::function<double(double)>& weight,
                      double low, double high) {
  std::vector<double> ends{low};
  for (const double s : unfolded(steps).boundaries) {
    if (s > low && s < high) ends.push_back(s);
  }
  ends.push_back(high);
  double error = 0;
  for (std::size_t i = 0; i + 1 < ends.size(); ++i) {
    const double level = steps(0.5 * (ends[i] + ends[i + 1]));
    const Moments moments =
        integrate([&](double x) { return std::pow(activation.derivative(x) - level, 2); }, weight, ends[i], ends[i + 1]);
    error += moments.weight * moments.mean;
  }
  return error;
}

struct Row {
  const char* name;
  double errors[4];
};

// Table 1 of Novikov et al. 2022: the squared L2 error on [-10, 10] at 1, 2, 3 and 4 bits.
constexpr Row table1[] = {{"gelu", {0.1410, 0.0406, 0.0119, 0.0031}},    {"silu", {0.2150, 0.0479, 0.0170, 0.0045}},
                          {"sigmoid", {0.0181, 0.0038, 0.0009, 0.0002}}, {"tanh", {0.1584, 0.0319, 0.0073, 0.0017}},
                          {"selu", {0.2554, 0.1010, 0.0184, 0.0039}},    {"softplus", {0.2902, 0.0541, 0.0121, 0.0029}}};

}  // namespace

TEST_CASE("table 1 of the few-bit paper, all 24 cells", "[few_bit]") {
  for (const Row& row : table1) {
    for (unsigned bits = 1; bits <= 4; ++bits) {
      const FewBitTable table = fit_few_bit(uniform_problem(row.name), bits, quick);
      CAPTURE(row.name, bits, table.error, table.boundaries);
      CHECK(std::abs(table.error - row.errors[bits - 1]) <= 1e-4);
      CHECK(table.error ==
            Catch::Approx(measured_error(find_activation(row.name), table, uniform_weight(), -10, 10)).epsilon(1e-9));
      CHECK(table.rms == Catch::Approx(std::sqrt(table.error / 20)));
      CHECK(table.levels.size() == std::size_t{1} << bits);
    }
  }
}

TEST_CASE("relu takes one bit and no error", "[few_bit]") {
  for (const bool polish : {false, true}) {
    const FewBitTable table = fit_few_bit(uniform_problem("relu"), 1, {.points = 37, .polish = polish});
    CHECK(table.error == 0);
    CHECK(table.boundaries == std::vector<double>{0});
    CHECK(table.levels == std::vector<double>{0, 1});
  }
  CHECK(fit_few_bit(uniform_problem("relu"), 3, quick).error == 0);
}

TEST_CASE("the error does not depend on the grid once it is polished", "[few_bit]") {
  for (const char* name : {"gelu", "tanh", "selu"}) {
    for (unsigned bits = 1; bits <= 4; ++bits) {
      const double coarse = fit_few_bit(uniform_problem(name), bits, quick).error;
      const double fine = fit_few_bit(uniform_problem(name), bits, {.points = 977, .polish = true}).error;
      CAPTURE(name, bits);
      CHECK(coarse == Catch::Approx(fine).epsilon(1e-9));
    }
  }
}

TEST_CASE("polishing makes tables better than the grid's, and more bits do", "[few_bit]") {
  for (const Activation& activation : activations()) {
    double fewer = std::numeric_limits<double>::infinity();
    for (unsigned bits = 1; bits <= 5; ++bits) {
      const FewBitTable polished = fit_few_bit(uniform_problem(activation.name), bits, quick);
      const FewBitTable rough = fit_few_bit(uniform_problem(activation.name), bits, grid_only);
      CAPTURE(activation.name, bits);
      CHECK(polished.error <= rough.error);
      if (activation.kinks.empty() && bits > 1) CHECK(polished.error < rough.error);  // one bit: 0 is on the grid
      CHECK(polished.error <= fewer);
      fewer = polished.error;
    }
  }
}

TEST_CASE("the sign of x is dropped where the derivative is even, and only there", "[few_bit]") {
  for (const Activation& activation : activations()) {
    const FewBitTable folded = fit_few_bit(uniform_problem(activation.name), 2, quick);
    const FewBitTable signed_table = fit_few_bit(uniform_problem(activation.name, -10, 10, false), 2, quick);
    CAPTURE(activation.name, folded.error, signed_table.error);
    CHECK(folded.even == (activation.symmetry == Symmetry::even));
    CHECK_FALSE(signed_table.even);
    if (!folded.even) {
      CHECK(folded.boundaries == signed_table.boundaries);
      continue;
    }
    // Four levels on one side are seven on the axis: more than four, fewer than eight.
    CHECK(folded.error < 0.5 * signed_table.error);
    CHECK(folded.error > fit_few_bit(uniform_problem(activation.name, -10, 10, false), 3, quick).error);
    CHECK(folded.boundaries.front() > 0);
    for (const double x : {0.0, 0.3, 1.1, 2.7, 9.0}) {
      CHECK(folded(x) == folded(-x));
      CHECK(unfolded(folded)(x) == folded(x));
      CHECK(unfolded(folded)(-x) == folded(x));
    }
  }
}

TEST_CASE("intervals that are not symmetric fold too", "[few_bit]") {
  const Activation& tanh = find_activation("tanh");
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{{-1, 4}, {-4, 1}, {0.5, 3}, {-3, -0.5}, {0, 2}}) {
    const FewBitTable table = fit_few_bit(uniform_problem("tanh", low, high), 2, quick);
    CAPTURE(low, high, table.boundaries);
    CHECK(table.error == Catch::Approx(measured_error(tanh, table, uniform_weight(), low, high)).epsilon(1e-9));
    CHECK(table.rms == Catch::Approx(std::sqrt(table.error / (high - low))));
    CHECK(table.error <= fit_few_bit(uniform_problem("tanh", low, high, false), 2, quick).error * (1 + 1e-9));
  }
  // A problem on one side only is the same on either.
  CHECK(fit_few_bit(uniform_problem("tanh", 0.5, 3), 2, quick).levels ==
        fit_few_bit(uniform_problem("tanh", -3, -0.5), 2, quick).levels);
}

TEST_CASE("a normal weight puts the levels where inputs are", "[few_bit]") {
  for (const char* name : {"gelu", "sigmoid", "selu"}) {
    const Activation& activation = find_activation(name);
    const FewBitProblem problem = few_bit_problem(activation, normal_weight(), -10, 10);
    const FewBitTable normal = fit_few_bit(problem, 3, quick), uniform = fit_few_bit(uniform_problem(name), 3, quick);
    CAPTURE(name, normal.boundaries, normal.error);
    CHECK(normal.error == Catch::Approx(measured_error(activation, normal, normal_weight(), -10, 10)).epsilon(1e-9));
    CHECK(normal.rms == Catch::Approx(std::sqrt(normal.error)));  // the density integrates to 1
    // Each is best under its own weight.
    CHECK(normal.error < 0.9 * measured_error(activation, uniform, normal_weight(), -10, 10));
    CHECK(uniform.error < 0.9 * measured_error(activation, normal, uniform_weight(), -10, 10));
    for (const double s : normal.boundaries) CHECK(std::abs(s) < 4);
  }
}

TEST_CASE("a wide interval does not make tables coarse", "[few_bit]") {
  const auto normal = [](double low, double high) {
    return fit_few_bit(few_bit_problem(find_activation("gelu"), normal_weight(), low, high), 3, quick);
  };
  const FewBitTable narrow = normal(-12, 12), wide = normal(-9000, 10000);
  CAPTURE(narrow.boundaries, wide.boundaries);
  CHECK(wide.error == Catch::Approx(narrow.error).epsilon(1e-9));
  // Uniform weight: the first and last level take the tails, where the derivative is flat, and nothing is left of their error.
  CHECK(fit_few_bit(uniform_problem("gelu", -10000, 10000), 4, quick).error ==
        Catch::Approx(fit_few_bit(uniform_problem("gelu", -1000, 1000), 4, quick).error).epsilon(1e-3));
}

TEST_CASE("any function and weight can be given", "[few_bit]") {
  // A straight line under a uniform weight: K equal steps, error slope^2 width^3 / (12 K^2).
  FewBitProblem problem{[](double x) { return 3 * x; }, uniform_weight(), -1, 3, {}, false};
  const FewBitTable line = fit_few_bit(problem, 2, {.points = 37, .polish = true});
  CHECK(line.error == Catch::Approx(9.0 * 64 / (12 * 16)).epsilon(1e-12));
  for (std::size_t i = 0; i < 3; ++i) CHECK(std::abs(line.boundaries[i] - static_cast<double>(i)) < 1e-8);
  // No weight in the middle, so no steps there either: one level for each end of it.
  problem.weight = [](double x) { return x < 0 || x > 2 ? 1.0 : 0.0; };
  problem.kinks = {0, 2};
  const FewBitTable gap = fit_few_bit(problem, 1, quick);
  CHECK(gap.error == Catch::Approx(2 * 9.0 / 12).epsilon(1e-12));
  CHECK(gap.levels[0] == Catch::Approx(-1.5));
  CHECK(gap.levels[1] == Catch::Approx(7.5));
  CHECK(gap.boundaries[0] >= 0);
  CHECK(gap.boundaries[0] <= 2);
}

TEST_CASE("an x on a boundary belongs to the interval on its left", "[few_bit]") {
  StepFunction steps{{-1, 0.5, 2}, {10, 20, 30, 40}, false};
  const double above = std::nextafter(0.5, 1), infinity = std::numeric_limits<double>::infinity();
  CHECK(steps.index(-infinity) == 0);
  CHECK(steps.index(-1) == 0);
  CHECK(steps.index(0.5) == 1);
  CHECK(steps.index(above) == 2);
  CHECK(steps.index(infinity) == 3);
  CHECK(steps.index(std::nan("")) == 0);
  CHECK(steps(2) == 30);
  steps = {{0.5, 2}, {10, 20, 30}, true};
  CHECK(steps.index(-0.5) == 0);
  CHECK(steps.index(-above) == 1);
  CHECK(steps.index(-infinity) == 2);
  CHECK(unfolded(steps).boundaries == std::vector<double>{-2, -0.5, 0.5, 2});
  CHECK(unfolded(steps).levels == std::vector<double>{30, 20, 10, 20, 30});
}

TEST_CASE("problems that are none are refused", "[few_bit]") {
  const auto message = [](auto change, unsigned bits = 2, FewBitOptions options = quick) {
    FewBitProblem problem = uniform_problem("gelu");
    change(problem);
    return message_of(ErrorKind::usage, [&] { fit_few_bit(problem, bits, options); });
  };
  const auto same = [](FewBitProblem&) {};
  CHECK(message(same) == "no error");
  CHECK(message(same, 0) == "bits: 0, expected 1 to 8");
  CHECK(message(same, 9) == "bits: 9, expected 1 to 8");
  CHECK(message(same, 3, {.points = 7, .polish = true}) == "points: 7, expected at least 8, one per level of 3 bits");
  CHECK(message(same, 3, {.points = 8, .polish = true}) == "no error");
  CHECK(has(message([](FewBitProblem& p) { p.derivative = nullptr; }), "derivative: missing"));
  CHECK(has(message([](FewBitProblem& p) { p.weight = nullptr; }), "weight: missing"));
  CHECK(has(message([](FewBitProblem& p) { p.high = p.low; }), "interval: from -10 to -10"));
  CHECK(has(message([](FewBitProblem& p) { p.high = std::nan(""); }), "interval: from -10 to nan"));
  CHECK(has(message([](FewBitProblem& p) { p.even = true; }), "expected at least 0"));
  CHECK(has(message([](FewBitProblem& p) { p.weight = [](double) { return 0.0; }; }), "weight: zero from -10 to 10"));
  CHECK(has(message([](FewBitProblem& p) { p.weight = [](double x) { return x; }; }), "weight: negative between -10"));
  CHECK(has(message([](FewBitProblem& p) { p.derivative = [](double x) { return 1 / (x > 3 ? 0.0 : 1.0); }; }),
            "derivative or weight: not finite between"));
  CHECK(has(message_of(ErrorKind::usage, [] { uniform_problem("gelu", 3, 3); }), "interval: from 3 to 3"));
}
