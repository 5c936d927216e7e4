#include "nn/moments.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "nn/activation.h"
#include "nn/few_bit.h"
#include "nn/few_bit_cells.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::nn;
using namespace bitloom::test;

TEST_CASE("moments of polynomials are exact", "[moments]") {
  // f = x^3 under w = 3 x^2 + 1 on [0, 2]: W = 10, FW = 32 + 4 = 36, F2 = 3 * 2^9 / 9 + 2^7 / 7.
  const Moments moments = integrate([](double x) { return x * x * x; }, [](double x) { return 3 * x * x + 1; }, 0, 2);
  CHECK(moments.weight == Catch::Approx(10).epsilon(1e-14));
  CHECK(moments.mean == Catch::Approx(3.6).epsilon(1e-14));
  CHECK(moments.scatter == Catch::Approx(512.0 / 3 + 128.0 / 7 - 10 * 3.6 * 3.6).epsilon(1e-13));
}

TEST_CASE("integrals of derivatives are differences of the functions", "[moments]") {
  for (const Activation& activation : activations()) {
    for (const double low : {-10.0, -3.3, 0.0, 1.1}) {
      for (const double high : {0.0, 1.7, 10.0}) {
        if (low >= high || (low < 0 && high > 0 && !activation.kinks.empty())) continue;
        const Moments moments = integrate(activation.derivative, uniform_weight(), low, high);
        CAPTURE(activation.name, low, high);
        CHECK(std::abs(moments.weight - (high - low)) < 1e-12);
        CHECK(std::abs(moments.weight * moments.mean - (activation.value(high) - activation.value(low))) < 1e-12);
      }
    }
  }
}

TEST_CASE("quadrature finds a jump that it was not told of", "[moments]") {
  for (const double jump : {-0.4, 0.1, 0.77}) {
    const Moments moments = integrate([&](double x) { return x > jump ? 2.0 : -1.0; }, uniform_weight(), -1, 1);
    CAPTURE(jump);
    CHECK(std::abs(2 * moments.mean - (2 * (1 - jump) - (1 + jump))) < 1e-6);
    CHECK(std::abs(moments.scatter - 9 * (1 - jump) * (1 + jump) / 2) < 1e-6);
  }
}

TEST_CASE("squares of derivatives integrate to their closed forms", "[moments]") {
  const auto square = [](const char* name, double low, double high) {
    const Moments moments = integrate(find_activation(name).derivative, uniform_weight(), low, high);
    return moments.scatter + moments.weight * moments.mean * moments.mean;
  };
  // sech^4 has the antiderivative tanh - tanh^3 / 3; sigmoid^2 has softplus - sigmoid.
  const double t = std::tanh(3.0), u = std::tanh(-1.0);
  CHECK(std::abs(square("tanh", -1, 3) - (t - t * t * t / 3 - u + u * u * u / 3)) < 1e-12);
  const auto antiderivative = [](double x) {
    return find_activation("softplus").value(x) - find_activation("sigmoid").value(x);
  };
  CHECK(std::abs(square("softplus", -10, 10) - (antiderivative(10) - antiderivative(-10))) < 1e-12);
}

TEST_CASE("the normal weight integrates to one and has its variance", "[moments]") {
  const Moments moments = integrate([](double x) { return x; }, normal_weight(0.5, 2), -30, 31);
  CHECK(std::abs(moments.weight - 1) < 1e-12);
  CHECK(std::abs(moments.mean - 0.5) < 1e-12);
  CHECK(std::abs(moments.scatter - 4) < 1e-11);
  CHECK(has(message_of(ErrorKind::usage, [] { normal_weight(0, 0); }), "deviation 0"));
}

TEST_CASE("merged moments are those of the whole, whatever the weights", "[moments]") {
  const auto f = [](double x) { return std::sin(3 * x); };
  const auto w = [](double x) { return x * x; };
  const Moments whole = integrate(f, w, -1, 2), merged = merge(integrate(f, w, -1, 0.3), integrate(f, w, 0.3, 2));
  CHECK(merged.weight == Catch::Approx(whole.weight).epsilon(1e-13));
  CHECK(merged.mean == Catch::Approx(whole.mean).epsilon(1e-13));
  CHECK(merged.scatter == Catch::Approx(whole.scatter).epsilon(1e-13));
  const Moments none = merge({0, 2, 0}, {0, 4, 0});
  CHECK(none.weight == 0);
  CHECK(none.mean == 3);
  CHECK(merge({0, 100, 0}, {2, 4, 1}).mean == 4);
}

TEST_CASE("quadrature ends for functions that are rough everywhere or not finite", "[moments]") {
  int calls = 0;
  const auto rough = [&](double x) {
    ++calls;
    return std::fmod(std::abs(1e9 * std::sin(1e9 * x)), 1.0);
  };
  const Moments moments = integrate(rough, uniform_weight(), 0, 1);
  CHECK(calls < 200000);
  CHECK(moments.mean == Catch::Approx(0.5).margin(0.2));
  CHECK_FALSE(std::isfinite(integrate([](double) { return std::nan(""); }, uniform_weight(), 0, 1).mean));
}

TEST_CASE("cells put edges on kinks and integrate over any interval", "[moments]") {
  FewBitProblem problem = few_bit_problem(find_activation("selu"), normal_weight(), -2, 3);
  problem.kinks = {0, 1.001, 2.95, 2.9999999, -2, 77};
  const Cells cells(problem, 50);
  const auto& edges = cells.edges();
  REQUIRE(std::is_sorted(edges.begin(), edges.end()));
  CHECK(std::adjacent_find(edges.begin(), edges.end()) == edges.end());
  CHECK(cells.moments().size() + 1 == edges.size());
  CHECK(edges.front() == -2);
  CHECK(edges.back() == 3);
  for (const double kink : {0.0, 1.001, 2.95, 2.9999999}) CHECK(std::count(edges.begin(), edges.end(), kink) == 1);
  for (const auto& [from, to] : std::vector<std::pair<double, double>>{
           {-2, 3}, {-2, -1.97}, {-1.96, -1.95}, {-1.9, -1.8}, {-1.93, 0}, {-0.1, 0.07}, {0.33, 2.71}, {2.97, 3}}) {
    CAPTURE(from, to);
    const auto plainly = [&](double a, double b) { return integrate(problem.derivative, problem.weight, a, b); };
    const Moments fast = cells.between(from, to);
    const Moments plain = from < 0 && to > 0 ? merge(plainly(from, 0), plainly(0, to)) : plainly(from, to);
    CHECK(fast.weight == Catch::Approx(plain.weight).epsilon(1e-12));
    CHECK(fast.mean == Catch::Approx(plain.mean).epsilon(1e-12));
    CHECK(fast.scatter == Catch::Approx(plain.scatter).epsilon(1e-10).margin(1e-14));
  }
}
