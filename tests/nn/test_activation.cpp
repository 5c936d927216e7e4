#include "nn/activation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/message_of.h"

using namespace bitloom;
using namespace bitloom::nn;
using namespace bitloom::test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Known {
  const char* name;
  double x, value, derivative;
};

// Computed with mpmath in 60 and more digits.
const std::vector<Known> known{
    {"gelu", -12, -2.1317785344932148e-32, -2.5578956616748956e-31},
    {"gelu", -3, -0.0040496940948902836, -0.011945647204183927},
    {"gelu", -0.5, -0.15426876936299345, 0.13250487534383716},
    {"gelu", 0.25, 0.14967658142073093, 0.69537335488363603},
    {"gelu", 2, 1.9544997361036416, 1.0852318010781969},
    {"gelu_tanh", -12, -1.6359854493534811e-61, -5.2904033525225585e-60},
    {"gelu_tanh", -3, -0.0036373920817730188, -0.011584166630969726},
    {"gelu_tanh", -0.5, -0.15428599017485608, 0.13263009646535769},
    {"gelu_tanh", 2, 1.954597694087775, 1.0860992566236184},
    {"silu", -12, -7.3730095226576614e-5, -6.7585467613783386e-5},
    {"silu", -0.5, -0.18877033439907272, 0.26003881269734819},
    {"silu", 2, 1.7615941559557649, 1.0907842487848955},
    {"sigmoid", -12, 6.1441746022147178e-6, 6.1441368513331753e-6},
    {"sigmoid", 0.25, 0.5621765008857981, 0.24613408273759835},
    {"sigmoid", 9, 0.99987660542401377, 0.00012337934976484891},
    {"tanh", -12, -0.99999999992449731, 1.510053817597626e-10},
    {"tanh", -0.5, -0.46211715726000976, 0.78644773296592741},
    {"tanh", 9, 0.99999996954004097, 6.0919917123232292e-8},
    {"selu", -12, -1.7580885387116884, 1.0802135688412636e-5},
    {"selu", -0.5, -0.6917581878028714, 1.0663411530445055},
    {"selu", 2, 2.101401974710961, 1.0507009873554805},
    {"softplus", -12, 6.1441934777328054e-6, 6.1441746022147178e-6},
    {"softplus", 0.25, 0.82593941987884356, 0.5621765008857981},
    {"softplus", 9, 9.0001234021897233, 0.99987660542401377},
    {"relu", -3, 0, 0},
    {"relu", 0.25, 0.25, 1},
};

}  // namespace

TEST_CASE("activations and derivatives have twelve digits, in the tails too", "[activation]") {
  std::vector<std::string> seen;
  for (const Known& each : known) {
    CAPTURE(each.name, each.x);
    const Activation& activation = find_activation(each.name);
    CHECK(std::abs(activation.value(each.x) - each.value) <= 1e-12 * std::abs(each.value));
    CHECK(std::abs(activation.derivative(each.x) - each.derivative) <= 1e-12 * std::abs(each.derivative));
    if (seen.empty() || seen.back() != each.name) seen.emplace_back(each.name);
  }
  CHECK(seen == activation_names());
}

TEST_CASE("each derivative is that of its function", "[activation]") {
  for (const Activation& activation : activations()) {
    for (double x = -9.97; x < 10; x += 0.1) {  // never within a step of a kink
      constexpr double step = 1e-5;
      const double difference = (activation.value(x + step) - activation.value(x - step)) / (2 * step);
      CAPTURE(activation.name, x);
      CHECK(std::abs(activation.derivative(x) - difference) < 1e-8);
    }
  }
}

TEST_CASE("derivatives have the symmetries that the table names, and no other", "[activation]") {
  for (const Activation& activation : activations()) {
    double even = 0, half_turn = 0;
    for (double x = 0.05; x < 12; x += 0.1) {
      const double right = activation.derivative(x), left = activation.derivative(-x);
      even = std::max(even, std::abs(right - left));
      half_turn = std::max(half_turn, std::abs(right + left - 1));
    }
    CAPTURE(activation.name, even, half_turn);
    CHECK((even < 1e-14) == (activation.symmetry == Symmetry::even));
    CHECK((half_turn < 1e-14) == (activation.symmetry == Symmetry::half_turn));
  }
}

TEST_CASE("derivatives jump at the kinks that the table names, and nowhere else", "[activation]") {
  for (const Activation& activation : activations()) {
    for (int i = -40; i <= 40; ++i) {
      const double x = i / 4.0;
      const double jump = std::abs(activation.derivative(x + 1e-9) - activation.derivative(x));
      const bool kink = std::find(activation.kinks.begin(), activation.kinks.end(), x) != activation.kinks.end();
      CAPTURE(activation.name, x);
      CHECK((jump > 0.1) == kink);
      CHECK(std::abs(activation.derivative(x - 1e-9) - activation.derivative(x)) < 1e-8);  // the value of the left side
    }
  }
}

TEST_CASE("activations have their limits at infinities, and NaN stays NaN", "[activation]") {
  for (const Activation& activation : activations()) {
    CAPTURE(activation.name);
    for (const double far : {1e3, 1e6, 1e300, infinity}) {
      CAPTURE(far);
      CHECK(activation.value(far) == Catch::Approx(activation.value(40) * (activation.value(40) > 1.01 ? far / 40 : 1)));
      CHECK(activation.derivative(far) == Catch::Approx(activation.derivative(800)));
      CHECK(activation.value(-far) == Catch::Approx(activation.value(-800)));
      CHECK(activation.derivative(-far) == Catch::Approx(activation.derivative(-800)));
    }
    CHECK(std::isnan(activation.value(std::nan(""))));
  }
}

TEST_CASE("activations are found by name and alias", "[activation]") {
  for (const std::string& name : activation_names()) CHECK(find_activation(name).name == name);
  CHECK(std::string(find_activation("swish").name) == "silu");
  CHECK(message_of(ErrorKind::usage, [] { find_activation("gleu", "--function"); }) ==
        "--function: 'gleu'; did you mean 'gelu'?");
  CHECK(has(message_of(ErrorKind::usage, [] { find_activation(""); }), "known: gelu, gelu_tanh, silu"));
}

TEST_CASE("apply rounds the double result once, in place too", "[activation]") {
  const Activation& gelu = find_activation("gelu");
  std::vector<float> x{-3.5F, -0.1F, 0.0F, 0.7F, 8.0F}, y(5);
  apply(gelu, x, y);
  for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == static_cast<float>(gelu.value(x[i])));
  apply(gelu, x, x);
  CHECK(x == y);
  y.resize(4);
  CHECK(message_of(ErrorKind::usage, [&] { apply(gelu, x, y); }) == "y: 4 elements, expected 5, as many as x has");
}
