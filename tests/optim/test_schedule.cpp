#include "optim/schedule.h"

#include <cmath>

#include "tests/support/catch.h"

using namespace bitloom;

TEST_CASE("power multiplies, and equals the C library's to rounding", "[optim]") {
  CHECK(power(0.9, 0) == 1.0);
  CHECK(power(0.9, 1) == 0.9);
  CHECK(power(2.0, 62) == 0x1p62);
  CHECK(power(0.0, 0) == 1.0);
  for (const double base : {0.9, 0.999, 1.5}) {
    for (std::uint64_t exponent = 1; exponent < 400; exponent += 7) {
      const double expected = std::pow(base, static_cast<double>(exponent));
      CHECK(std::fabs(power(base, exponent) - expected) <= 1e-13 * expected);
    }
  }
  CHECK(power(0.5, 5000) == 0.0);
}

TEST_CASE("cos_pi is the cosine of pi x within a billionth", "[optim]") {
  CHECK(cos_pi(0) == 1.0);
  CHECK(cos_pi(1) == -1.0);
  for (int i = 0; i <= 1000; ++i) {
    const double x = i / 1000.0;
    CHECK(std::fabs(cos_pi(x) - std::cos(3.14159265358979323846 * x)) < 1e-9);
  }
}

TEST_CASE("cosine_decay falls from one to the floor and stays there", "[optim]") {
  CHECK(cosine_decay(-1, 0.1) == 1.0);
  CHECK(cosine_decay(0, 0.1) == 1.0);
  CHECK(cosine_decay(std::nan(""), 0.1) == 1.0);
  CHECK(std::fabs(cosine_decay(0.5, 0.1) - 0.55) < 1e-9);
  CHECK(cosine_decay(1, 0.1) == 0.1);
  CHECK(cosine_decay(7, 0.1) == 0.1);
  for (int i = 0; i < 1000; ++i) CHECK(cosine_decay((i + 1) / 1000.0, 0.01) < cosine_decay(i / 1000.0, 0.01));
}
