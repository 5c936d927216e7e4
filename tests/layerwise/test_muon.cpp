// Accumulators that descend the orthogonal factor of the gradients' momentum, beside plain code.
#include "layerwise/muon.h"

#include <cmath>
#include <vector>

#include "layerwise/layer_trainer.h"
#include "layerwise/orthogonal.h"
#include "tests/layerwise/cases.h"
#include "tests/support/catch.h"

using namespace bitloom;
using namespace bitloom::layerwise;
using namespace bitloom::test;

TEST_CASE("accumulators descend the orthogonal factor of Nesterov's momentum, as plain code does", "[layer_trainer][muon]") {
  constexpr std::size_t channels = 20;
  constexpr double momentum = 0.8, rate = 0.001;
  Random random(1, Stream::test);
  BinaryLayer layer = make_layer(layer_spec(channels, 3, 1, false), 6, 6, 70);
  LayerOptions options;
  options.muon_momentum = momentum;
  options.rule.learning_rate = rate;
  LayerTrainer trainer(layer, options, 1, 2);
  CHECK(trainer.state_bits_per_weight() == 32);
  LayerSums sums = trainer.make_sums();
  const std::size_t bits = layer.patch_bits();
  const auto is_weight = [&](std::size_t k) { return get_bit(layer.valid_bits().data(), k); };
  std::vector<double> mean(channels * bits, 0.0);
  for (std::uint64_t step = 0; step < 12; ++step) {
    CAPTURE(step);
    double squares = 0;
    for (std::size_t i = 0; i < sums.weight.size(); ++i) {
      // Bits that cannot be set have no gradient; some rows and steps have much of it.
      sums.weight[i] = is_weight(i % bits) ? static_cast<std::int32_t>(random.below(2001)) - 1000 : 0;
      sums.weight[i] *= static_cast<std::int32_t>(1 + i / bits % 3 + step);
      squares += static_cast<double>(sums.weight[i]) * sums.weight[i];
    }
    const double rms = std::sqrt(squares / static_cast<double>(layer.weights()));
    std::vector<float> factor(channels * bits);
    for (std::size_t i = 0; i < factor.size(); ++i) {
      const double gradient = -sums.weight[i] / rms;  // no image was seen: the gradient is minus the sums
      mean[i] = momentum * mean[i] + (1 - momentum) * gradient;
      factor[i] = static_cast<float>(momentum * mean[i] + (1 - momentum) * gradient);
    }
    Orthogonaliser(channels, bits).apply(factor);
    double size = 0;
    for (const float value : factor) size += static_cast<double>(value) * static_cast<double>(value);
    size = std::sqrt(size / static_cast<double>(layer.weights()));
    const std::vector<std::int16_t> before(trainer.states().begin(), trainer.states().end());
    trainer.choose(sums, 1.0, step);
    double moved = 0;
    for (std::size_t i = 0; i < factor.size(); ++i) {
      const double now = trainer.states()[i] - before[i];
      moved += now * now;
      // Accumulators are whole numbers, of which the rate is 33, and so is the momentum, of which one is 4096.
      REQUIRE(std::fabs(now + rate * 32767 * static_cast<double>(factor[i]) / size) < 1.5);
    }
    CHECK(std::sqrt(moved / static_cast<double>(layer.weights())) == Catch::Approx(rate * 32767).epsilon(0.03));
    trainer.apply();
  }
}

TEST_CASE("momentum waits while there is no gradient", "[layer_trainer][muon]") {
  BinaryLayer layer = make_layer(layer_spec(20, 3, 1, false), 6, 6, 70);
  LayerOptions options;
  options.muon_momentum = 0.9;
  LayerTrainer trainer(layer, options, 1, 2);
  LayerSums sums = trainer.make_sums();
  Random random(2, Stream::test);
  for (std::size_t i = 0; i < sums.weight.size(); ++i) {
    if (!get_bit(layer.valid_bits().data(), i % layer.patch_bits())) continue;
    sums.weight[i] = static_cast<std::int32_t>(random.below(2001)) - 1000;
  }
  trainer.choose(sums, 1.0, 0);
  trainer.apply();
  TensorFile before, after;
  trainer.save(before);
  std::ranges::fill(sums.weight, 0);
  trainer.choose(sums, 1.0, 1);
  CHECK(trainer.apply() == 0);
  trainer.save(after);
  CHECK(difference(before, after) == "");
}
