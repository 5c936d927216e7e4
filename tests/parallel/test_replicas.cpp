// Replicas that several processes of a grid have are compared now and then.
#include "train/parallel/replicas.h"

#include <string>
#include <vector>

#include "core/random.h"
#include "nn/layers/basic.h"
#include "tests/parallel/grid_gpt.h"
#include "tests/support/catch.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

using test::has;
using test::world;

void alter(nn::Engine& engine, nn::Tensor tensor) {
  std::vector<float> numbers = engine.to_host<float>(tensor);
  numbers[1] += 0.1F;  // steps might round a single bit away
  engine.write(tensor, std::as_bytes(std::span(numbers)));
}

int last_rank() { return world().size() - 1; }

// A GPT in training.
struct Training : test::GridGpt {
  Training(const mpi::GridShape& shape, ShardLevel shard) : GridGpt(shape, config(), options(shape), layout(shard)) {
    trainer.share();
  }
  static models::GptConfig config() {
    models::GptConfig config = test::small_gpt();
    config.heads = 4;
    return config;
  }
  static TrainOptions options(const mpi::GridShape& shape) {
    TrainOptions options;
    options.micro_batches = static_cast<std::size_t>(shape.data);
    options.rate.peak = 0.01;
    return options;
  }
  static Layout layout(ShardLevel shard) {
    Layout layout;
    layout.shard = shard;
    return layout;
  }
  // Why a checkpoint is refused, or "no error".
  std::string message() {
    return test::message_of(ErrorKind::data, [&] { test::saved(trainer); });
  }
};

}  // namespace

TEST_CASE("the ranks that have another tensor than most are named", "[replicas]") {
  nn::Engine engine;
  const std::unique_ptr<mpi::Grid> grid = test::data_grid(&world());
  const auto difference = [&](const std::vector<float>& numbers) {
    const nn::Tensor same = engine.zeros({3}, DType::f32, nn::Use::parameters);
    const nn::Tensor tensor = engine.from(std::span<const float>(numbers), {numbers.size()}, nn::Use::parameters);
    const std::vector<Replica> replicas{{"same", &same, {&grid->data(), &grid->tensor()}},
                                        {"tensor", &tensor, {&grid->data()}}};
    return test::message_of(ErrorKind::data, [&] { require_same(engine, world(), replicas, "after step 7"); });
  };
  CHECK(difference({1, 2, 3}) == "no error");
  if (world().size() == 1) return;
  // -0 is another number to the bit.
  const std::string message = difference({1, world().rank() == last_rank() ? -0.0F : 0.0F});
  CHECK(has(message, fmt::format("after step 7: 'tensor' of rank {} is not that of rank", last_rank())));
  if (world().size() == 4) {
    CHECK(has(message, "of rank 3 is not that of ranks 0, 1, 2, to the bit"));
    // The first rank is as likely to be wrong as others.
    CHECK(has(difference({world().is_root() ? 2.0F : 1.0F}), "of rank 0 is not that of ranks 1, 2, 3"));
    CHECK(has(difference({static_cast<float>(world().rank() / 2)}), "of ranks 2, 3 is not that of ranks 0, 1"));
  }
}

TEST_CASE("a trainer finds a parameter that one process altered before it writes a checkpoint", "[replicas]") {
  for (const mpi::GridShape& shape : mpi::shapes_of(world().size())) {
    if (shape.tensor == 3) continue;
    for (const ShardLevel shard : {ShardLevel::none, ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
      if (shard != ShardLevel::none && shape.data == 1) continue;
      CAPTURE(mpi::described(shape), static_cast<int>(shard));
      Training training(shape, shard);
      for (int i = 0; i < 2; ++i) training.trainer.step();
      CHECK(training.message() == "no error");
      nn::Parameter& norm = *training.trainer.parameters().back();
      REQUIRE(!norm.part);
      // A process that has nothing but shards has this one alone.
      const bool is_whole = shard != ShardLevel::parameters;
      if (is_whole && world().rank() == last_rank()) alter(training.engine, norm.read());
      const bool is_found = is_whole && (shape.data > 1 || shape.tensor > 1);
      const std::string name = world().broadcast_text(norm.name, last_rank());  // stages have others
      CHECK(has(training.message(),
                is_found ? fmt::format("after step 2: '{}' of rank {} is not", name, last_rank()) : "no error"));
    }
  }
}

// Each stage moves its own copy of a table that the first and the last have.
TEST_CASE("a trainer finds a tied parameter that differs between stages", "[replicas]") {
  for (const mpi::GridShape& shape : mpi::shapes_of(world().size())) {
    if (shape.tensor == 3 || shape.pipeline == 1) continue;
    for (const ShardLevel shard : {ShardLevel::none, ShardLevel::parameters}) {
      if (shard != ShardLevel::none && shape.data == 1) continue;
      CAPTURE(mpi::described(shape), static_cast<int>(shard));
      Training training(shape, shard);
      training.trainer.step();
      CHECK(training.message() == "no error");
      // On all processes of the last stage alike, where others that have copies are asked for them.
      for (nn::Parameter* parameter : training.trainer.moved()) {
        if (parameter->name != "embedding.tokens" || training.grid.pipeline().rank() + 1 != shape.pipeline) continue;
        if (parameter->value.size() > 1) alter(training.engine, parameter->value);  // shards may be empty
      }
      CHECK(has(training.message(), "after step 1: 'embedding.tokens' of rank"));
    }
  }
}

TEST_CASE("a trainer compares what processes have every 100 steps", "[replicas]") {
  nn::Engine engine;
  const std::unique_ptr<mpi::Grid> grid = test::data_grid(&world());
  auto net = std::make_shared<nn::Sequence>();
  net->add(std::make_unique<nn::Linear>("layer", 4, 3));
  Classification task(net, {2, 4}, [&](std::uint64_t step, std::uint64_t micro_batch) {
    Random random(100 * step + micro_batch, Stream::test);
    std::vector<float> x(8);
    for (float& value : x) value = static_cast<float>(random.normal());
    const std::vector<std::int32_t> labels{0, 2};
    return Classification::Batch{engine.from(std::span<const float>(x), {2, 4}, nn::Use::data),
                                 engine.from(std::span<const std::int32_t>(labels), {2}, nn::Use::data)};
  });
  TrainOptions options;
  options.micro_batches = static_cast<std::size_t>(world().size());
  options.rate.peak = 0.01;
  Layout layout;
  layout.grid = grid.get();
  Trainer trainer(engine, task, options, layout);
  for (int i = 0; i < 150; ++i) trainer.step();
  if (world().rank() == last_rank()) alter(engine, trainer.parameters().front()->value);
  for (int i = 150; i < 199; ++i) trainer.step();
  CHECK(has(test::message_of(ErrorKind::data, [&] { trainer.step(); }),
            world().size() == 1 ? "no error" : fmt::format("after step 200: 'layer.weight' of rank {} is not", last_rank())));
}

}  // namespace bitloom::train
