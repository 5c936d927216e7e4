// PowerSGD where numbers end: 1-6-9, what is not finite, and what becomes of error buffers then.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "mpi/float_collectives.h"
#include "tests/parallel/power_sgd_exchange.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"

namespace bitloom::train {
namespace {

using namespace test;

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("factors in 1-6-9 are those in f32, rounded", "[power_sgd]") {
  Exchange exact(usual_shapes());
  PowerSgdOptions options = narrow_messages();
  options.p_scale = 4;
  options.q_scale = 8;
  Exchange narrow(usual_shapes(), options);
  CHECK(exact.step(1).narrowed == 0);
  const PowerSgdReport report = narrow.step(1);
  CHECK(report.clamped == 0);
  // Two bytes of a term and of a sum.
  const PowerSgdBytes bytes = power_sgd_bytes(usual_shapes(), FloatFormat::f1_6_9);
  CHECK(report.narrowed == bytes.p + bytes.q);
  for (const std::size_t i : {0U, 2U}) CHECK(difference(narrow.result(i), exact.result(i)) < 1e-2);
  for (const std::size_t i : {1U, 3U}) CHECK(narrow.result(i) == exact.result(i));
}

// Steps 4 and 7: with scales that are too large.
TEST_CASE("what 1-6-9 does not hold is clamped and counted", "[power_sgd]") {
  PowerSgdOptions options = narrow_messages();
  options.p_scale = 1000;
  options.q_scale = 100;
  Exchange exchange(usual_shapes(), options);
  const Matrices before = exchange.sums_of_errors();
  exchange.draw(1, world().rank());
  const Matrices sums = exchange.sums_of_gradients();
  const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
  CHECK(report.clamped > 0);
  CHECK(report.not_finite == 0);
  CHECK(std::isfinite(report.squares));
  const Matrices after = exchange.sums_of_errors();
  for (const std::size_t i : {0U, 2U}) {
    CHECK(difference(plus(after[i], exchange.result(i)), plus(before[i], sums[i])) < 2e-6);
  }
}

// Terms that together are beyond 15.98 and whose mean is not.
TEST_CASE("sums of factors in 1-6-9 do not overflow where their terms do not", "[power_sgd]") {
  PowerSgdOptions options = narrow_messages();
  options.q_scale = 0.01;
  // Number of clamped numbers where each process has a gradient of equal elements.
  const auto clamped = [&](float element, mpi::Comm& group) {
    Exchange exchange({{"one", 8, 8, 1}}, options, group);
    exchange.draw(1, 0);
    for (float& x : exchange.gradients[0].as<float>()) x = element;
    const std::size_t count = exchange.power_sgd.exchange(exchange.gradients).clamped;
    if (count == 0)
      CHECK(difference(exchange.result(0), std::vector<double>(64, static_cast<double>(element) * group.size())) < 4e-3);
    return count;
  };
  mpi::Comm alone;
  float element = 1.0F / 1024;
  while (clamped(element, alone) == 0) element *= 2;
  CHECK(clamped(element, world()) > 0);
  CHECK(clamped(element / 2, world()) == 0);  // 8 at least, in P of each
}

// Appendix E.2, optimization 4.
// --- Steps 2, 10 and 12: what is not finite ---

TEST_CASE("a gradient that is not finite on one rank is left out, and every buffer is kept", "[power_sgd]") {
  for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm(), all_narrow()}) {
      const double tolerance = options.error_buffers == FloatFormat::f32 ? 2e-6 : 4e-3;
      Exchange exchange(usual_shapes(), options);
      exchange.step(0);
      const Matrices before = exchange.sums_of_errors();
      exchange.draw(1, world().rank());
      const Matrices sums = exchange.sums_of_gradients();
      const bool is_bad = world().rank() == world().size() - 1;
      // Sum of the other ranks' gradients of the first matrix.
      std::vector<double> others(480, 0.0);
      if (!is_bad) others = exchange.result(0);
      mpi::sum_in_order(world(), std::span(others));
      if (is_bad) exchange.gradients[0].as<float>()[17] = bad;
      const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
      CHECK(report.squares == static_cast<double>(infinity));
      CHECK(report.not_finite == 1);
      CHECK(std::ranges::all_of(exchange.result(0), [](double x) { return std::isnan(x); }));
      const Matrices after = exchange.sums_of_errors();
      CHECK(difference(after[0], plus(before[0], others)) < tolerance);
      // The other matrix's update is skipped, too: what its factors carried stays in the buffers.
      CHECK(difference(after[2], plus(before[2], sums[2])) < tolerance);
      // Nothing stays behind.
      exchange.draw(2, world().rank());
      const Matrices next = exchange.sums_of_gradients();
      CHECK(exchange.power_sgd.exchange(exchange.gradients).not_finite == 0);
      CHECK(difference(plus(exchange.sums_of_errors()[0], exchange.result(0)), plus(after[0], next[0])) < tolerance);
    }
  }
}

TEST_CASE("a narrow buffer ends at the largest number of its format", "[power_sgd]") {
  mpi::Comm alone;
  PowerSgdOptions options;
  options.error_buffers = FloatFormat::f1_6_9;
  Exchange exchange({{"one", 8, 8, 1}}, options, alone);
  exchange.draw(1, 0);
  exchange.gradients[0].as<float>()[5] = -20;
  CHECK(exchange.power_sgd.exchange(exchange.gradients).not_finite == 0);
  const std::vector<double> result = exchange.result(0);
  CHECK(std::ranges::all_of(result, [](double x) { return std::isfinite(x); }));
  // The part of it that the buffer holds is either sent or kept.
  CHECK(result[5] + exchange.sums_of_errors()[0][5] == Approx(-15.984).epsilon(0.004));
}

TEST_CASE("a buffer that is not finite is cleared, and those of other ranks are kept", "[power_sgd]") {
  Exchange exchange(usual_shapes(), all_narrow());
  exchange.step(0);
  exchange.draw(1, world().rank());
  const bool is_bad = world().is_root();
  // The buffers of the others, which hold equal parts of the sum from now on.
  exchange.power_sgd.set_state(exchange.power_sgd.state());
  const Matrices before = exchange.sums_of_errors();
  std::vector<double> kept(480, 0.0);
  if (!is_bad) kept = plus(exchange.result(0), before[0], 1.0 / world().size());
  mpi::sum_in_order(world(), std::span(kept));
  // Finite, and beyond f32 without its scale, as it is in the buffer.
  std::vector<double> scales(exchange.gradients.size(), 1.0);
  if (is_bad) {
    exchange.gradients[0].as<float>()[5] = -1e10F;
    scales[0] = 1e-30;
  }
  exchange.power_sgd.begin_step(scales);
  const PowerSgdReport report = exchange.power_sgd.finish(exchange.gradients);
  exchange.power_sgd.settle(exchange.gradients, [](std::size_t /*shape*/) { return true; });
  CHECK(report.squares == static_cast<double>(infinity));
  CHECK(report.not_finite == 1);
  CHECK(std::ranges::all_of(exchange.result(0), [](double x) { return std::isnan(x); }));
  const std::vector<double> after = exchange.sums_of_errors()[0];
  CHECK(difference(after, kept) < 4e-3);
  exchange.draw(2, world().rank());
  const Matrices next = exchange.sums_of_gradients();
  CHECK(exchange.power_sgd.exchange(exchange.gradients).not_finite == 0);
  CHECK(difference(plus(exchange.sums_of_errors()[0], exchange.result(0)), plus(after, next[0])) < 4e-3);
}

TEST_CASE("factors that are not finite of buffers that are leave these as they are", "[power_sgd]") {
  for (const PowerSgdOptions& options : {PowerSgdOptions{}, warm()}) {
    Exchange exchange(usual_shapes(), options);
    exchange.draw(1, 0);
    for (float& x : exchange.gradients[0].as<float>()) x = 3e38F / static_cast<float>(world().size());
    const Matrices sums = exchange.sums_of_gradients();
    const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
    CHECK(report.squares == static_cast<double>(infinity));
    CHECK(report.not_finite == 1);
    CHECK(difference(exchange.sums_of_errors()[0], sums[0]) < 1e-6);
  }
}

TEST_CASE("a gradient that is sent as it is makes the norm infinite, too", "[power_sgd]") {
  Exchange exchange(usual_shapes());
  exchange.draw(1, world().rank());
  if (world().is_root()) exchange.gradients[1].as<float>()[32] = infinity;
  const PowerSgdReport report = exchange.power_sgd.exchange(exchange.gradients);
  CHECK(report.squares == static_cast<double>(infinity));
  CHECK(report.not_finite == 1);
}

}  // namespace bitloom::train
