// Data ranks that are divided: neighbours have one copy of the state together, and copies sum the gradients of their shards,
// whole or by factors.
#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "plan/float_plan.h"
#include "tests/parallel/grid_gpt.h"
#include "tests/support/catch.h"
#include "tests/support/compare.h"
#include "tests/support/message_of.h"
#include "tests/support/mpi.h"
#include "tests/support/parameters.h"
#include "tests/support/trainer_state.h"
#include "train/trainer.h"

namespace bitloom::train {
namespace {

using test::world;

constexpr std::size_t divided_micro_batches = 12;  // a multiple of 1, 2, 3 and 4

struct DividedRun : test::GridGpt {
  // shard_ranks: 0: all.
  DividedRun(int shard_ranks, ShardLevel level, std::size_t rank = 0, std::uint64_t seed = 1,
             const PowerSgdOptions& compression = {}, DType values = DType::f32)
      : DividedRun({world().size(), 1, 1}, shard_ranks, level, rank, seed, compression, values) {}
  DividedRun(const mpi::GridShape& shape, int shard_ranks, ShardLevel level, std::size_t rank = 0, std::uint64_t seed = 1,
             const PowerSgdOptions& compression = {}, DType values = DType::f32)
      : GridGpt(shape, config(shape.tensor), options(seed, values), layout(level, rank, compression), shard_ranks) {}

  // Matrices of more than a chunk, of whose rows ranks have unequal numbers; heads that tensor ranks can divide.
  static models::GptConfig config(int tensor = 1) {
    models::GptConfig config = test::small_gpt();
    config.width = tensor == 1 ? 99 : 100;
    config.heads = tensor == 1 ? 3 : 4;
    return config;
  }
  static TrainOptions options(std::uint64_t seed, DType values = DType::f32) {
    TrainOptions options;
    options.values = values;
    options.rate.peak = 0.1;
    options.optimizer.rule = "sgd";  // AdamW makes much of small differences
    options.optimizer.momentum = 0.9;
    options.micro_batches = divided_micro_batches;
    options.optimizer.clip = 1;
    options.seed = seed;
    return options;
  }
  static Layout layout(ShardLevel level, std::size_t rank, const PowerSgdOptions& compression) {
    Layout layout;
    layout.shard = level;
    layout.compress_rank = rank;
    layout.compression = compression;
    return layout;
  }
  double loss_after(std::size_t steps) { return test::loss_after(trainer, steps); }
  // Bytes of the model's tensors, at rank 0.
  std::string parameters_file() {
    TensorFile file = test::saved(trainer);
    std::erase_if(file.tensors, [](const auto& each) {
      return each.first.starts_with("optimizer.") || each.first.starts_with("power_sgd.") || each.first.starts_with("trainer.");
    });
    const std::vector<std::byte> bytes = file.serialize();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

std::vector<int> divisors() {
  std::vector<int> all;
  for (int ranks = 1; ranks <= world().size(); ++ranks) {
    if (world().size() % ranks == 0) all.push_back(ranks);
  }
  return all;
}

constexpr ShardLevel levels[] = {ShardLevel::optimizer, ShardLevel::gradients, ShardLevel::parameters};

TensorFile everywhere(const TensorFile& file) { return test::everywhere(world(), file); }

std::vector<double> numbers_of(const TensorFile& file, const std::string& prefix) {
  std::vector<double> all;
  for (const auto& [name, tensor] : file.tensors) {
    if (!name.starts_with(prefix) || tensor.dtype != DType::f32) continue;
    for (const float x : tensor.as<float>()) all.push_back(static_cast<double>(x));
  }
  return all;
}

}  // namespace

TEST_CASE("groups of neighbours that divide the state train the net of one process", "[sharding]") {
  DividedRun whole(0, ShardLevel::none);
  whole.loss_after(4);
  const TensorFile expected = everywhere(test::saved(whole.trainer));
  for (const int shard_ranks : divisors()) {
    for (const ShardLevel level : levels) {
      CAPTURE(shard_ranks, static_cast<int>(level));
      DividedRun run(shard_ranks, level);
      run.loss_after(4);
      const TensorFile file = everywhere(test::saved(run.trainer));  // throws where copies have other parameters
      CHECK(test::compare(numbers_of(file, "blocks."), numbers_of(expected, "blocks."), 1e-3) == "");
      CHECK(test::compare(numbers_of(file, "optimizer."), numbers_of(expected, "optimizer."), 1e-3) == "");
      // All data ranks in one group are not divided.
      if (shard_ranks == world().size()) {
        DividedRun undivided(0, level);
        undivided.loss_after(4);
        CHECK(everywhere(test::saved(undivided.trainer)).serialize() == file.serialize());
      }
      // One copy in each group: no process has more of the moments than its share, to a chunk of each block.
      const std::uint64_t moments = whole.engine.pool().count(nn::Use::optimizer).now;
      const std::uint64_t own = run.engine.pool().count(nn::Use::optimizer).now;
      const auto ranks = static_cast<std::uint64_t>(shard_ranks);
      const std::size_t units = 2 * run.config().layers + 3;
      CHECK(own <= moments / ranks + units * nn::squares_chunk * sizeof(float));
      if (shard_ranks > 1) CHECK(own < moments);
    }
  }
}

TEST_CASE("gradients cross from group to group once a step, those of a shard", "[sharding]") {
  for (const int shard_ranks : divisors()) {
    for (const ShardLevel level : levels) {
      CAPTURE(shard_ranks, static_cast<int>(level));
      DividedRun run(shard_ranks, level);
      run.trainer.step();
      std::uint64_t own = 0;
      for (const nn::Parameter* parameter : run.trainer.moved()) own += parameter->shape.size() * sizeof(float);
      const mpi::Traffic before = run.grid.copies().traffic();
      const StepReport report = run.trainer.step();
      const std::uint64_t sent = run.grid.copies().traffic().bytes_sent - before.bytes_sent;
      CHECK(sent == (shard_ranks == world().size() ? 0 : own));
      CHECK((report.sent_bytes > sent) == (world().size() > 1));
    }
  }
}

TEST_CASE("state of divided data ranks goes on in groups of any size", "[sharding]") {
  for (const int before : divisors()) {
    DividedRun run(before, ShardLevel::parameters);
    run.loss_after(3);
    const TensorFile file = everywhere(test::saved(run.trainer));
    const double loss = run.loss_after(3);
    for (const int after : divisors()) {
      for (const ShardLevel level : levels) {
        CAPTURE(before, after, static_cast<int>(level));
        DividedRun again(after, level);
        test::load(again.trainer, file);
        CHECK(everywhere(test::saved(again.trainer)).serialize() == file.serialize());
        const double after_loss = again.loss_after(3);
        CHECK(std::abs(after_loss - loss) < 1e-4);
        if (after == before && level == ShardLevel::parameters) CHECK(after_loss == loss);
      }
    }
  }
}

TEST_CASE("copies take over the shards of the first, and one that differs is named", "[sharding]") {
  for (const int shard_ranks : divisors()) {
    if (shard_ranks == world().size()) continue;
    CAPTURE(shard_ranks);
    DividedRun run(shard_ranks, ShardLevel::gradients, 0, static_cast<std::uint64_t>(world().rank()) + 1);
    CHECK(test::has(test::message_of(ErrorKind::data, [&] { test::saved(run.trainer); }), "expected the same"));
    run.trainer.share();
    const TensorFile file = everywhere(test::saved(run.trainer));
    nn::Parameter* const last = run.trainer.moved().back();
    if (world().rank() + 1 == world().size()) {
      std::vector<float> values = run.engine.to_host<float>(last->value);
      REQUIRE(!values.empty());
      values.front() += 1;
      run.engine.write(last->value, std::as_bytes(std::span(values)));
    }
    const std::string message = test::message_of(ErrorKind::data, [&] { test::saved(run.trainer); });
    CHECK(test::has(message, "'" + last->name + "' of rank"));
  }
}

TEST_CASE("copies of one rank each compress as data ranks that are not sharded", "[power_sgd]") {
  DividedRun whole(0, ShardLevel::none, 4);
  whole.loss_after(4);
  const TensorFile expected = everywhere(test::saved(whole.trainer));
  if (world().size() == 1) return;
  for (const ShardLevel level : levels) {
    CAPTURE(static_cast<int>(level));
    DividedRun run(1, level, 4);
    run.loss_after(4);
    const TensorFile file = everywhere(test::saved(run.trainer));
    // Micro-batches are added up elsewhere.
    CHECK(test::compare(numbers_of(file, "blocks."), numbers_of(expected, "blocks."), 1e-3) == "");
    CHECK(test::compare(numbers_of(file, "power_sgd."), numbers_of(expected, "power_sgd."), 1e-3) == "");
    if (level == ShardLevel::optimizer) CHECK(file.serialize() == expected.serialize());
  }
}

TEST_CASE("copies exchange factors of their shards, as many bytes as are planned", "[power_sgd]") {
  if (world().size() != 4) return;
  constexpr int shard_ranks = 2;
  constexpr std::size_t rank = 8;
  DividedRun dense(shard_ranks, ShardLevel::parameters);
  const double first = dense.loss_after(1);
  const std::uint64_t dense_before = dense.grid.copies().traffic().bytes_sent;
  dense.trainer.step();
  const std::uint64_t dense_sent = dense.grid.copies().traffic().bytes_sent - dense_before;
  const double dense_loss = dense.loss_after(58);
  for (const ShardLevel level : levels) {
    CAPTURE(static_cast<int>(level));
    DividedRun run(shard_ranks, level, rank);
    run.trainer.step();
    const std::uint64_t before = run.grid.copies().traffic().bytes_sent;
    run.trainer.step();
    const std::uint64_t sent = run.grid.copies().traffic().bytes_sent - before;
    std::vector<PowerSgdShape> shapes;
    for (std::size_t i = 0; i < run.trainer.moved().size(); ++i) {
      const nn::Parameter& whole = *run.trainer.parameters()[i];
      const std::size_t own = run.trainer.moved()[i]->shape.size();
      if (!whole.is_block_matrix()) {
        shapes.push_back({whole.name, 1, own, 0});
        continue;
      }
      // Cut across the longer side.
      const std::size_t width = DividedRun::config().width;
      CHECK(own % width == 0);
      shapes.push_back({whole.name, own / width, width, rank / shard_ranks});
    }
    CHECK(sent == power_sgd_bytes(shapes, FloatFormat::f32).sum());
    CHECK(4 * sent < dense_sent);
    const double loss = run.loss_after(58);
    UNSCOPED_INFO("loss " << first << " -> " << loss << ", dense " << dense_loss);
    CHECK(loss < dense_loss + 0.25 * (first - dense_loss));
  }
}

TEST_CASE("matrices that are cut have the values of whole ones, and columns of 16 bits come to those of rows", "[power_sgd]") {
  if (world().size() < 2) return;
  const std::string first = DividedRun(0, ShardLevel::none).parameters_file();
  for (const int shard_ranks : divisors()) {
    for (const DType values : {DType::f32, DType::bf16}) {
      std::string expected;  // of gradients and parameters, which sum micro-batches in one order
      for (const ShardLevel level : levels) {
        CAPTURE(shard_ranks, static_cast<int>(level), static_cast<int>(values));
        DividedRun run(shard_ranks, level, 12, 1, {}, values);
        if (values == DType::f32) CHECK_FALSE(world().flag_any(run.parameters_file() != first));
        run.loss_after(3);
        const std::string file = run.parameters_file();  // throws where copies differ
        if (level == ShardLevel::gradients) expected = file;
        if (level == ShardLevel::parameters) CHECK(file == expected);
      }
    }
  }
}

TEST_CASE("a grid whose data ranks are divided has the tied table of two stages and parts of layers", "[sharding]") {
  if (world().size() != 4) return;
  for (const mpi::GridShape& shape : {mpi::GridShape{2, 2, 1}, mpi::GridShape{2, 1, 2}}) {
    CAPTURE(mpi::described(shape));
    DividedRun undivided(shape, 0, ShardLevel::gradients);
    DividedRun divided(shape, 1, ShardLevel::gradients);
    undivided.trainer.share();
    divided.trainer.share();
    for (int i = 0; i < 3; ++i) {
      const double expected = undivided.trainer.step().loss;
      CHECK(std::abs(divided.trainer.step().loss - expected) < 1e-4);
    }
    CHECK(test::compare(numbers_of(everywhere(test::saved(divided.trainer)), ""),
                        numbers_of(everywhere(test::saved(undivided.trainer)), ""), 1e-3) == "");
  }
}

TEST_CASE("shards of divided data ranks take the memory that is planned, whole or by factors", "[sharding][power_sgd]") {
  if (world().size() < 2) return;
  for (const int shard_ranks : divisors()) {
    for (const ShardLevel level : levels) {
      for (const std::size_t rank : {0, 12}) {
        for (const DType values : {DType::f32, DType::bf16}) {
          CAPTURE(shard_ranks, static_cast<int>(level), rank, static_cast<int>(values));
          DividedRun run(shard_ranks, level, rank, 1, {}, values);
          run.loss_after(1);
          plan::FloatOptions options;
          options.batch = divided_micro_batches;
          options.shard = level;
          options.shard_ranks = static_cast<std::size_t>(shard_ranks);
          options.compress_rank = rank;
          options.train = DividedRun::options(1, values);
          const plan::FloatMemory planned =
              plan::plan_grid(plan::describe_gpt(DividedRun::config()), run.grid.shape(), options, plan::FloatCluster())
                  .memory();
          const nn::Pool& pool = run.engine.pool();
          std::vector<std::int64_t> most;
          for (const nn::Use use : {nn::Use::parameters, nn::Use::gradients, nn::Use::optimizer}) {
            most.push_back(static_cast<std::int64_t>(pool.count(use).now));
          }
          world().max(std::span(most));
          // One rank need not have the most of all.
          const auto is_near = [](std::int64_t measured, std::uint64_t expected) {
            return std::abs(static_cast<double>(measured) / static_cast<double>(expected) - 1) < 0.02;
          };
          CHECK(is_near(most[0], planned.parameters));
          CHECK(is_near(most[1], planned.gradients));
          CHECK(is_near(most[2], planned.optimizer));
        }
      }
    }
  }
}

TEST_CASE("error buffers of shards are in checkpoints as those of whole matrices", "[power_sgd]") {
  for (const int before : divisors()) {
    if (world().size() > 1 && before == world().size()) continue;
    const std::size_t rank = 12;  // a multiple of 1, 2, 3 and 4
    const ShardLevel level = world().size() == 1 ? ShardLevel::none : ShardLevel::gradients;
    DividedRun run(before, level, rank);
    run.loss_after(3);
    const TensorFile file = everywhere(test::saved(run.trainer));
    CHECK(file.tensors.at("power_sgd.error.blocks.0.attention.qkv.weight").shape == std::vector<std::size_t>{99, 3 * 99});
    const std::vector<double> errors = numbers_of(file, "power_sgd.");
    double largest = 0;
    for (const double x : errors) largest = std::max(largest, std::abs(x));
    CHECK(largest > 0);
    const double loss = run.loss_after(3);
    for (const int after : divisors()) {
      if (world().size() > 1 && after == world().size()) continue;
      CAPTURE(before, after);
      DividedRun again(after, level, rank);
      test::load(again.trainer, file);
      // Divided by the copies and added up again.
      CHECK(test::compare(numbers_of(everywhere(test::saved(again.trainer)), "power_sgd."), errors, 1e-6) == "");
      if (after == before) CHECK(std::abs(again.loss_after(3) - loss) < 1e-4);
    }
  }
}

TEST_CASE("shards compress only where there are copies of them, by a rank that they divide", "[power_sgd]") {
  if (world().size() < 2) return;
  const auto refusal = [&](int shard_ranks, std::size_t rank, const PowerSgdOptions& compression = {}) {
    return test::message_of(ErrorKind::usage,
                            [&] { const DividedRun run(shard_ranks, ShardLevel::optimizer, rank, 1, compression); });
  };
  CHECK(refusal(0, 4) ==
        "`compress_rank`: 4 with `shard` optimizer; expected `shard` none, or `shard_ranks` of which there are several groups");
  CHECK(refusal(world().size(), static_cast<std::size_t>(world().size())) == "no error");  // others may join
  if (world().size() != 4) return;
  CHECK(refusal(2, 5) == "`compress_rank`: 5; expected a multiple of `shard_ranks` 2");
  PowerSgdOptions warm;
  warm.warm_start = true;
  CHECK(refusal(2, 4, warm) == "`compress_start`: warm with `shard` optimizer; expected fixed, or `shard` none");
  CHECK(refusal(1, 4, warm) == "no error");
  CHECK(test::message_of(ErrorKind::usage, [&] { DividedRun(3, ShardLevel::optimizer); }) ==
        "`shard_ranks`: 3; expected a divisor of the 4 data-parallel ranks");
}

}  // namespace bitloom::train
