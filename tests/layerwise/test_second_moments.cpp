// Second moments of gradients by row and column, beside plain code.
#include <cmath>

#include "layerwise/layer_trainer.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

namespace {

constexpr std::size_t channels = 20;
constexpr std::uint64_t settled_step = 50;  // when little is left of what moments began with
constexpr std::uint64_t late_step = 60;     // when what had no gradient is below the smallest moment

// Sums whose rows and columns are of very different sizes; one row and one column get gradient from late_step on, and others
// none any more.
void draw_uneven(LayerSums& sums, std::size_t bits, std::uint64_t step, Random& random) {
  for (std::size_t o = 0; o < channels; ++o) {
    for (std::size_t k = 0; k < bits; ++k) {
      const bool none = step < late_step ? o == 7 || k == 30 : o == 8 || k == 31;
      const double size = none ? 0 : std::pow(1.3, static_cast<double>(o)) * (k % 2 == 0 ? 100 : 3000);
      sums.weight[o * bits + k] = static_cast<std::int32_t>(size * (2 * random.uniform() - 1));
    }
  }
}

}  // namespace

TEST_CASE("second moments make rows and columns of gradients alike, as plain code does", "[layer_trainer]") {
  constexpr double decay = 0.8;
  Random random(1, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(channels, 3, 1, false), 6, 6, 70);
  LayerOptions options;
  options.second_moment_decay = decay;
  options.rule.learning_rate = 0.001;
  LayerTrainer trainer(layer, options, 1, 2);
  LayerSums sums = trainer.make_sums();
  const std::size_t bits = layer.patch_bits();
  std::vector<double> rows(channels, 1.0), columns(bits, 1.0);
  for (std::uint64_t step = 0; step < late_step + 5; ++step) {
    CAPTURE(step);
    draw_uneven(sums, bits, step, random);
    for (std::size_t k = 0; k < bits; ++k) {  // what cannot be set has no gradient
      if (get_bit(layer.valid_bits().data(), k)) continue;
      for (std::size_t o = 0; o < channels; ++o) sums.weight[o * bits + k] = 0;
    }
    // No image was seen: the gradient is minus the sums.
    const auto gradient = [&](std::size_t o, std::size_t k) { return -static_cast<double>(sums.weight[o * bits + k]); };
    const auto valid = static_cast<double>(layer.geometry().valid_bits);
    double all = 0;
    for (std::size_t o = 0; o < channels; ++o) {
      for (std::size_t k = 0; k < bits; ++k) all += gradient(o, k) * gradient(o, k) / (channels * valid);
    }
    const auto move = [](double& moment, double now) { moment = decay * moment + (1 - decay) * now; };
    double mean_row = 0;
    for (std::size_t o = 0; o < channels; ++o) {
      double now = 0;
      for (std::size_t k = 0; k < bits; ++k) now += gradient(o, k) * gradient(o, k) / all / valid;
      move(rows[o], now);
      mean_row += rows[o] / channels;
    }
    double mean_column = 0;
    for (std::size_t k = 0; k < bits; ++k) {
      if (!get_bit(layer.valid_bits().data(), k)) continue;
      double now = 0;
      for (std::size_t o = 0; o < channels; ++o) now += gradient(o, k) * gradient(o, k) / all / channels;
      move(columns[k], now);
      mean_column += columns[k] / valid;
    }
    const std::vector<std::int16_t> before(trainer.states().begin(), trainer.states().end());
    trainer.choose(sums, 1.0, step);
    double smallest = 1e9, largest = 0;
    for (std::size_t o = 0; o < channels; ++o) {
      double moved = 0;
      for (std::size_t k = 0; k < bits; ++k) {
        const double scale = 1 / std::sqrt(std::max(rows[o] / mean_row, 1e-4) * std::max(columns[k] / mean_column, 1e-4));
        const double expected = -0.001 * 32767 * gradient(o, k) / std::sqrt(all) * scale;
        const double now = trainer.states()[o * bits + k] - before[o * bits + k];
        REQUIRE(std::fabs(now - expected) < 0.51);  // steps are whole numbers
        moved += std::fabs(now);
      }
      if (step < settled_step || step >= late_step || o == 7) continue;
      smallest = std::min(smallest, moved);
      largest = std::max(largest, moved);
    }
    if (step >= settled_step && step < late_step) CHECK(largest < 1.3 * smallest);  // rows' sizes differ by 1.3^19 = 146
    if (step == late_step - 1) CHECK(rows[7] < 1e-4);
    trainer.apply();
  }
}
