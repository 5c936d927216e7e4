// A text-to-image transformer that several processes divide: it trains, and is measured, as one process would.
#include <algorithm>
#include <numeric>
#include <vector>

#include "core/random.h"
#include "models/dalle/sampler.h"
#include "tests/models/dalle_nets.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/mpi.h"
#include "tests/support/trainer_state.h"
#include "train/parallel/tensor.h"
#include "train/trainer.h"

namespace bitloom::models {
namespace {

using test::world;
using train::ShardLevel;

constexpr std::size_t pairs = 2, micro_batches = 12;  // a multiple of 1, 2, 3 and 4

// Heads for 1 to 4 processes.
DalleConfig small_config() {
  DalleConfig config = test::small_dalle();
  config.layers = 5;
  config.heads = 12;
  config.width = 48;
  config.dropout = 0.1;
  return config;
}

// Codes follow from the text's first token; some texts end early.
DalleBatch batch_of(const DalleConfig& config, std::uint64_t step, std::uint64_t micro_batch) {
  DalleBatch batch;
  for (std::size_t b = 0; b < pairs; ++b) {
    Random random(3, Stream::test, step, micro_batch * pairs + b);
    const std::uint32_t kind = random.below(3);
    const std::size_t length = 2 + random.below(static_cast<std::uint32_t>(config.text - 1));
    for (std::size_t t = 0; t < config.text; ++t) {
      batch.text.push_back(t < length ? static_cast<std::int32_t>(t == 0 ? kind : random.below(7)) : -1);
    }
    for (std::size_t i = 0; i < config.image(); ++i) batch.codes.push_back(static_cast<std::int32_t>((kind + i / 4) % 6));
  }
  return batch;
}

DalleTokens tokens_of(const DalleConfig& config, std::uint64_t step) {
  DalleTokens tokens;
  for (std::uint64_t m = 0; m < micro_batches; ++m) {
    const DalleBatch batch = batch_of(config, step, m);
    tokens.text += text_tokens_of(config, batch.text);
    tokens.image += batch.codes.size();
  }
  return tokens;
}

struct DalleLayout {
  mpi::GridShape grid;
  ShardLevel shard = ShardLevel::none;
  std::size_t compress_rank = 0;
};

struct DividedDalle {
  DividedDalle(mpi::Comm& comm, const DalleLayout& layout)
      : grid(comm, layout.grid),
        group(grid.tensor()),
        net(small_config(), &group),
        task(
            net, pairs, [this](std::uint64_t step, std::uint64_t which) { return batch_of(net.config(), step, which); },
            [this](std::uint64_t step) { return tokens_of(net.config(), step); }),
        trainer(engine, task, options(), make(layout)) {}
  static train::TrainOptions options() {
    train::TrainOptions options;
    options.micro_batches = micro_batches;
    options.rate.peak = 0.1;
    options.optimizer.rule = "sgd";  // AdamW makes much of small differences
    options.optimizer.momentum = 0.9;
    options.optimizer.clip = 1;
    return options;
  }
  train::Layout make(const DalleLayout& layout) {
    train::Layout made;
    made.grid = &grid;
    made.shard = layout.shard;
    made.compress_rank = layout.compress_rank;
    return made;
  }
  // Nats of a batch, on the last stage; text, then image.
  std::vector<double> nats() {
    const DalleBatch batch = batch_of(net.config(), 1000, 0);
    std::vector<double> found;
    trainer.predict(dalle_input(engine, net.config(), batch), [&](const nn::Tensor& hidden) {
      const PairNats nats = pair_nats(engine, net, hidden, batch);
      found = nats.text;
      found.insert(found.end(), nats.image.begin(), nats.image.end());
    });
    return found;
  }

  nn::Engine engine;
  mpi::Grid grid;
  train::TensorGroup group;
  Dalle net;
  DalleTask task;
  train::Trainer trainer;
};

std::vector<DalleLayout> dalle_layouts() {
  std::vector<DalleLayout> all;
  for (const mpi::GridShape& grid : mpi::shapes_of(world().size())) {
    all.push_back({grid});
    if (grid.data == 1) continue;
    for (const ShardLevel level : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
      all.push_back({grid, level});
    }
  }
  return all;
}

}  // namespace

TEST_CASE("a text-to-image transformer in any layout learns and is measured as in one process", "[dalle][layouts]") {
  constexpr std::size_t steps = 4;
  mpi::Comm self;
  DividedDalle alone(self, {{1, 1, 1}});
  const std::vector<double> untrained = alone.nats();
  std::vector<double> losses(steps);
  for (double& loss : losses) loss = alone.trainer.step().loss;
  const std::vector<double> expected = alone.nats();
  // It has learned, so that a net that stands still fails below.
  CHECK(std::accumulate(expected.begin(), expected.end(), 0.0) <
        0.9 * std::accumulate(untrained.begin(), untrained.end(), 0.0));
  for (const DalleLayout& layout : dalle_layouts()) {
    INFO(mpi::described(layout.grid) << " sharded " << static_cast<int>(layout.shard));
    DividedDalle divided(world(), layout);
    for (const double loss : losses) CHECK(divided.trainer.step().loss == Approx(loss).epsilon(1e-4));
    const std::vector<double> nats = divided.nats();
    const bool is_last = divided.grid.pipeline().rank() + 1 == divided.grid.pipeline().size();
    CHECK(nats.size() == (is_last ? 2 * pairs : 0));
    if (is_last) CHECK(test::compare(nats, expected, 1e-3) == "");
  }
}

// As one process does by the same factors.
TEST_CASE("a text-to-image transformer learns by factors of its gradients", "[dalle][layouts]") {
  constexpr std::size_t steps = 4;
  mpi::Comm self;
  DividedDalle whole(self, {{1, 1, 1}});
  DividedDalle alone(self, {{1, 1, 1}, ShardLevel::none, 4});
  DividedDalle together(world(), {{world().size(), 1, 1}, ShardLevel::none, 4});
  const double first = whole.trainer.step().loss;
  double of_alone = alone.trainer.step().loss;
  double of_together = together.trainer.step().loss;
  CHECK(of_alone == Approx(first).epsilon(1e-6));
  for (std::size_t i = 1; i < steps; ++i) {
    whole.trainer.step();
    of_alone = alone.trainer.step().loss;
    of_together = together.trainer.step().loss;
    CHECK(of_together == Approx(of_alone).epsilon(1e-4));
  }
  CHECK(of_alone < 0.95 * first);
  // Parts of gradients that a step leaves out are noticed.
  CHECK(test::compare(alone.nats(), whole.nats(), 1e-4) != "");
}

}  // namespace bitloom::models
