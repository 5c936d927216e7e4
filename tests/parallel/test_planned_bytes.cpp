// Bytes that the groups of a grid count in steps of a training are exactly those of its plan.
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "models/gpt/language_task.h"
#include "plan/cnn_model.h"
#include "plan/counted.h"
#include "tests/models/cnn_nets.h"
#include "tests/models/gpt_nets.h"
#include "tests/support/catch.h"
#include "tests/support/mpi.h"
#include "train/parallel/tensor.h"
#include "train/trainer.h"

namespace bitloom::plan {
namespace {

constexpr std::uint64_t steps = 2;

// A vocabulary that no number of ranks divides, and matrices of several chunks, which sharding does not cut.
models::GptConfig config_of(Recompute recompute) {
  models::GptConfig config = test::small_gpt();
  config.layers = 5;
  config.heads = 12;
  config.width = 72;
  config.context = 5;
  config.vocabulary = 331;
  config.vocabulary_multiple = 1;
  config.recompute = recompute == Recompute::block;
  return config;
}

FloatOptions options_of(const mpi::GridShape& grid, const std::string& schedule, train::ShardLevel shard, Recompute recompute,
                        DType values) {
  FloatOptions options;
  options.micro_batch = 2;
  options.batch = 2 * options.micro_batch * static_cast<std::size_t>(grid.pipeline * grid.data);
  options.schedule = schedule;
  options.chunks = grid.pipeline == 1 ? 1 : train::chunks_or_usual(schedule, 0);
  options.shard = shard;
  options.recompute = recompute;
  options.train.values = values;
  options.train.micro_batches = options.batch / options.micro_batch;
  options.train.rate.peak = 0.01;
  return options;
}

// Sent by this rank in all steps.
GridBytes train_task(mpi::Grid& grid, nn::Engine& engine, train::Task& task, const FloatOptions& options) {
  train::Layout layout;
  layout.grid = &grid;
  layout.schedule = options.schedule;
  layout.chunks = options.chunks;
  layout.shard = options.shard;
  layout.recompute_stages = options.recompute == Recompute::stage;
  layout.compress_rank = options.compress_rank;
  layout.compression.messages = options.compress_format;
  layout.compression.warm_start = options.compress_warm;
  train::Trainer trainer(engine, task, options.train, layout);
  trainer.share();
  const GridBytes before = counted(grid);
  for (std::uint64_t step = 0; step < steps; ++step) trainer.step();
  return counted(grid) - before;
}

GridBytes train_in(const mpi::GridShape& shape, const models::GptConfig& config, const FloatOptions& options) {
  mpi::Grid grid(test::world(), shape, static_cast<int>(options.shard_ranks));
  nn::Engine engine;
  train::TensorGroup group(grid.tensor());
  models::Gpt net(config, 0, &group);
  models::LanguageTask task(net, options.micro_batch, test::chains(config, options.batch));
  return train_task(grid, engine, task, options);
}

// A net with batch norms, and with frozen kernels where `which` is 0.
GridBytes train_cnn_in(const mpi::GridShape& shape, std::size_t which, const FloatOptions& options) {
  mpi::Grid grid(test::world(), shape);
  nn::Engine engine;
  models::Cnn net(test::small_cnn(which));
  train::Classification task(net.layers, net.input(options.micro_batch), [&](std::uint64_t step, std::uint64_t micro_batch) {
    const data::Dataset images = test::small_images(options.micro_batch, test::small_image);
    const nn::Shape shape_of_batch = net.input(options.micro_batch);
    Random random(3, Stream::test, step * options.batch + micro_batch);
    std::vector<float> pixels(shape_of_batch.size());
    for (float& pixel : pixels) pixel = static_cast<float>(random.uniform());
    const std::vector<std::int32_t> labels(images.labels.begin(), images.labels.end());
    return train::Classification::Batch{
        engine.from(std::span<const float>(pixels), shape_of_batch, nn::Use::data),
        engine.from(std::span<const std::int32_t>(labels), {options.micro_batch}, nn::Use::data)};
  });
  return train_task(grid, engine, task, options);
}

using Counts = std::array<std::int64_t, 6>;

// Bytes of a step, the largest number of each kind over the ranks of every stage.
std::vector<Counts> largest_by_stage(const mpi::GridShape& shape, const GroupBytes& own) {
  std::vector<Counts> all(static_cast<std::size_t>(shape.pipeline));
  const int stage = mpi::place_in(shape, test::world().rank()).stage;
  const std::array<std::uint64_t, 6> sent{own.sums,        own.maxima,   own.reduce_scatters,
                                          own.all_gathers, own.messages, own.broadcasts};
  Counts& counts = all[static_cast<std::size_t>(stage)];
  for (std::size_t i = 0; i < sent.size(); ++i) {
    REQUIRE(sent[i] % steps == 0);
    counts[i] = static_cast<std::int64_t>(sent[i] / steps);
  }
  for (Counts& each : all) test::world().max(each);
  return all;
}

Counts counts_of(const GroupBytes& bytes) {
  const auto number = [](std::uint64_t n) { return static_cast<std::int64_t>(n); };
  return {number(bytes.sums),        number(bytes.maxima),   number(bytes.reduce_scatters),
          number(bytes.all_gathers), number(bytes.messages), number(bytes.broadcasts)};
}

void check_all_groups(const GridBytes& sent, const mpi::GridShape& grid, const FloatPlan& plan) {
  const std::vector<Counts> data = largest_by_stage(grid, sent.data);
  const std::vector<Counts> pipeline = largest_by_stage(grid, sent.pipeline);
  const std::vector<Counts> tensor = largest_by_stage(grid, sent.tensor);
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    INFO("stage " << stage);
    CHECK(data[stage] == counts_of(plan.stages[stage].data));
    CHECK(pipeline[stage] == counts_of(plan.stages[stage].pipeline));
    CHECK(tensor[stage] == counts_of(plan.stages[stage].tensor));
  }
}

}  // namespace

TEST_CASE("groups send what the plan of their grid says", "[planned]") {
  using train::ShardLevel;
  for (const mpi::GridShape& grid : mpi::shapes_of(test::world().size())) {
    for (const std::string schedule : {"1f1b", "gpipe", "interleaved"}) {
      if (grid.pipeline == 1 && schedule != "1f1b") continue;
      for (const ShardLevel shard : {ShardLevel::none, ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
        if (grid.data == 1 && shard != ShardLevel::none) continue;
        for (const Recompute recompute : {Recompute::none, Recompute::block, Recompute::stage}) {
          for (const DType values : {DType::f32, DType::bf16}) {
            INFO(mpi::described(grid) << " " << schedule << " sharded " << static_cast<int>(shard) << " recomputes "
                                      << static_cast<int>(recompute) << " type " << static_cast<int>(values));
            const models::GptConfig config = config_of(recompute);
            const FloatOptions options = options_of(grid, schedule, shard, recompute, values);
            const FloatPlan plan = plan_grid(describe_gpt(config), grid, options, FloatCluster());
            check_all_groups(train_in(grid, config, options), grid, plan);
          }
        }
      }
    }
  }
}

// Once frozen kernels counted as learned ones, and sums of batch norms' statistics not at all.
TEST_CASE("processes that train a convolutional net send what is planned, with frozen kernels and batch norms", "[planned]") {
  using train::ShardLevel;
  for (const mpi::GridShape& grid : mpi::shapes_of(test::world().size())) {
    if (grid.tensor > 1) continue;
    for (const std::size_t which : {0, 1}) {
      for (const ShardLevel shard : {ShardLevel::none, ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
        if (grid.data == 1 && shard != ShardLevel::none) continue;
        CAPTURE(mpi::described(grid), which, static_cast<int>(shard));
        FloatOptions options = options_of(grid, "1f1b", shard, Recompute::none, DType::f32);
        options.train.optimizer.rule = "sgd";
        const FloatPlan plan = plan_grid(describe_cnn(test::small_cnn(which), DType::f32), grid, options, FloatCluster());
        check_all_groups(train_cnn_in(grid, which, options), grid, plan);
      }
    }
  }
}

TEST_CASE("data-parallel processes that exchange factors send what is planned", "[planned][power_sgd]") {
  const mpi::GridShape grid{test::world().size(), 1, 1};
  const models::GptConfig config = config_of(Recompute::none);
  // With rank 40, matrices of 72 x 72 go as they are.
  for (const std::size_t rank : {1, 7, 40}) {
    INFO(rank);
    FloatOptions options = options_of(grid, "1f1b", train::ShardLevel::none, Recompute::none, DType::f32);
    options.compress_rank = rank;
    for (const train::FloatFormat format : {train::FloatFormat::f32, train::FloatFormat::f1_6_9}) {
      options.compress_format = format;
      options.compress_warm = rank == 7;
      const FloatPlan plan = plan_grid(describe_gpt(config), grid, options, FloatCluster());
      const GridBytes sent = train_in(grid, config, options);
      CHECK(largest_by_stage(grid, sent.data).front() == counts_of(plan.stages.front().data));
    }
  }
}

TEST_CASE("data ranks that are divided send what is planned, whole gradients or factors", "[planned][power_sgd]") {
  using train::ShardLevel;
  const int ranks = test::world().size();
  const mpi::GridShape grid{ranks, 1, 1};
  const models::GptConfig config = config_of(Recompute::none);
  for (int shard_ranks = 1; shard_ranks < ranks; ++shard_ranks) {
    if (ranks % shard_ranks != 0) continue;
    for (const ShardLevel shard : {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters}) {
      for (const DType values : {DType::f32, DType::bf16}) {
        for (const std::size_t rank : {0, 12, 60}) {  // with 60 matrices of 72 x 72 go as they are
          CAPTURE(shard_ranks, static_cast<int>(shard), static_cast<int>(values), rank);
          FloatOptions options = options_of(grid, "1f1b", shard, Recompute::none, values);
          options.shard_ranks = static_cast<std::size_t>(shard_ranks);
          options.compress_rank = rank;
          const FloatPlan plan = plan_grid(describe_gpt(config), grid, options, FloatCluster());
          const GridBytes sent = train_in(grid, config, options);
          CHECK(largest_by_stage(grid, sent.data).front() == counts_of(plan.stages.front().data));
        }
      }
    }
  }
}

}  // namespace bitloom::plan
