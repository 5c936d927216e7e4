// Messages come to the length that is wanted, from the first, and stay there.
#include <array>
#include <bit>
#include <cmath>
#include <deque>
#include <vector>

#include "core/random.h"
#include "mpi/sparse.h"
#include "mpi/threshold_control.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::mpi;

namespace {

constexpr std::size_t elements = 20000;

// Elements of unit variance, times 1000: of a normal distribution, or of Laplace's, whose tails are heavier.
std::vector<std::int64_t> drawn(std::uint64_t seed, bool laplace) {
  Random random(seed, Stream::test);
  std::vector<std::int64_t> values(elements);
  for (std::int64_t& value : values) {
    // The difference of two exponential variables has Laplace's distribution, of variance 2.
    const double one = -std::log(1 - random.uniform());
    const double two = -std::log(1 - random.uniform());
    value = std::llround(1000 * (laplace ? (one - two) / std::sqrt(2.0) : std::sqrt(2 * one) * std::cos(6.283185307 * two)));
  }
  return values;
}

double bytes_above(const std::vector<std::int64_t>& values, std::uint64_t threshold) {
  std::vector<std::int64_t> sent = values;
  for (std::int64_t& value : sent) {
    // As coarse as messages have them.
    if (magnitude(value) <= threshold) value = 0;
    value -= value % static_cast<std::int64_t>(threshold / 4);
  }
  std::vector<std::byte> message;
  return static_cast<double>(encode(to_sparse(sent), message));
}

}  // namespace

TEST_CASE("the first threshold gives messages of about the length that is wanted", "[thresholds]") {
  for (const bool laplace : {false, true}) {
    const std::vector<std::int64_t> values = drawn(3, laplace);
    std::vector<std::int64_t> widths(magnitude_widths);
    for (const std::int64_t value : values) ++widths[static_cast<std::size_t>(std::bit_width(magnitude(value)))];
    for (const double wanted : {100.0, 300.0, 1000.0}) {
      CAPTURE(laplace, wanted);
      ThresholdControl control({{elements, 1}}, 0);
      CHECK(control.threshold(0) == nothing_passes);
      control.observe(0, 1000);
      control.begin_with(widths, wanted, 1);
      const double bytes = bytes_above(values, control.threshold(0));
      // Within a bit width magnitudes are taken to be spread as those of heavy tails are; of normal ones fewer are large.
      if (laplace || wanted == 1000) CHECK(bytes > 0.6 * wanted);
      CHECK(bytes < 1.4 * wanted);
    }
  }
}

TEST_CASE("thresholds are steered to the length that is wanted, also where messages show it late", "[thresholds]") {
  constexpr double wanted = 300;
  // Bytes follow the multiple as those of normal elements (power 9) or heavier tails do, and start far too long or too short.
  for (const double power : {4.0, 9.0}) {
    for (const std::size_t late : {std::size_t{0}, std::size_t{2}}) {
      for (const double start : {0.2, 1.0, 5.0}) {
        CAPTURE(power, late, start);
        ThresholdControl control({{elements, 1}}, 0);
        const auto bytes = [&] { return start * wanted * std::pow(control.state()[0] / 3, -power); };
        std::deque<double> on_the_way(late, bytes());
        std::vector<double> seen;
        for (int i = 0; i < 400; ++i) {
          on_the_way.push_back(bytes());
          control.steer(on_the_way.front(), wanted, 1, true);
          seen.push_back(on_the_way.front());
          on_the_way.pop_front();
        }
        double sum = 0;
        for (const double each : seen) sum += each;
        CHECK(std::abs(seen.back() - wanted) < 0.06 * wanted);                 // saving 5% at most
        CHECK(std::abs(seen[seen.size() - 2] - seen.back()) < 0.01 * wanted);  // and settled
        // Excess bytes of the start are saved later; missing ones are not made up for beyond the reserve.
        CHECK(sum / 400 < 1.01 * wanted);
      }
    }
  }
}

TEST_CASE("a vector with a larger scale has a lower threshold, and a fixed multiple stays", "[thresholds]") {
  ThresholdControl control({{elements, 1}, {elements, 4}}, 2.5);
  control.observe(0, 1000);
  control.observe(1, 1000);
  control.observe(1, 0);  // is no observation
  CHECK(control.threshold(0) == 2500);
  CHECK(control.threshold(1) == 625);
  control.observe(0, 2000);
  CHECK(control.rms(0) == Approx(0.7 * 1000 + 0.3 * 2000));
  ThresholdControl again({{elements, 1}, {elements, 4}}, 2.5);
  again.restore(control.state(), control.all_rms());
  CHECK(again.threshold(0) == control.threshold(0));
  CHECK(again.threshold(1) == control.threshold(1));
  CHECK(again.state() == control.state());
}

TEST_CASE("where other vectors are sent than before, the multiple begins anew", "[thresholds]") {
  ThresholdControl control({{elements, 1}}, 0);
  for (int i = 0; i < 10; ++i) control.steer(100, 300, 1, true);
  CHECK(control.state()[0] < 2.9);
  control.steer(300, 300, 2, true);
  CHECK(control.state()[0] == Approx(3).epsilon(0.06));
}
