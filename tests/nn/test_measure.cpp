// How fast the device is: numbers of the right size.
#include "nn/measure.h"

#include <cstdint>

#include "core/clock.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::nn;

TEST_CASE("the measured peaks are those of a machine, and leave no memory in use", "[measure]") {
  Engine engine;
  const double operations = measure_matmul(engine, DType::f32, 0.01);
  CHECK(operations > 1e8);
  CHECK(operations < 1e15);
  const double bytes = measure_copy(engine, 0.01);
  CHECK(bytes > 1e7);
  CHECK(bytes < 1e13);
  CHECK(engine.pool().total().now == 0);
  CHECK(engine.pool().reserved() < std::uint64_t{256} << 20U);  // each of the two that were copied has that
}

// Twenty seconds passed before a training with plain loops began.
TEST_CASE("the peak of plain loops is measured in a moment", "[measure]") {
  Engine engine({}, "ref");
  const auto start = Clock::now();
  CHECK(measure_matmul(engine, DType::f32, 0.01) > 1e6);
  CHECK(seconds_since(start) < 5);
}
