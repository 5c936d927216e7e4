// Moving statistics of batch norms after parameters were moved from outside, as an exchange between workers does.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/trainer_state.h"
#include "tests/train/spirals.h"
#include "train/trainer.h"

using namespace bitloom;
using namespace bitloom::train;

namespace {

// Multiplies what a batch norm reads, which its outputs do not depend on.
void scale_first_layer(nn::Engine& engine, Trainer& trainer, double factor) {
  for (nn::Parameter* parameter : trainer.parameters()) {
    if (!parameter->name.starts_with("first.")) continue;
    std::vector<double> values = engine.to_host<double>(parameter->value);
    for (double& value : values) value *= factor;
    engine.write(parameter->value, std::as_bytes(std::span(values)));
  }
  nn::refresh_copies(engine, trainer.parameters());
}

double mean_loss(Trainer& trainer) {
  const Loss loss = trainer.evaluate(1000, 0, 1);
  return loss.sum / static_cast<double>(loss.count);
}

}  // namespace

TEST_CASE("mini-batches whose loss is not finite are no part of moving statistics", "[train]") {
  const test::SpiralOptions spirals{.examples = 64, .batch_norm = true};
  TrainOptions options;
  options.values = DType::f64;
  nn::Engine engine(nn::Device{}, "ref");
  const auto source = test::spirals<double>(engine, spirals, DType::f64);
  Classification task(test::spiral_net(spirals), {spirals.examples, 2}, [&](std::uint64_t step, std::uint64_t micro_batch) {
    Classification::Batch batch = source(step, micro_batch);
    if (step % 3 == 1)
      batch.x = engine.from(
          std::span<const double>(std::vector<double>(2 * spirals.examples, std::numeric_limits<double>::infinity())),
          {spirals.examples, 2}, nn::Use::data);
    return batch;
  });
  Trainer trainer(engine, task, options);
  trainer.settle_statistics(4, [] {});
  std::size_t found = 0;
  for (const auto& [name, tensor] : test::saved(trainer).tensors) {
    if (!name.starts_with("norm.moving_")) continue;
    INFO(name);
    ++found;
    std::vector<double> values(tensor.bytes.size() / sizeof(double));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    CHECK(std::ranges::all_of(values, [](double value) { return std::isfinite(value) && std::abs(value) < 100; }));
  }
  CHECK(found == 2);
}

TEST_CASE("moving statistics follow parameters that were moved from outside, and nothing else changes", "[train]") {
  const test::SpiralOptions spirals{.examples = 256, .batch_norm = true};
  TrainOptions options;
  options.values = DType::f64;
  options.rate.peak = 0.01;
  nn::Engine engine(nn::Device{}, "ref");
  Classification task(test::spiral_net(spirals), {spirals.examples, 2}, test::spirals<double>(engine, spirals, DType::f64));
  Trainer trainer(engine, task, options);
  test::loss_after(trainer, 60);
  const double before = mean_loss(trainer);
  scale_first_layer(engine, trainer, 5);
  const double stale = mean_loss(trainer);
  const TensorFile moved = test::saved(trainer);
  std::size_t signs = 0;
  trainer.settle_statistics(8, [&] { ++signs; });
  const double settled = mean_loss(trainer);
  CHECK(signs == 8);
  CHECK(trainer.steps() == 60);
  CAPTURE(before, stale, settled);
  CHECK(std::abs(stale - before) > 0.1);
  CHECK(std::abs(settled - before) < 0.02);
  std::size_t changed = 0;
  for (const auto& [name, tensor] : test::saved(trainer).tensors) {
    INFO(name);
    const bool is_same = std::ranges::equal(tensor.bytes.span(), moved.tensors.at(name).bytes.span());
    CHECK(is_same == !name.starts_with("norm.moving_"));
    changed += is_same ? 0 : 1;
  }
  CHECK(changed == 2);
}
